"""Letters of a real ledger on a bus, as they arrive behind its rule; and the commands of whoever operates it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from msgspec.structs import replace
from tests.cli.command import Ended, semel
from tests.dead_letter_targets.bus import SOON_S, AwsServer, Bus
from tests.dead_letter_targets.given_up import EVENT, given_up
from tests.facts import rendered
from tests.support.servers.process import free_port

from semel import Context, Event, Reject, Retry, Semel
from semel.cli import find, migrate
from semel.cli.find import Filters
from semel.cli.ledger_place import Place
from semel.core.dead_letter_store import LedgerWithDeadLetterTarget
from semel.dead_letter_targets import EventBridgeTarget
from semel.dead_letter_targets.eventbridge import NO_BUS
from semel.ports import DeadLetters, DeadLetterStore, Fact, Inbox, Migrates, TransactionalLedger
from semel.values.claim import Lease
from semel.values.errors import ConfigError, LedgerUnavailable, NotRecorded
from semel.values.secret import Secret
from semel.wiring import open_dead_letters, open_ledger

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


def test_a_dead_letter_is_on_the_bus_and_in_the_ledger(ledger: str, bus: Bus) -> None:
    async def whole() -> list[str]:
        async with an_app(ledger, bus.url()) as app:
            outcomes = await app.process_many([message("bad"), message("good", fine=True)])
            again = await app.process(message("bad"))
            return [outcome.status for outcome in (*outcomes, again)]

    assert run(whole()) == ["dead", "done", "duplicate"]
    (dead_letter,) = bus.arrived(1)
    (entry,) = semel("dead", "list", "--ledger", ledger, "--json").json
    assert (dead_letter["key"], dead_letter["reason"], dead_letter["handler"]) == (
        entry["key"],
        "unknown customer",
        "orders",
    )
    assert dead_letter["event"] == message("bad")
    shown = semel("dead", "show", entry["key"], "--ledger", ledger, "--json").json
    assert shown["event"] == message("bad"), "and it is kept whole in the ledger"


def test_a_dead_letter_on_the_bus_has_the_attempt_log(ledger: str, bus: Bus) -> None:
    async def whole() -> list[str]:
        async with an_app(ledger, bus.url()) as app:
            return [(await app.process(message("bad", tries=3))).status for _ in range(3)]

    assert run(whole()) == ["retry", "retry", "dead"]
    (dead_letter,) = bus.arrived(1)
    assert dead_letter["attempts"] == 3
    assert [(one["attempt"], one["reason"]) for one in dead_letter["attempt_log"]] == [
        (1, "the CRM answered 503 in attempt 1"),
        (2, "the CRM answered 503 in attempt 2"),
        (3, "unknown customer"),
    ]


def test_more_dead_letters_than_one_request_holds_all_arrive(bus: Bus) -> None:
    """By number, and by size: 23 small ones, and then 5 of 100 KB."""
    small = [given_up(f"small {number}") for number in range(23)]
    event = json.dumps(message("large", text="x" * 100_000)).encode()
    large = [given_up(f"large {number}", event=event) for number in range(5)]

    async def whole() -> None:
        dead_letter_store = EventBridgeTarget(bus.url())
        await dead_letter_store.keep([*small, *large])
        await dead_letter_store.close()

    run(whole())
    arrived = bus.arrived(28)
    assert {dead_letter["key"] for dead_letter in arrived} == {s.lease.claim.digest.hex() for s in (*small, *large)}
    assert not any("truncated" in dead_letter for dead_letter in arrived)


@pytest.mark.parametrize("oversize", ["truncate", "reference"])
def test_an_event_that_is_too_large_is_truncated_on_the_bus_only(oversize: str, ledger: str, bus: Bus) -> None:
    async def whole() -> str:
        async with an_app(ledger, bus.url(oversize=oversize)) as app:
            return (await app.process(message("bad", large=LARGE))).key

    key = run(whole())
    (dead_letter,) = bus.arrived(1)
    assert dead_letter["truncated"] is True
    assert dead_letter["size"] > 300_000
    assert ("event_text" in dead_letter) == (oversize == "truncate")
    assert semel("dead", "show", key, "--ledger", ledger, "--json").json["event"] == message("bad", large=LARGE)


def test_without_the_bus_nothing_is_given_up(ledger: str, bus: Bus) -> None:
    """The ledger is not told, so that the event comes again; and what has no letter does not wait."""
    ledger = f"{ledger}&margin_ms=0"
    nowhere = bus.url().replace(bus.name, "there-is-none")

    async def whole() -> None:
        async with an_app(ledger, nowhere, lease_s=1) as app:
            assert (await app.process(message("good", fine=True))).status == "done"
            with pytest.raises(NotRecorded):
                await app.process(message("bad"))
            assert await app.entries("dead") == []
        async with an_app(ledger, bus.url(), lease_s=1) as app, asyncio.timeout(SOON_S):
            outcome = await app.process(message("bad"))
            while outcome.status == "busy":  # until its lease is over
                await asyncio.sleep(outcome.after or 0.1)
                outcome = await app.process(message("bad"))
            assert outcome.status == "dead"

    run(whole())
    (dead_letter,) = bus.arrived(1)
    assert dead_letter["attempts"] == 2


def test_a_lost_lease_puts_nothing_on_the_bus(ledger: str, bus: Bus) -> None:
    async def whole() -> list[bool]:
        both = open_ledger(ledger, dead_letters=bus.url())
        try:
            return await both.settle([given_up("never claimed")])
        finally:
            await both.close()

    assert run(whole()) == [False]
    bus.arrived(0)


def test_the_wrapper_has_the_abilities_of_its_ledger_and_no_inbox(bus: Bus) -> None:
    for url, transactional in (("dynamodb://table?region=eu-central-1", True), ("redis://127.0.0.1:1", False)):
        both = open_ledger(url, dead_letters=bus.url())
        assert isinstance(both, LedgerWithDeadLetterTarget)
        assert isinstance(both, TransactionalLedger) == transactional == both.traits.transactional
        assert isinstance(both, DeadLetters)
        assert not isinstance(both, Inbox)
        assert isinstance(both.dead_letter_store, DeadLetterStore)


def test_a_malformed_record_is_put_on_the_bus(ledger: str, bus: Bus) -> None:
    """A stream brings what it cannot get rid of again and again: Lambda's handler puts it aside."""
    app = an_app(ledger, bus.url())
    assert isinstance(app.ledger, LedgerWithDeadLetterTarget)
    target = app.ledger.dead_letter_store
    assert isinstance(target, EventBridgeTarget)
    handler = app.lambda_handler(malformed_records=target.keep_malformed)
    data = "bm90IGpzb24="  # not json
    record = {"eventSource": "aws:kinesis", "eventID": "shard:1", "kinesis": {"sequenceNumber": "1", "data": data}}
    try:
        assert handler({"Records": [record]}) == {"batchItemFailures": []}
    finally:
        app._sync.call(app.close)  # in the loop that has its connections
    (dead_letter,) = bus.arrived(1)
    assert (dead_letter["state"], dead_letter["event_text"]) == ("malformed", "not json")
    assert "JSON" in dead_letter["reason"]


