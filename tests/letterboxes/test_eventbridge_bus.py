"""Letters of a real ledger on a bus, as they arrive behind its rule; and the commands of whoever operates it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from tests.cli.command import Ended, semel
from tests.letterboxes.bus import SOON_S, AwsServer, Bus
from tests.letterboxes.given_up import EVENT, given_up

from semel import Context, Event, Reject, Retry, Semel
from semel.adapters.letterboxes.eventbridge import EventBridgeLetters, LettersAnnounced
from semel.ports import Inbox, Letterbox, Letters, Migrates, TransactionalLedger
from semel.values.errors import ConfigError, NotRecorded
from semel.wiring import open_ledger, open_letters

T = TypeVar("T")

LARGE = "x" * 300_000


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def message(name: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "type": "order.created", "data": {"order": name, **data}}


def an_app(ledger: str, bus: str, lease_s: float = 30.0) -> Semel:
    """Its handler succeeds for what is fine; else it fails twice for a passing reason, then for good."""
    app = Semel(ledger, dead_letters=bus, origin="test")

    @app.on("order.*", name="orders", lease=lease_s, timeout=lease_s / 2)
    async def handle(event: Event, ctx: Context) -> Any:
        if event.body.get("fine"):
            return {"ticket": 7}
        if ctx.attempt < event.body.get("tries", 1):
            return Retry(after=0, reason=f"the CRM answered 503 in attempt {ctx.attempt}")
        return Reject("unknown customer")

    return app


@pytest.fixture
def ledger(server: AwsServer) -> str:
    url = server.ledger_url()

    async def make() -> None:
        ledger = open_ledger(url)
        assert isinstance(ledger, Migrates)
        await ledger.migrate()
        await ledger.close()

    run(make())
    return url


def test_a_letter_is_on_the_bus_and_in_the_ledger(ledger: str, bus: Bus) -> None:
    async def whole() -> list[str]:
        async with an_app(ledger, bus.url()) as app:
            outcomes = await app.process_many([message("bad"), message("good", fine=True)])
            again = await app.process(message("bad"))
            return [outcome.status for outcome in (*outcomes, again)]

    assert run(whole()) == ["dead", "done", "duplicate"]
    (letter,) = bus.arrived(1)
    (entry,) = semel("dead", "list", "--ledger", ledger, "--json").json
    assert (letter["key"], letter["reason"], letter["handler"]) == (entry["key"], "unknown customer", "orders")
    assert letter["event"] == message("bad")
    shown = semel("dead", "show", entry["key"], "--ledger", ledger, "--json").json
    assert shown["event"] == message("bad"), "and it is kept whole in the ledger"


def test_more_than_a_call_takes_all_arrive(bus: Bus) -> None:
    """By number, and by size: 23 small ones, and then 5 of 100 KB."""
    small = [given_up(f"small {number}") for number in range(23)]
    event = json.dumps(message("large", text="x" * 100_000)).encode()
    large = [given_up(f"large {number}", event=event) for number in range(5)]

    async def whole() -> None:
        letterbox = EventBridgeLetters(bus.url())
        await letterbox.keep([*small, *large])
        await letterbox.close()

    run(whole())
    arrived = bus.arrived(28)
    assert {letter["key"] for letter in arrived} == {s.lease.claim.digest.hex() for s in (*small, *large)}
    assert not any("truncated" in letter for letter in arrived)


@pytest.mark.parametrize("oversize", ["truncate", "reference"])
def test_an_event_that_is_too_large_is_cut_on_the_bus_and_whole_in_the_ledger(
    oversize: str, ledger: str, bus: Bus
) -> None:
    async def whole() -> str:
        async with an_app(ledger, bus.url(oversize=oversize)) as app:
            return (await app.process(message("bad", large=LARGE))).key

    key = run(whole())
    (letter,) = bus.arrived(1)
    assert letter["truncated"] is True
    assert letter["size"] > 300_000
    assert ("event_text" in letter) == (oversize == "truncate")
    assert semel("dead", "show", key, "--ledger", ledger, "--json").json["event"] == message("bad", large=LARGE)


def test_without_the_bus_nothing_is_given_up(ledger: str, server: AwsServer, bus: Bus) -> None:
    """The ledger is not told, so that the event comes again; and what has no letter does not wait."""
    nowhere = bus.url().replace(bus.name, "there-is-none")

    async def whole() -> None:
        async with an_app(ledger, nowhere, lease_s=2) as app:
            assert (await app.process(message("good", fine=True))).status == "done"
            with pytest.raises(NotRecorded):
                await app.process(message("bad"))
            assert await app.entries("dead") == []
        async with an_app(ledger, bus.url(), lease_s=2) as app, asyncio.timeout(SOON_S):
            outcome = await app.process(message("bad"))
            while outcome.status == "busy":  # until its lease is over
                await asyncio.sleep(outcome.after or 0.1)
                outcome = await app.process(message("bad"))
            assert outcome.status == "dead"

    run(whole())
    (letter,) = bus.arrived(1)
    assert letter["attempts"] == 2


def test_who_has_lost_its_lease_puts_nothing_on_the_bus(ledger: str, bus: Bus) -> None:
    async def whole() -> list[bool]:
        both = open_ledger(ledger, dead_letters=bus.url())
        try:
            return await both.settle([given_up("never claimed")])
        finally:
            await both.close()

    assert run(whole()) == [False]
    bus.arrived(0)


def test_it_has_the_abilities_of_its_ledger_and_no_inbox(bus: Bus) -> None:
    for url, transactional in (("dynamodb://table?region=eu-central-1", True), ("redis://127.0.0.1:1", False)):
        both = open_ledger(url, dead_letters=bus.url())
        assert isinstance(both, LettersAnnounced)
        assert isinstance(both, TransactionalLedger) == transactional == both.traits.transactional
        assert isinstance(both, Letters)
        assert not isinstance(both, Inbox)
        assert isinstance(both.letterbox, Letterbox)


def test_what_is_no_event_is_put_aside_on_the_bus(ledger: str, bus: Bus) -> None:
    """A stream brings what it cannot get rid of again and again: Lambda's handler puts it aside."""
    app = an_app(ledger, bus.url())
    assert isinstance(app.ledger, LettersAnnounced)
    handler = app.lambda_handler(put_aside=app.ledger.letterbox.put_aside)
    data = "bm90IGpzb24="  # not json
    record = {"eventSource": "aws:kinesis", "eventID": "shard:1", "kinesis": {"sequenceNumber": "1", "data": data}}
    try:
        assert handler({"Records": [record]}) == {"batchItemFailures": []}
    finally:
        app._sync.call(app.close)  # in the loop that has its connections
    (letter,) = bus.arrived(1)
    assert (letter["state"], letter["event_text"]) == ("malformed", "not json")
    assert "not JSON" in letter["reason"]


