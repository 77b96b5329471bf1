"""The file that `semel init` writes is valid and names every setting."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec
import pytest
import typer
from msgspec import NODEFAULT, Struct
from typer.testing import CliRunner

from semel.cli import init
from semel.cli.doctor import examine
from semel.cli.init import starter, write
from semel.settings.loading import load
from semel.settings.schema import ProviderSettings, Route, Settings
from semel.settings.validation import _tagged, kinds_of, unwrapped
from semel.values.errors import ConfigError
from semel.values.secret import Secret

SETTING = re.compile(r"^#(?=\[|[a-z_]+ = )", re.MULTILINE)
SECRETS = {
    "GENESYS_SECRET": "a secret of some length",
    "CRM_TOKEN": "t0ken",
    "TWILIO_TOKEN": "another secret",
    "CALLBACK_SECRET": "one more secret of some length",
}
SECRETS |= {"KAFKA_PASSWORD": "kafka's", "RABBITMQ_PASSWORD": "rabbit's"}
EXAMPLES = {"dead_letters", "id_path", "type_path", "body_max", "timeout", "verify", "forward"}  # without a default


def uncommented() -> str:
    return SETTING.sub("", starter())


def test_unchanged_it_has_sqlite_and_a_route_to_the_console(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    write(path)
    demonstration = Route(name="demonstration", topics=["**"], console=True)
    assert load(path, {}) == Settings(ledger=Secret("sqlite:///semel.db"), routes=[demonstration])


def test_unchanged_it_passes_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("semel.toml"))
    found = examine(None, None)
    assert [finding for finding in found.findings if finding.level != "ok"] == []
    assert [promise.handler for promise in found.guarantees] == ["demonstration"]


def test_it_loads_with_every_setting_uncommented(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    for_redis = uncommented().replace('ledger = "sqlite:///semel.db"', 'ledger = "redis://host"')
    path.write_text(for_redis, "utf-8")  # SQLite keeps its letters itself
    settings = load(path, SECRETS)
    assert settings.dead_letters == Secret("sqlite:///dead-letters.db")
    assert settings.routes[1].forward == "crm"
    assert settings.destinations["crm"].headers["authorization"] == Secret("Bearer t0ken")


def test_every_setting_has_its_default() -> None:
    document = tomllib.loads(uncommented())
    compare(Settings, document, "")


def compare(kind: type[Struct], table: dict[str, Any], at: str) -> None:
    """Every name of the schema stands in the table, with the schema's default where it has one."""
    if kind is ProviderSettings:  # what else is there are options of its kind
        options = {name: value for name, value in table.items() if name not in kind.__struct_fields__}
        table = {"options": {}, **{name: value for name, value in table.items() if name not in options}}
        assert set(options) == {"account", "token", "sender", "tenants"}
    assert set(table) == set(kind.__struct_fields__), at
    for field in msgspec.structs.fields(kind):
        here, value = f"{at}.{field.name}", table[field.name]
        bare, _ = unwrapped(kinds_of(kind)[field.name])
        inner, _ = unwrapped(get_args(bare)[-1]) if get_args(bare) else (bare, None)
        if kinds := _tagged(inner):
            assert [one.pop("kind") for one in value] == list(kinds), here
            for one, table_of_kind in zip(kinds.values(), value, strict=True):
                compare(one, table_of_kind, f"{here}.{one.__name__}")
        elif isinstance(inner, type) and issubclass(inner, Struct):
            one = value if get_origin(bare) is None else [*value.values()][-1] if isinstance(value, dict) else value[-1]
            compare(inner, one, here)
        elif field.name not in EXAMPLES and not field.required and inner is not Secret:
            default = field.default if field.default is not NODEFAULT else field.default_factory()
            assert value == default, here


def test_only_settings_without_a_default_are_examples() -> None:
    """The list above holds no more than it must."""
    without = {
        field.name
        for kind in (Settings, *(type(one) for one in (Settings().endpoints[0], Route(name="x", topics=["y"]))))
        for field in msgspec.structs.fields(kind)
        if field.default is None
    }
    assert without | {"forward"} == EXAMPLES


def test_every_line_is_a_comment_a_setting_or_empty() -> None:
    for line in starter().splitlines():
        assert re.match(r"^($|# |#$|#?\[|#?[a-z_]+ = )", line), line
        assert len(line) <= 125, line


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="--force"):
        write(path)
    assert path.read_text() == "mine"
    write(path, force=True)
    assert path.read_text("utf-8") == starter()


def test_a_file_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    for path in (tmp_path / "no" / "such" / "folder.toml", tmp_path):
        with pytest.raises(ConfigError, match=re.escape(str(path))):
            write(path)
    with pytest.raises(ConfigError, match=re.escape(str(tmp_path))) as raised:
        write(tmp_path, force=True)
    assert "--force" not in str(raised.value), "it was passed already"


def test_init_prints_the_next_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    app.callback()(lambda: None)
    init.register(app)
    ended = CliRunner().invoke(app, ["init"])
    assert ended.exit_code == 0
    assert "semel.toml" in ended.output
    assert "semel doctor && semel run" in ended.output
    ended = CliRunner().invoke(app, ["init", "other.toml"])
    assert "semel doctor -c other.toml && semel run -c other.toml" in ended.output
    assert Path("other.toml").read_text("utf-8") == starter()
    assert isinstance(CliRunner().invoke(app, ["init"]).exception, ConfigError)