# ----------------------------------------------------------------------------------------------------- for people


def facts(url: str) -> dict[str, str]:
    async def ask() -> list[Fact]:
        bus = EventBridgeTarget(url)
        try:
            return await bus.diagnose()
        finally:
            await bus.close()

    return rendered(run(ask()))


def test_doctor_reports_whether_the_bus_has_rules(bus: Bus) -> None:
    assert facts(bus.url())["rules"] == "1"
    bus.disable_rules()
    assert facts(bus.url())["rules"].startswith("warning:")
    assert facts(bus.url().replace(bus.name, "nowhere"))["readable"] == f"error: {NO_BUS}"


def test_dead_letters_are_listed_from_the_ledger_and_a_bus_needs_no_migration(ledger: str, bus: Bus) -> None:
    async def whole() -> None:
        async with an_app(ledger, bus.url()) as app:
            await app.process(message("bad"))

    run(whole())
    where = Place(Secret(ledger), Secret(bus.url()))
    found, in_all, unreachable = run(find.list_dead_letters(where, ["dead"], 10, Filters()))
    assert ([entry.reason for entry in found], in_all, unreachable) == (["unknown customer"], 1, None)
    assert [store.role for store in run(migrate.run(where, dry_run=False)).stores] == ["ledger"]
    assert where.dead_letter_place is None, "nobody can look at a bus"
    assert bus.name in str(where)


