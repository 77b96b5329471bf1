"""`semel migrate` where there is nothing to migrate, or nobody to ask. tests/stores has the stores that need it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.command import semel
from tests.cli.ledgers import message
from tests.wording import lacks

from semel import Context, Event, Reject, Semel


@pytest.mark.parametrize(("url", "name"), [("sqlite:///{folder}/semel.db", "SQLite"), ("memory://", "memory")])
@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_store_without_migrations_is_reported_as_ready(
    url: str, name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    option = ("--ledger", url.format(folder=tmp_path))
    told = semel("migrate", *option, *options)
    assert told.code == 0
    assert lacks(told.out, f"{name} migrations") == []
    assert semel("migrate", *option, *options, "--json").json == {
        "ready": True,
        "dry_run": bool(options),
        "stores": [
            {"role": "ledger", "url": option[1], "store": name, "migrates": False, "done": [], "pending": []},
        ],
    }
    assert list(tmp_path.iterdir()) == [], "nothing was made"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--ledger", "nonsense://x:hunter2@y"), "sqlite:///file.db"),
        (("--ledger", "memory://", "-c", "semel.toml"), "--ledger -c"),
        (("-c", "none.toml"), "none.toml"),
        (("--ledger", "postgresql://a:hunter2@h/d?pol=1"), "option 'pol'"),
    ],
)
def test_an_unusable_store_ends_with_exit_code_2(arguments: tuple[str, ...], words: str) -> None:
    ended = semel("migrate", *arguments)
    assert ended.code == 2
    assert lacks(ended.err, words) == []
    program = semel("migrate", *arguments, "--json")
    assert (program.code, program.json["ready"]) == (2, False)
    assert lacks(program.json["error"], words) == []
    assert "hunter2" not in ended.err + ended.out + program.out


def test_dead_letters_of_a_memory_ledger_can_be_listed_and_discarded_but_not_replayed(tmp_path: Path) -> None:
    """They outlive the process, and what it still remembers cannot be changed from outside."""
    dead_letters = f"sqlite:///{tmp_path}/letters.db"
    path = tmp_path / "semel.toml"
    path.write_text(f'ledger = "memory://"\ndead_letters = "{dead_letters}"\n[[endpoints]]\nmode = "inline"\n')
    option = ("-c", str(path))
    assert semel("dead", "list", *option).code == 2, "nothing was given up on yet: there is nothing to look at"

    async def give_up() -> None:
        async with Semel("memory://", dead_letters=dead_letters, origin="test") as app:

            @app.on("**", name="to-crm")
            async def refuse(event: Event, ctx: Context) -> None:
                raise Reject("unknown customer")

            assert (await app.process(message("crm", "1", customer="c"))).status == "dead"
            assert (await app.process(message("crm", "1", customer="c"))).status == "duplicate"

    asyncio.run(give_up())
    (dead_letter,) = semel("dead", "list", "--json", *option).json
    assert dead_letter["reason"] == "unknown customer"
    replay = semel("dead", "replay", dead_letter["key"], "--reason", "x", *option)
    assert replay.code == 1
    assert dead_letter["key"] in replay.out
    assert [one["key"] for one in semel("dead", "list", "--json", *option).json] == [dead_letter["key"]]
    assert semel("dead", "discard", dead_letter["key"], "--reason", "x", *option).code == 0
    assert semel("dead", "list", "--json", *option).json == []


def test_a_dead_letter_file_that_is_no_ledger_is_not_changed(tmp_path: Path) -> None:
    path, dead_letters = tmp_path / "semel.toml", tmp_path / "letters.db"
    dead_letters.write_bytes(b"holiday pictures")
    path.write_text(f'ledger = "redis://127.0.0.1:1"\ndead_letters = "sqlite:///{dead_letters}"\n')
    ended = semel("status", "-c", str(path))
    assert ended.code == 2
    assert lacks(ended.err, "letters.db no ledger") == []
    assert dead_letters.read_bytes() == b"holiday pictures"
