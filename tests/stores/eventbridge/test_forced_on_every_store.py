"""What has succeeded is run again by force alone, on every store, and with every place for letters."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from tests.dead_letter_targets.bus import Bus
from tests.stores.commands import migrated, semel

from semel import Context, Event, Reject, Semel

REASON = ("--reason", "the customer asks for it", "--by", "anna")


def send(ledger: str, name: str, times: int = 1, dead_letters: str = "") -> list[str]:
    """What became of each delivery of one event."""
    app = Semel(ledger, dead_letters=dead_letters, origin="test")

    @app.on("order.*", name="orders")
    async def handle(event: Event, ctx: Context) -> Any:
        return Reject("unknown customer") if event.body.get("bad") else {"ticket": 7}

    async def deliver() -> list[str]:
        async with app:
            event = {"id": name, "type": "order.created", "data": {"bad": name.startswith("bad")}}
            return [(await app.process(event)).status for _ in range(times)]

    return asyncio.run(deliver())


def forced(ledger: str, option: tuple[str, ...], dead_letters: str = "") -> None:
    assert send(ledger, "good", dead_letters=dead_letters) == ["done"]
    (key,) = [entry["key"] for entry in semel("events", "list", "--state", "done", "--json", *option).json]
    refused = semel("dead", "replay", key, "--yes", *REASON, *option)
    assert refused.code == 1
    assert key in refused.out
    assert send(ledger, "good", dead_letters=dead_letters) == ["duplicate"]

    done = semel("dead", "replay", key, "--yes", "--force", *REASON, *option, "--json")
    assert done.code == 0
    assert [event["goes_to"] for event in done.json["events"]] == ["next delivery"]
    assert send(ledger, "good", 2, dead_letters) == ["done", "duplicate"]
    shown = semel("events", "show", key, *option).out
    assert ("replayed" in shown, "done" in shown, "anna" in shown) == (True, True, True)


def test_on_every_store(store: str) -> None:
    forced(migrated(store), ("--ledger", store))


def test_with_letters_in_another_store(redis_url: str, tmp_path: Path) -> None:
    dead_letters = f"sqlite:///{tmp_path}/letters.db"
    path = tmp_path / "semel.toml"
    path.write_text(f'ledger = "{redis_url}"\ndead_letters = "{dead_letters}"\nendpoints = []\n', "utf-8")
    forced(redis_url, ("-c", str(path)), dead_letters)


def test_a_ledger_in_redis_tells_a_bus_and_keeps_its_letters(redis_url: str, bus: Bus) -> None:
    assert send(redis_url, "bad-1", 2, bus.url()) == ["dead", "duplicate"]
    (dead_letter,) = bus.arrived(1)
    option = ("--ledger", redis_url)
    (entry,) = semel("dead", "list", "--json", *option).json
    assert (dead_letter["key"], dead_letter["reason"]) == (entry["key"], "unknown customer")
    assert semel("dead", "replay", entry["key"], *REASON, *option).code == 0
    assert send(redis_url, "bad-1", 1, bus.url()) == ["dead"]
    (again,) = bus.arrived(1)
    assert again["key"] == dead_letter["key"]
    assert again["id"] != dead_letter["id"], "another generation is another letter"
