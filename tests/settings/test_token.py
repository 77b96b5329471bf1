"""`semel token`: created once, shown once, stored as a digest."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from semel.cli import token
from semel.cli.token import make_token
from semel.service.api.requests import Keyring
from semel.settings.loading import load
from semel.values.errors import ConfigError


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.callback()(lambda: None)
    token.register(app)
    return CliRunner().invoke(app, ["token", *arguments])


def test_a_token_is_random_and_its_digest_is_its_sha256() -> None:
    made = [make_token() for _ in range(100)]
    assert len({one for one, _ in made}) == 100
    for one, digest in made:
        assert re.fullmatch(r"semel_[A-Za-z0-9_-]{43}", one)
        assert digest == f"sha256:{sha256(one.encode()).hexdigest()}"


def test_the_printed_lines_are_valid_and_accept_the_token(tmp_path: Path) -> None:
    ended = run("billing", "--scope", "claims", "--scope", "keys", "--scope", "keys", "--tenant", 'a"c\\me')
    assert ended.exit_code == 0, ended.output
    path = tmp_path / "semel.toml"
    path.write_text(ended.stdout, "utf-8")
    (kept,) = load(path, {}).tokens
    assert (kept.name, kept.scopes, kept.tenant) == ("billing", ["claims", "keys"], 'a"c\\me')
    shown = ended.stderr.split()[-1]
    credential = Keyring([kept]).authenticate(f"Bearer {shown}".encode())
    assert credential is not None
    assert credential.name == "billing"


def test_the_token_itself_is_not_among_the_lines_for_the_file() -> None:
    ended = run("billing", "--scope", "metrics")
    assert "semel_" in ended.stderr
    assert "semel_" not in ended.stdout
    assert "tenant" not in ended.stdout


def test_the_json_document_has_everything() -> None:
    document = json.loads(run("billing", "--scope", "claims", "--json").stdout)
    assert set(document) == {"token", "name", "digest", "scopes", "tenant"}
    assert document["digest"] == f"sha256:{sha256(document['token'].encode()).hexdigest()}"


@pytest.mark.parametrize(
    "arguments", [("billing",), ("billing", "--scope", "clams"), (), ("billing", "--scope", "claims", "--json", "x")]
)
def test_wrong_options_are_refused_and_no_token_is_created(arguments: tuple[str, ...]) -> None:
    ended = run(*arguments)
    assert ended.exit_code == 2
    assert ended.stderr
    assert ended.stdout == ""
    assert "semel_" not in ended.output


@pytest.mark.parametrize("wrong", [("a b", ""), ("", ""), ("a", "x\ny")])
def test_a_name_that_the_settings_would_refuse_is_refused_here(wrong: tuple[str, str]) -> None:
    ended = run(wrong[0], "--scope", "claims", "--tenant", wrong[1])
    assert isinstance(ended.exception, ConfigError)
    assert "semel_" not in ended.output
