"""A key that cannot be computed concerns its handler alone: the event becomes a dead letter of that handler."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, LedgerUnavailable, MalformedEvent, Outcome, Semel, keys, latest
from semel.app import IncomingMessage, to_bytes
from semel.core.inbox_flow import Acceptor, InboxWorker
from semel.core.routing import NO_KEY
from semel.ports import DeadLetters, Entry, Inbox
from semel.values.claim import Granted

LAPSED_S = 2.1  # a little longer than a lease that a loaded machine keeps


def bridged(id: str = "bus-1", **detail: Any) -> dict[str, Any]:
    body = {"eventId": "e-1", "eventType": "interaction.created", **detail}
    return {"id": id, "detail-type": "interaction", "source": "genesys.cloud", "detail": body}


class Desk:
    """Two handlers of one event: the key of `audit` is the transport's, the key of `crm` is a field."""

    def __init__(self, app: Semel, key: keys.Strategy | None = None, **options: Any) -> None:
        self.app = app
        self.ran: list[str] = []
        self.keys: list[str] = []
        app.on("**", key=keys.delivery, name="audit")(lambda event, ctx: self.ran.append("audit"))

        @app.on("**", key=key or keys.fields("detail.interactionId"), name="crm", **options)
        async def crm(event: Event, ctx: Context) -> None:
            self.ran.append("crm")
            self.keys.append(ctx.key)

    async def dead(self) -> list[Entry]:
        return list(await self.app.entries("dead"))


def story(ledger: str, folder: Path, tell: Callable[[Desk], Awaitable[None]], **options: Any) -> None:
    async def story() -> None:
        async with app_on(ledger, folder) as app:
            await tell(Desk(app, **options))

    run(story())


def parts(outcome: Outcome) -> dict[str, str]:
    return {part.handler: part.status for part in outcome.parts}


