"""An event whose key cannot be computed for one handler: its dead letter, on every kind of store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.stores.commands import migrated, semel
from tests.stores.conftest import STORES

from semel import Context, Event, Outcome, Semel, keys
from semel.core.dead_letter_store import inbox_of
from semel.core.inbox_flow import InboxWorker
from semel.core.routing import NO_KEY

BODY = {"id": "bus-1", "detail-type": "t", "source": "shop", "detail": {"eventId": "e-1", "eventType": "order.created"}}
ELSEWHERE = True  # dead letters are kept by another store
PLACES = [(name, False) for name in STORES] + [("redis", ELSEWHERE), ("dynamodb", ELSEWHERE)]
pytestmark = pytest.mark.parametrize(("store", "dead_letters"), PLACES, indirect=True)

REASON = ("--reason", "fixed", "--by", "anna", "--yes")


class Desk:
    """`audit` has a key, and so has `crm` once `path` is right."""

    def __init__(self, url: str, dead_letters: str = "", path: str = "detail.interactionId") -> None:
        self.app = Semel(url, dead_letters=dead_letters)
        self.ran: list[str] = []
        self.app.on("**", key=keys.delivery, name="audit")(lambda event, ctx: self.ran.append("audit"))

        @self.app.on("**", key=keys.fields(path), name="crm")
        async def crm(event: Event, ctx: Context) -> None:
            self.ran.append("crm")

    def process(self, times: int = 1) -> list[dict[str, str]]:
        async def story() -> list[dict[str, str]]:
            async with self.app:
                return [parts(await self.app.process(BODY)) for _ in range(times)]

        return asyncio.run(story())

    def handle_inbox(self) -> None:
        async def story() -> None:
            async with self.app:
                inbox = inbox_of(self.app.ledger)
                assert inbox is not None
                pump = InboxWorker(inbox, self.app.new_engine(self.app.ledger).process, self.app.handlers, 8)
                await pump.run_once()
                await pump.stop(10)
                assert [depth for depth in await inbox.depths() if depth.waiting or depth.taken] == []

        asyncio.run(story())


def parts(outcome: Outcome) -> dict[str, str]:
    return {part.handler: part.status for part in outcome.parts}


@pytest.fixture
def dead_letters(request: pytest.FixtureRequest, store: str, tmp_path: Path) -> tuple[str, ...]:
    """The URLs of the ledger and of the store of its dead letters, where that is another one."""
    migrated(store)
    return (store, f"sqlite:///{tmp_path}/letters.db") if request.param else (store,)


def listed(*places: str) -> Any:
    return semel("dead", "list", "--json", "--ledger", places[-1]).json


def test_it_is_listed_once_and_the_other_handler_runs(dead_letters: tuple[str, ...]) -> None:
    desk = Desk(*dead_letters)
    assert desk.process(2) == [{"audit": "done", "crm": "dead"}, {"audit": "duplicate", "crm": "duplicate"}]
    assert desk.ran == ["audit"]
    (dead_letter,) = listed(*dead_letters)
    assert (dead_letter["handler"], dead_letter["text"]) == ("crm", "e-1")
    assert dead_letter["reason"].startswith(NO_KEY)
    shown = semel("dead", "show", dead_letter["key"], "--ledger", dead_letters[-1])
    assert "detail.interactionId" in shown.out


def test_it_is_replayed_when_its_key_can_be_computed(dead_letters: tuple[str, ...], tmp_path: Path) -> None:
    Desk(*dead_letters).process()
    (dead_letter,) = listed(*dead_letters)
    settings = tmp_path / "semel.toml"
    beside = f'dead_letters = "{dead_letters[1]}"\n' if dead_letters[1:] else ""
    settings.write_text(
        f'ledger = "{dead_letters[0]}"\n{beside}[[endpoints]]\nmode = "inline"\n'
        '[[routes]]\nname = "crm"\ntopics = ["**"]\nconsole = true\n'
    )
    replayed = semel("dead", "replay", dead_letter["key"], *REASON, "-c", str(settings))
    assert replayed.code == 0, replayed.out
    desk = Desk(dead_letters[0], "".join(dead_letters[1:]), path="detail.eventId")
    if inbox_of(desk.app.ledger) is not None:
        desk.handle_inbox()
        assert desk.ran == ["crm"]
        assert desk.process() == [{"audit": "duplicate", "crm": "duplicate"}]
    else:  # the next delivery is acted on
        assert desk.process() == [{"audit": "duplicate", "crm": "done"}]
    assert listed(*dead_letters) == []


def test_it_is_discarded_and_its_copies_are_duplicates(dead_letters: tuple[str, ...]) -> None:
    Desk(*dead_letters).process()
    (dead_letter,) = listed(*dead_letters)
    assert semel("dead", "discard", dead_letter["key"], *REASON, "--ledger", dead_letters[-1]).code == 0
    assert listed(*dead_letters) == []
    assert Desk(*dead_letters).process() == [{"audit": "duplicate", "crm": "duplicate"}]
    assert listed(*dead_letters) == []
