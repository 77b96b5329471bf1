"""The validation accepts what msgspec accepts, and continues after the first error."""

from __future__ import annotations

import copy
import random
import re
from pathlib import Path as FilePath
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests.settings.writing import as_toml, loaded

from semel import ConfigError, keys
from semel.settings.errors import SettingPath, SettingsError
from semel.settings.schema import Settings
from semel.settings.validation import PLACES, Form, shape, unwrapped
from semel.values.secret import Secret

DOCUMENT: dict[str, Any] = {
    "ledger": "memory://",
    "tenant": "acme",
    "redelivery": 100,
    "server": {"port": 1, "host": "127.0.0.1", "log": "json", "drain": 1.5},
    "endpoints": [
        {"path": "/a", "mode": "inline", "busy_status": 409, "verify": {"scheme": "genesys", "secrets": ["env:S"]}},
        {"path": "/b", "id_path": "a.b", "body_max": 5},
    ],
    "destinations": {"crm": {"url": "https://x/", "headers": {"x-a": "plain"}, "allow": ["a"], "retry_budget": 0.5}},
    "routes": [
        {"name": "a", "topics": ["**"], "forward": "crm", "key": ["a.b"], "effect": "keyed", "timeout": 5},
        {"name": "b", "topics": ["x", "y.*"], "console": True, "key": "event", "max_attempts": 3, "fail_open": True},
    ],
    "tokens": [{"name": "t", "digest": "sha256:" + "0" * 64, "scopes": ["claims", "keys"]}],
}
ODD = [0, 1, -1, 2**80, 1.5, float("nan"), float("inf"), True, 409, [], ["x"], [1], [[]], {}, {"x": 1}, [{}]]
ODD += ["", "x", "/a", "event", "**", "a..b", "\n", "genesys", "env:S", "env:NO"]
ODD += [[{"name": "z"}], {"url": "https://y/"}, {"crm": {}}]


def walk(value: Any, path: SettingPath = ()) -> list[SettingPath]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, inner in members for one in walk(inner, (*path, key)))]


def changed(choice: random.Random) -> dict[str, Any]:
    """The document with one to four mistakes, or things that are none."""
    document = copy.deepcopy(DOCUMENT)
    for _ in range(choice.randint(1, 4)):
        *parents, last = choice.choice(walk(document)[1:])
        table: Any = document
        for key in parents:
            table = table[key]
        match choice.choice(["replace", "replace", "remove", "add"]):
            case "replace":
                table[last] = copy.deepcopy(choice.choice(ODD))
            case "remove":
                del table[last]
            case "add" if isinstance(table, dict):
                table[choice.choice(["nmae", "port", "x", "forward", "verify"])] = copy.deepcopy(choice.choice(ODD))
    return document


def plain_secret(written: str, form: Form) -> Secret:
    return Secret(written)


def by_msgspec(document: dict[str, Any]) -> Settings | None:
    try:
        return msgspec.convert(document, Settings, dec_hook=lambda _, written: _secret(written))
    except msgspec.ValidationError:
        return None


def _secret(written: object) -> Secret:
    if not isinstance(written, str):
        raise TypeError("a secret is written as a text")
    return Secret(written)


def test_the_document_itself_is_right() -> None:
    shaped = shape(DOCUMENT, plain_secret)
    assert shaped.faults == []
    assert shaped.settings == by_msgspec(DOCUMENT)


@given(st.integers(0, 2**64))
def test_it_finds_faults_exactly_where_msgspec_does(seed: int) -> None:
    document = changed(random.Random(seed))
    shaped = shape(document, plain_secret)
    expected = by_msgspec(document)
    assert (shaped.faults == []) == (expected is not None), document
    if expected is not None:
        assert shaped.settings == expected


def test_both_kinds_of_documents_are_generated() -> None:
    right = [by_msgspec(changed(random.Random(seed))) is not None for seed in range(300)]
    assert 10 < sum(right) < 290


@given(st.integers(0, 2**64))
def test_any_document_is_loaded_or_reported_with_lines(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    text = as_toml(changed(random.Random(seed)))
    folder: FilePath = tmp_path_factory.getbasetemp()
    try:
        settings = loaded(folder, text, S="some secret")
    except SettingsError as error:
        told = error
    else:
        assert isinstance(settings, Settings)
        return
    assert all(1 <= problem.line <= text.count("\n") for problem in told.problems if problem.line), text
    assert all(problem.line or "missing" in problem.what for problem in told.problems), str(told)


def test_every_table_of_the_schema_has_a_place() -> None:
    tables: set[type[Struct]] = set()
    waiting: list[Any] = [Settings]
    while waiting:
        bare, _ = unwrapped(waiting.pop())
        if isinstance(bare, type) and issubclass(bare, Struct):
            tables.add(bare)
            waiting += get_type_hints(bare, include_extras=True).values()
        elif get_origin(bare) is not None:
            waiting += get_args(bare)
    assert tables == set(PLACES)


@pytest.mark.parametrize("path", ["detail..x", ".detail", "detail.", ""])
def test_a_path_of_a_key_with_an_empty_name_is_named_with_its_place(path: str) -> None:
    route = {"name": "crm", "topics": ["**"], "console": True, "key": ["detail.id", path]}
    (fault,) = shape({"routes": [route]}, lambda written, form: Secret(written)).faults
    assert fault.path == ("routes", 0, "key", 1)
    assert path in fault.what


@pytest.mark.parametrize("path", ["detail..x", ".detail", "detail."])
def test_a_path_of_a_key_with_an_empty_name_is_refused_in_python(path: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(path)):
        keys.fields("detail.id", path)