# ----------------------------------------------------------------------------------------------------- for people


def configured(folder: Path, ledger: str, letters: str, *command: str) -> Ended:
    file = folder / "semel.toml"
    file.write_text(f'ledger = "{ledger}"\ndead_letters = "{letters}"\n[[endpoints]]\nmode = "inline"\n', "utf-8")
    return semel(*command, "-c", str(file))


def facts(url: str) -> dict[str, str]:
    async def ask() -> list[tuple[str, str]]:
        bus = EventBridgeLetters(url)
        try:
            return await bus.diagnose()
        finally:
            await bus.close()

    return dict(run(ask()))


def test_doctor_hears_whether_somebody_listens(bus: Bus) -> None:
    assert facts(bus.url())["rules"] == "1"
    bus.disable_rules()
    assert facts(bus.url())["rules"].startswith("warning: none")
    assert facts(bus.url().replace(bus.name, "nowhere"))["readable"].startswith("error: there is no such bus")


@pytest.mark.parametrize(
    ("ledger_url", "letters", "said"),
    [
        ("memory://", "eventbridge://letters", "keeps no letters of its own"),
        ("sqlite:///semel.db", "eventbridge://letters", "leave dead_letters out"),
        ("redis://127.0.0.1", "eventbridge://", "the name of a bus or its ARN"),
        ("redis://127.0.0.1", "eventbridge://letters?oversize=s3", "expected truncate or reference"),
        ("redis://127.0.0.1", "eventbridge://letters?source=aws.mine", "Amazon's own"),
        ("redis://127.0.0.1", "eventbridge://letters?sauce=mine", "unknown option 'sauce'"),
        ("redis://127.0.0.1", "eventbridge://letters?endpoint=ftp://host", "expected http://host:port"),
        ("redis://127.0.0.1", "eventbridge://me:pa55word@letters", "credentials come by the usual AWS chain"),
    ],
)
def test_a_bus_that_cannot_be_meant_is_refused_in_words(ledger_url: str, letters: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_ledger(ledger_url, dead_letters=letters)
    assert said in str(refused.value)
    assert "pa55word" not in str(refused.value)


def test_the_bus_of_another_account_is_named_by_its_arn() -> None:
    arn = "arn:aws:events:eu-west-1:123456789012:event-bus/team/letters"
    letters = open_letters(f"eventbridge://{arn}")
    assert (letters.address.bus, letters.address.region) == (arn, "eu-west-1")


def test_the_event_itself_is_on_the_bus_as_it_came(bus: Bus) -> None:
    async def whole() -> None:
        letterbox = open_letters(bus.url())
        await letterbox.keep([given_up()])
        await letterbox.close()

    run(whole())
    (letter,) = bus.arrived(1)
    assert letter["event"] == json.loads(EVENT)