@both_ledgers
def test_the_other_handlers_run_and_the_event_is_a_dead_letter_of_the_one(ledger: str, tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        outcome = await desk.app.process(bridged())
        assert parts(outcome) == {"audit": "done", "crm": "dead"}
        assert outcome.status == "dead"
        assert outcome.final
        assert outcome.parts[1].reason.startswith(NO_KEY)
        assert desk.ran == ["audit"]
        (dead_letter,) = await desk.dead()
        assert (dead_letter.handler, dead_letter.key, dead_letter.text) == ("crm", outcome.parts[1].key, "e-1")
        assert "detail.interactionId" in dead_letter.reason
        assert dead_letter.event == to_bytes(bridged())

    story(ledger, tmp_path, tell)


@both_ledgers
def test_a_redelivery_is_a_duplicate_and_no_second_dead_letter(ledger: str, tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        outcomes = await desk.app.process_many([bridged("bus-1"), bridged("bus-1"), bridged("bus-2")])
        assert [parts(outcome)["crm"] for outcome in outcomes] == ["dead", "duplicate", "duplicate"]
        assert [parts(outcome)["audit"] for outcome in outcomes] == ["done", "duplicate", "done"]
        assert len(await desk.dead()) == 1

    story(ledger, tmp_path, tell)


@both_ledgers
def test_another_content_under_the_same_id_is_another_dead_letter(ledger: str, tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        await desk.app.process_many([bridged(note="first"), bridged(note="second"), bridged(eventId="e-2")])
        assert len(await desk.dead()) == 3

    story(ledger, tmp_path, tell)


@both_ledgers
def test_events_without_identity_are_told_apart_by_their_whole_document(ledger: str, tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        bodies = [{"type": "t", "createdTime": at, "data": {"a": 1}} for at in (1, 2, 1)]
        outcomes = await desk.app.process_many(bodies)
        assert [parts(outcome)["crm"] for outcome in outcomes] == ["dead", "dead", "duplicate"]
        assert len(await desk.dead()) == 4, "two of each handler: there is no transport id either"

    story(ledger, tmp_path, tell)


def broken(event: Event) -> str:
    raise ZeroDivisionError("a bug in the key function")


def malformed(event: Event) -> str:
    raise MalformedEvent("said by a key function")


WITHOUT_KEY: dict[str, dict[str, Any]] = {
    "a function that raises": {"key": broken},
    "a function that raises an error of ours": {"key": malformed},
    "a function that returns None": {"key": lambda event: None},
    "an empty key": {"key": lambda event: ""},
    "a key that is too long": {"key": lambda event: "x" * 256},
    "a key with a control character": {"key": lambda event: "a\nb"},
    "a tier": {"key": keys.tiers(keys.fields("detail.missing"), keys.event)},
    "the subject of an order": {"key": keys.event, "order": latest(subject="detail.missing", by="detail.at")},
    "the time of an order": {"key": keys.event, "order": latest(subject="detail.eventId", by="detail.missing")},
    "a time that is none": {"key": keys.event, "order": latest(subject="detail.eventId", by="detail.eventType")},
}


@both_ledgers
@pytest.mark.parametrize("name", WITHOUT_KEY)
def test_whatever_of_a_key_cannot_be_computed_it_is_a_dead_letter(ledger: str, tmp_path: Path, name: str) -> None:
    async def tell(desk: Desk) -> None:
        outcome = await desk.app.process(bridged())
        assert parts(outcome) == {"audit": "done", "crm": "dead"}
        (dead_letter,) = await desk.dead()
        assert dead_letter.reason.startswith(NO_KEY)
        assert desk.ran == ["audit"]

    story(ledger, tmp_path, tell, **WITHOUT_KEY[name])


@both_ledgers
@pytest.mark.parametrize("id", ["", "x" * 300, "tab\there", "\x85", "é" * 300])
def test_an_id_that_cannot_be_a_key_is_kept_and_shown(ledger: str, tmp_path: Path, id: str) -> None:
    async def story() -> None:
        async with app_on(ledger, tmp_path) as app:
            app.on("**", name="h")(lambda event, ctx: None)
            outcome = await app.process({"id": id, "type": "t", "data": {}})
            assert outcome.status == "dead"
            (dead_letter,) = await app.entries("dead")
            assert dead_letter.text
            assert dead_letter.text.isprintable()

    run(story())


@both_ledgers
@pytest.mark.parametrize("effect", ["transaction", "keyed", "fenced", "retry", "park"])
def test_the_effect_makes_no_difference_and_the_handler_never_runs(ledger: str, tmp_path: Path, effect: Any) -> None:
    if effect == "transaction" and ledger == "memory":
        return  # it has none

    async def tell(desk: Desk) -> None:
        assert parts(await desk.app.process(bridged())) == {"audit": "done", "crm": "dead"}
        assert desk.ran == ["audit"]

    story(ledger, tmp_path, tell, effect=effect)


def test_no_key_of_a_user_is_the_key_of_such_a_dead_letter(tmp_path: Path) -> None:
    """Keys are flat sequences of texts, whatever a strategy returns."""

    async def story() -> None:
        app = Semel("memory://")
        app.on("**", key=keys.fields("detail.missing"), name="h")(lambda event, ctx: None)
        (handler,) = app.handlers
        event, _ = app.planner.read(IncomingMessage(to_bytes(bridged())))
        fallback = handler.fallback_digest(event)
        namespace = handler.namespaces[""]
        known = (event.origin, event.type, event.topic, *event.identity)
        for key in [known, (*known, ""), ("", *known)]:
            assert namespace.digest(key) != fallback

    run(story())


@both_ledgers
@pytest.mark.parametrize("crashes", [1, 3])
def test_a_crash_between_claim_and_settle_leaves_one_dead_letter_with_its_reason(
    ledger: str, tmp_path: Path, crashes: int
) -> None:
    """More crashes than `max_attempts`: the reason is still that of the key."""

    async def tell(desk: Desk) -> None:
        plan = desk.app.planner.plan(IncomingMessage(to_bytes(bridged())))
        assert not isinstance(plan, Outcome)
        for attempt in range(1, crashes + 1):
            (granted,) = await desk.app.ledger.claim(plan.claims[1:])
            assert isinstance(granted, Granted)
            assert granted.attempt == attempt
            await asyncio.sleep(0.15)  # its holder has vanished, and its lease lapses
        outcomes = [await desk.app.process(bridged()) for _ in range(2)]
        assert [parts(outcome)["crm"] for outcome in outcomes] == ["dead", "duplicate"]
        (dead_letter,) = await desk.dead()
        assert dead_letter.reason.startswith(NO_KEY)
        assert desk.ran == ["audit"]

    story(ledger, tmp_path, tell, lease=0.1, timeout=0.05, max_attempts=2, effect="park")


def test_when_the_dead_letter_cannot_be_recorded_the_delivery_is_not_answered(tmp_path: Path) -> None:
    async def tell(desk: Desk) -> None:
        settle, full = desk.app.ledger.settle, True

        async def refusing(settlements: Any) -> Any:
            if full and any(one.dead_letter is not None for one in settlements):
                raise LedgerUnavailable("no room for dead letters")
            return await settle(settlements)

        desk.app.ledger.settle = refusing  # type: ignore[method-assign]
        with pytest.raises(LedgerUnavailable):
            await desk.app.process(bridged())
        full = False
        await asyncio.sleep(LAPSED_S)
        assert parts(await desk.app.process(bridged())) == {"audit": "duplicate", "crm": "dead"}

    story("sqlite", tmp_path, tell, lease=LAPSED_S - 0.1, timeout=1.0)


def test_nothing_runs_without_the_ledger_where_a_dead_letter_must_be_kept() -> None:
    async def story() -> None:
        app = Semel("memory://")
        app.on("**", name="all", fail_open=True)(lambda event, ctx: None)
        app.on("**", name="one", fail_open=True, key=keys.fields("data.customer"))(lambda event, ctx: None)
        for body, may_run in ((message(customer="c"), True), (message(), False)):
            plan = app.planner.plan(IncomingMessage(to_bytes(body)))
            assert not isinstance(plan, Outcome)
            assert plan.fails_open is may_run

    run(story())


# ------------------------------------------------------------------------------------------------------- the inbox


class Inboxed(Desk):
    """The same behind an inbox."""

    def __init__(self, folder: Path, key: keys.Strategy | None = None, **options: Any) -> None:
        super().__init__(Semel(f"sqlite:///{folder}/semel.db", lease=5), key, **options)
        assert isinstance(self.app.ledger, Inbox)
        self.inbox: Inbox = self.app.ledger

    async def accept(self, body: dict[str, Any]) -> Outcome:
        return await Acceptor(self.inbox, self.app.planner, lambda: None).accept(IncomingMessage(to_bytes(body)))

    async def handle(self) -> None:
        pump = InboxWorker(self.inbox, self.app.new_engine(self.app.ledger).process, self.app.handlers, 8)
        await pump.run_once()
        await pump.stop(10)

    async def replay(self) -> None:
        assert isinstance(self.app.ledger, DeadLetters)
        (dead_letter,) = await self.dead()
        assert await self.app.ledger.replay(dead_letter.key, "the field is another one now", "anna")


def test_the_inbox_accepts_the_event_for_each_handler_and_one_becomes_a_dead_letter(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Inboxed(tmp_path)
        assert parts(await desk.accept(bridged())) == {"audit": "accepted", "crm": "accepted"}
        assert parts(await desk.accept(bridged())) == {"audit": "duplicate", "crm": "duplicate"}
        await desk.handle()
        assert desk.ran == ["audit"]
        (dead_letter,) = await desk.dead()
        assert (dead_letter.handler, dead_letter.reason.startswith(NO_KEY)) == ("crm", True)
        assert parts(await desk.accept(bridged())) == {"audit": "duplicate", "crm": "duplicate"}
        assert parts(await desk.app.process(bridged())) == {"audit": "duplicate", "crm": "duplicate"}
        await desk.app.close()

    run(story())


def test_a_replay_without_a_change_is_a_dead_letter_again(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Inboxed(tmp_path)
        await desk.app.process(bridged())
        await desk.replay()
        await desk.handle()
        (dead_letter,) = await desk.dead()
        assert (dead_letter.generation, dead_letter.reason.startswith(NO_KEY)) == (2, True)
        await desk.app.close()

    run(story())


@pytest.mark.parametrize("by_inbox", [False, True])
def test_a_replay_after_a_change_of_settings_computes_the_key_anew(tmp_path: Path, by_inbox: bool) -> None:
    async def story() -> None:
        before = Inboxed(tmp_path)
        if by_inbox:
            await before.accept(bridged())
            await before.handle()
        else:
            await before.app.process(bridged())
        (dead_letter,) = await before.dead()
        await before.app.close()
        after = Inboxed(tmp_path, keys.fields("detail.eventId"))
        await after.replay()
        await after.handle()
        assert after.ran == ["crm"]
        assert after.keys != [dead_letter.key], "the handler sees the key of its event"
        assert await after.dead() == []
        again = await after.app.process(bridged())
        assert (parts(again)["crm"], again.parts[1].key) == ("duplicate", after.keys[0])
        await after.app.close()
        old = Inboxed(tmp_path)  # a process with the settings from before
        assert parts(await old.app.process(bridged()))["crm"] == "duplicate"
        assert await old.dead() == []
        await old.app.close()

    run(story())


def test_a_replay_of_what_was_done_meanwhile_runs_nothing(tmp_path: Path) -> None:
    async def story() -> None:
        before = Inboxed(tmp_path)
        await before.app.process(bridged())
        await before.app.close()
        after = Inboxed(tmp_path, keys.fields("detail.eventId"))
        assert parts(await after.app.process(bridged()))["crm"] == "done"
        await after.replay()
        await after.handle()
        assert after.ran == ["crm"]
        assert await after.inbox.depths() == []
        assert await after.dead() == []
        await after.app.close()

    run(story())


def test_a_discarded_one_still_answers_its_copies(tmp_path: Path) -> None:
    async def story() -> None:
        desk = Inboxed(tmp_path)
        await desk.app.process(bridged())
        (dead_letter,) = await desk.dead()
        assert isinstance(desk.app.ledger, DeadLetters)
        assert await desk.app.ledger.discard(dead_letter.key, "no use", "anna")
        assert parts(await desk.app.process(bridged()))["crm"] == "duplicate"
        assert await desk.dead() == []
        await desk.app.close()

    run(story())


def test_what_is_no_event_is_malformed_as_before() -> None:
    async def story() -> None:
        app = Semel("memory://")
        app.on("**", name="h")(lambda event, ctx: None)
        with pytest.raises(MalformedEvent):
            await app.process({"neither": 1})
        assert await app.entries() == []

    run(story())


def test_an_event_that_only_such_a_handler_wants_is_dead(tmp_path: Path) -> None:
    async def story() -> None:
        async with app_on("sqlite", tmp_path) as app:
            app.on("**", key=lambda event: str(event.body["order"]), name="h")(lambda event, ctx: None)
            outcomes = await app.process_many([message(order=1), message(), message(order="")])
            assert [outcome.status for outcome in outcomes] == ["done", "dead", "dead"]

    run(story())
