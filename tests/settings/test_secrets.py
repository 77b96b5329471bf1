"""Secrets are read, used, and never shown."""

from __future__ import annotations

import copy
import io
import json
import logging
import pickle
import traceback
from collections.abc import Callable
from pathlib import Path
from pprint import pformat
from typing import Any

import msgspec
import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from tests.settings.writing import as_toml, loaded, told
from tests.wording import lacks

from semel.settings.errors import SettingsError
from semel.settings.references import SECRET_MAX_BYTES
from semel.settings.schema import Settings
from semel.values.secret import Secret

VALUE = "hunter2-and-more"
VERIFY = '[[endpoints]]\nverify = {{ scheme = "genesys", secrets = [{}] }}\n'
CRM = '[destinations.crm]\nurl = "https://crm.example/"\nheaders = {{ Authorization = {} }}\n'


def settings_with_secrets(folder: Path) -> Settings:
    text = VERIFY.format('"env:SECRET"') + CRM.format('"Bearer env:SECRET"')
    return loaded(folder, text, SECRET=VALUE)


def by_rich(value: object) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(value)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def by_logging(value: object) -> str:
    record = logging.LogRecord("semel", logging.INFO, "file", 1, "%s %r", (value, value), None)
    return logging.Formatter().format(record)


def by_structlog(value: object) -> str:
    lines = [
        structlog.processors.JSONRenderer()(None, "info", {"event": "x", "value": value}),
        structlog.dev.ConsoleRenderer(colors=False)(None, "info", {"event": "x", "value": value}),
    ]
    return "".join(map(str, lines))


SHOWN: dict[str, Callable[[object], str]] = {
    "repr": repr,
    "str": str,
    "format": format,
    "f-string": lambda value: f"{value} {value!r} {value!s} {value:>40}" if isinstance(value, Secret) else f"{value}",
    "percent": lambda value: "%s %r" % (value, value),  # noqa: UP031 - one of the ways
    "pformat": pformat,
    "json": lambda value: json.dumps(value, default=str),
    "msgspec with str": lambda value: msgspec.json.encode(value, enc_hook=str).decode(),
    "msgspec to builtins": lambda value: repr(msgspec.to_builtins(value, enc_hook=repr)),
    "exception": lambda value: "".join(traceback.format_exception(ValueError(value))),
    "rich": by_rich,
    "logging": by_logging,
    "structlog": by_structlog,
}


@pytest.mark.parametrize("way", SHOWN)
def test_a_secret_does_not_show_itself(tmp_path: Path, way: str) -> None:
    settings = settings_with_secrets(tmp_path)
    secret = settings.destinations["crm"].headers["Authorization"]
    assert VALUE in secret.reveal()
    for value in (secret, settings, [secret], {"key": secret}):
        assert VALUE not in SHOWN[way](value)


def test_encoders_refuse_a_secret() -> None:
    secret = Secret(VALUE)
    encoders: list[Callable[[Any], Any]] = [
        msgspec.json.encode,
        msgspec.msgpack.encode,
        msgspec.to_builtins,
        json.dumps,
    ]
    for encode in encoders:
        with pytest.raises(TypeError) as raised:
            encode(secret)
        assert VALUE not in str(raised.value)


def test_a_secret_is_neither_a_text_nor_has_a_dictionary() -> None:
    secret = Secret(VALUE)
    assert not isinstance(secret, str)
    assert not hasattr(secret, "__dict__")
    uses: list[Callable[[Any], Any]] = [
        lambda value: "" + value,
        lambda value: "".join([value]),
        lambda value: value[0],
        list,
        len,
        bytes,
    ]
    for use in uses:
        with pytest.raises(TypeError) as raised:
            use(secret)
        assert VALUE not in str(raised.value)


def test_a_secret_has_its_reference(tmp_path: Path) -> None:
    settings = settings_with_secrets(tmp_path)
    assert repr(settings.destinations["crm"].headers["Authorization"]) == "Secret(Bearer env:SECRET)"
    assert repr(Secret("plain value")) == "Secret(…)"


def test_secrets_travel_to_other_processes(tmp_path: Path) -> None:
    settings = settings_with_secrets(tmp_path)
    for again in (pickle.loads(pickle.dumps(settings)), copy.deepcopy(settings)):
        assert again == settings
        assert again.destinations["crm"].headers["Authorization"].reveal() == f"Bearer {VALUE}"