def test_dead_letters_of_an_unavailable_ledger_are_not_read_from_the_bus(
    bus: Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.ledgers.dynamodb.client.DEADLINE_S", 0.5)
    nowhere = f"dynamodb://ledger?region=eu-central-1&endpoint=http://127.0.0.1:{free_port()}"
    with pytest.raises(LedgerUnavailable, match=r"DynamoDB.*\bledger\b"):
        run(find.list_dead_letters(Place(Secret(nowhere), Secret(bus.url())), ["dead"], 10, Filters()))


def test_a_dead_letter_whose_key_is_done_is_discarded_and_not_replayed(ledger: str, tmp_path: Path) -> None:
    """Its ledger was told of the success alone, as after a crash: the letter is listed for too long."""
    dead_letters = f"sqlite:///{tmp_path}/letters.db"

    async def whole() -> str:
        async with an_app(ledger, dead_letters) as app:
            done = await app.process(message("good", fine=True))
            lost = given_up("lost")
            claim = replace(lost.lease.claim, digest=bytes.fromhex(done.key))
            await app.ledger.dead_letter_store.keep([replace(lost, lease=Lease(claim, 1))])  # type: ignore[attr-defined]
            return done.key

    key = run(whole())
    config = tmp_path / "semel.toml"
    settings = f'ledger = "{ledger}"\ndead_letters = "{dead_letters}"\n[[endpoints]]\nmode = "inline"\n'
    config.write_text(settings, "utf-8")
    option = ("--reason", "it is done", "-c", str(config))
    assert [entry["key"] for entry in semel("dead", "list", "--json", "-c", str(config)).json] == [key]
    refused = semel("dead", "replay", key, *option)
    assert refused.code == 1
    assert key in refused.out
    assert "--force" in refused.out
    assert semel("dead", "discard", key, *option).code == 0
    assert semel("dead", "list", "--json", "-c", str(config)).json == []


@pytest.mark.parametrize(
    ("ledger_url", "dead_letters", "named"),
    [
        ("memory://", "eventbridge://letters", ["dead_letters", "redis://", "dynamodb://"]),
        ("sqlite:///semel.db", "eventbridge://letters", ["dead_letters", "SQLite"]),
        ("redis://127.0.0.1", "eventbridge://", ["dead_letters", "ARN"]),
        ("redis://127.0.0.1", "eventbridge://letters?oversize=s3", ["oversize='s3'", "truncate", "reference"]),
        ("redis://127.0.0.1", "eventbridge://letters?source=aws.mine", ["source='aws.mine'"]),
        ("redis://127.0.0.1", "eventbridge://letters?sauce=mine", ["'sauce'", "region", "oversize"]),
        ("redis://127.0.0.1", "eventbridge://letters?endpoint=ftp://host", ["endpoint", "http://", "https://"]),
        ("redis://127.0.0.1", "eventbridge://me:pa55word@letters", ["dead_letters", "credentials"]),
    ],
)
def test_an_unusable_bus_is_refused_and_the_error_names_the_setting(
    ledger_url: str, dead_letters: str, named: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        open_ledger(ledger_url, dead_letters=dead_letters)
    assert all(name in str(refused.value) for name in named), refused.value
    assert "pa55word" not in str(refused.value)


def test_the_bus_of_another_account_is_named_by_its_arn() -> None:
    arn = "arn:aws:events:eu-west-1:123456789012:event-bus/team/letters"
    dead_letters = open_dead_letters(f"eventbridge://{arn}")
    assert (dead_letters.address.bus, dead_letters.address.region) == (arn, "eu-west-1")


def test_the_event_is_on_the_bus_unchanged(bus: Bus) -> None:
    async def whole() -> None:
        dead_letter_store = open_dead_letters(bus.url())
        await dead_letter_store.keep([given_up()])
        await dead_letter_store.close()

    run(whole())
    (dead_letter,) = bus.arrived(1)
    assert dead_letter["event"] == json.loads(EVENT)


def test_a_bus_is_configured_in_the_settings(ledger: str, bus: Bus, tmp_path: Path) -> None:
    def configured(ledger: str, dead_letters: str, *command: str) -> Ended:
        text = f'ledger = "{ledger}"\ndead_letters = "{dead_letters}"\n[[endpoints]]\nmode = "inline"\n'
        (tmp_path / "semel.toml").write_text(text, "utf-8")
        return semel(*command, "-c", str(tmp_path / "semel.toml"))

    store = dict(configured(ledger, bus.url(), "doctor", "--json").json["store"])
    assert (store["dead letters, bus"], store["dead letters, rules"]) == (bus.name, "1")
    for command in (("dead", "list"), ("status",), ("migrate",)):
        assert configured(ledger, bus.url(), *command).code == 0
    refused = configured("sqlite:///semel.db", bus.url(), "doctor")
    assert refused.code == 2
    assert "semel.toml:2: dead_letters: SQLite " in refused.err
    assert "oversize='1'" in configured(ledger, "eventbridge://letters?oversize=1", "doctor").err
