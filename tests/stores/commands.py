"""The operator's commands on stores that have passwords: none of them is ever shown."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import Ended
from tests.cli.command import semel as command

SECRETS = ("test-password", "s3cret-of-redis")


def semel(*arguments: str, env: dict[str, str] | None = None) -> Ended:
    ended = command(*arguments, env=env)
    assert not any(secret in ended.out + ended.err for secret in SECRETS), "a password is shown"
    return ended


def migrated(url: str) -> str:
    """The store, ready."""
    assert semel("migrate", "--ledger", url).code == 0
    return url


def settings(folder: Path, ledger: str, rest: str = "") -> Path:
    path = folder / "semel.toml"
    path.write_text(f'ledger = "{ledger}"\n{rest}', "utf-8")
    return path