def test_secrets_are_equal_by_value() -> None:
    assert Secret("a", "env:X") == Secret("a")
    assert hash(Secret("a")) == hash(Secret("a"))
    assert Secret("a") != Secret("b")
    assert Secret("é") != "é"


# ---------------------------------------------------------------------------------------------------------- references


def test_a_secret_is_read_from_a_file_beside_the_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/one").write_text(f"{VALUE}\r\n")
    (tmp_path / "two").write_text("no newline")
    text = VERIFY.format(f'"file:secrets/one", "file:{tmp_path}/two"')
    verify = loaded(tmp_path, text).endpoints[0].verify
    assert verify is not None
    assert [secret.reveal() for secret in verify.secrets] == [VALUE, "no newline"]


def test_a_secret_has_a_maximum_length(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes(b"x" * SECRET_MAX_BYTES)
    assert loaded(tmp_path, VERIFY.format('"file:long"')).endpoints[0].verify is not None
    (tmp_path / "long").write_bytes(b"x" * (SECRET_MAX_BYTES + 1))
    (line,) = told(tmp_path, VERIFY.format('"file:long"'))
    assert lacks(line, f"file:long {SECRET_MAX_BYTES:,}") == []


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("env:NOPE", "env:NOPE variable"),
        ("env:EMPTY", "env:EMPTY empty"),
        ("env:BROKEN", "env:BROKEN UTF-8"),
        ("env:", "env: variable"),
        ("file:nope", "file:nope No such file or directory"),
        ("file:empty", "file:empty empty"),
        ("file:newline", "file:newline empty"),
        ("file:binary", "file:binary UTF-8"),
        ("file:folder", "file:folder Is a directory"),
        ("file:", "file: path"),
        ("file:a\\u0000b", "file: path"),
    ],
)
def test_an_unreadable_secret_is_reported_by_its_reference(tmp_path: Path, reference: str, words: str) -> None:
    for name, content in (("empty", b""), ("newline", b"\n"), ("binary", b"\xff\xfe")):
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    for text in (VERIFY.format(f'"{reference}"'), CRM.format(f'"{reference}"'), CRM.format(f'"Bearer {reference}"')):
        (line,) = told(tmp_path, text, EMPTY="", BROKEN="\udcff")
        assert lacks(line, words) == []


@pytest.mark.parametrize(
    "written",
    [
        f'"{VALUE}"',
        f'"Bearer {VALUE}"',
        f'"env:{VALUE} x"',
        f'"Bearer env:{VALUE}"',
        '"Bearer env:SECRET"',
        f'"ENV:{VALUE}"',
        '"hunter2\\nx"',
    ],
)
def test_a_literal_secret_is_refused_and_not_repeated(tmp_path: Path, written: str) -> None:
    (line,) = told(tmp_path, VERIFY.format(written), SECRET=VALUE)
    assert "hunter2" not in line
    assert "env:" in line


def test_a_header_may_have_a_plain_value(tmp_path: Path) -> None:
    assert loaded(tmp_path, CRM.format('"application/json"')).destinations["crm"].headers["Authorization"] == Secret(
        "application/json"
    )
    (line,) = told(tmp_path, CRM.format('""'))
    assert lacks(line, "headers.Authorization empty") == []


MARKED = "s3cr3t"
STRANGE = st.recursive(
    st.sampled_from([MARKED, f"Bearer {MARKED}", f"{MARKED}\n", f"env:{MARKED}-", f"file:\x01{MARKED}"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2),
    max_leaves=4,
)


@given(STRANGE, STRANGE, STRANGE)
def test_a_malformed_secret_is_never_repeated(
    tmp_path_factory: pytest.TempPathFactory, secrets: object, headers: object, digest: object
) -> None:
    document = {
        "endpoints": [{"verify": {"scheme": "header", "secrets": secrets, "header": f"X-Api-Key: {MARKED}"}}],
        "destinations": {"crm": {"url": f"https://user:{MARKED}@crm.example/", "headers": headers}},
        "tokens": [{"name": "a", "scopes": ["keys"], "digest": digest}],
    }
    with pytest.raises(SettingsError) as raised:
        loaded(tmp_path_factory.getbasetemp(), as_toml(document))
    assert MARKED not in str(raised.value)
    assert MARKED not in repr(raised.value)
