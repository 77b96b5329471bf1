"""Events whose holders died: the first takeover runs like any event, later ones run one at a time for each handler."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from tests.engine.apps import app_on, both_ledgers, message, run

from semel import Context, Event, Semel
from semel.app import IncomingMessage, to_bytes
from semel.core.effect_policy import ISOLATED_FROM
from semel.core.engine import ISOLATED
from semel.core.handler_run import Isolation
from semel.core.inbox_flow import Acceptor, InboxWorker
from semel.ports import Inbox
from semel.values.claim import Granted
from semel.values.event import PLAIN

LEASE_S = 0.8  # a busy machine comes to its handler in this time
TWICE = ISOLATED_FROM - 1  # holders that vanished


async def vanish(app: Semel, *bodies: dict[str, Any], times: int = TWICE, lease_s: float = LEASE_S) -> None:
    """Claim each event as a worker does, and never settle it."""
    events = [app._decode(IncomingMessage(to_bytes(body)), PLAIN) for body in bodies]
    claims = [handler.claim_for(event) for event in events for handler in app._router.match(event)]
    for _ in range(times):
        assert all(isinstance(verdict, Granted) for verdict in await app.ledger.claim(claims))
        await asyncio.sleep(lease_s + 0.05)


class Slow:
    """A handler that runs until it may end, and counts how many of its runs overlap."""

    def __init__(self) -> None:
        self.running = self.most = 0
        self.attempts: dict[str, int] = {}
        self.may_end = asyncio.Event()

    async def __call__(self, event: Event, ctx: Context) -> None:
        self.running += 1
        self.most = max(self.most, self.running)
        self.attempts[event.id] = ctx.attempt
        await self.may_end.wait()
        self.running -= 1


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():  # noqa: ASYNC110 - handlers count, they announce nothing
            await asyncio.sleep(0.01)


def story(ledger: str, folder: Path, tell: Callable[[Semel], Awaitable[None]]) -> None:
    async def story() -> None:
        async with app_on(ledger, folder, lease=LEASE_S) as app:
            async with asyncio.timeout(30):  # a run that should not have begun waits for ever
                await tell(app)

    run(story())


@both_ledgers
def test_events_with_one_vanished_holder_run_beside_each_other(ledger: str, tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        slow = Slow()
        app.on("**", name="slow", timeout=None)(slow)
        bodies = [message() for _ in range(5)]
        await vanish(app, *bodies, times=1)
        running = asyncio.create_task(app.process_many(bodies))
        await until(lambda: slow.running == 5)
        slow.may_end.set()
        assert {outcome.status for outcome in await running} == {"done"}
        assert set(slow.attempts.values()) == {2}

    story(ledger, tmp_path, tell)


@both_ledgers
def test_events_with_two_vanished_holders_run_one_at_a_time_and_the_others_come_again(
    ledger: str, tmp_path: Path
) -> None:
    async def tell(app: Semel) -> None:
        slow = Slow()
        app.on("**", name="slow", timeout=None)(slow)
        bodies = [message(str(number)) for number in range(3)]
        await vanish(app, *bodies)
        running = asyncio.create_task(app.process_many(bodies))
        await until(lambda: slow.running == 1)
        waiting = await app.process(bodies[1])  # answered at once: it occupies no slot of its deliverer
        assert (waiting.status, waiting.reason) == ("busy", ISOLATED)
        fresh = asyncio.create_task(app.process(message()))
        await until(lambda: slow.running == 2)
        slow.may_end.set()
        assert [outcome.status for outcome in await running] == ["done", "busy", "busy"]
        assert (await fresh).status == "done"
        for body in bodies[1:]:
            assert (await app.process(body)).status == "done"
        # while they waited no attempt was counted
        assert {slow.attempts[body["id"]] for body in bodies} == {ISOLATED_FROM}

    story(ledger, tmp_path, tell)


@both_ledgers
def test_an_isolated_event_of_one_handler_keeps_no_other_handler_waiting(ledger: str, tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        slow = Slow()
        app.on("a", name="a", timeout=None)(slow)
        app.on("b", name="b", timeout=None)(slow)
        bodies = [message(type="a"), message(type="b")]
        await vanish(app, *bodies)
        running = asyncio.create_task(app.process_many(bodies))
        await until(lambda: slow.running == 2)
        slow.may_end.set()
        assert {outcome.status for outcome in await running} == {"done"}

    story(ledger, tmp_path, tell)


@both_ledgers
def test_an_event_in_its_last_attempt_shares_its_process_with_no_other_suspect(ledger: str, tmp_path: Path) -> None:
    """Each death of a poison event would else be counted for an innocent event of another handler, up to its end."""

    async def tell(app: Semel) -> None:
        slow = Slow()
        app.on("a", name="a", timeout=None, max_attempts=ISOLATED_FROM)(slow)
        app.on("b", name="b", timeout=None, max_attempts=ISOLATED_FROM + 1)(slow)
        last, other = message(type="a"), message(type="b")
        await vanish(app, last, other)
        running = asyncio.create_task(app.process(other))
        await until(lambda: slow.running == 1)
        assert (await app.process(last)).reason == ISOLATED
        slow.may_end.set()
        assert (await running).status == "done"
        assert (await app.process(last)).status == "done"
        assert set(slow.attempts.values()) == {ISOLATED_FROM}

    story(ledger, tmp_path, tell)


def test_slots_are_per_handler_and_exclusive_for_a_last_attempt() -> None:
    isolation = Isolation()

    def free(handler: str, last: bool = False) -> bool:
        def ask() -> bool:
            with isolation.slot(handler, last) as is_free:
                return is_free

        return contextvars.Context().run(ask)  # as from another task

    with isolation.slot("a", False):
        assert not free("a")
        assert free("b")
        assert not free("b", last=True)
    with isolation.slot("a", True):
        assert not free("a")
        assert not free("b")
    assert free("a")
    assert free("a", last=True)


@both_ledgers
def test_a_suspect_whose_handler_processes_another_suspect_does_not_wait_for_itself(
    ledger: str, tmp_path: Path
) -> None:
    async def tell(app: Semel) -> None:
        inner = message(type="inner")

        @app.on("inner", timeout=None)
        async def handle_inner(event: Event, ctx: Context) -> None: ...

        @app.on("outer", timeout=None, max_attempts=ISOLATED_FROM)
        async def handle_outer(event: Event, ctx: Context) -> str:
            return (await app.process(inner)).status

        outer = message(type="outer")
        await vanish(app, inner, outer)
        outcome = await asyncio.wait_for(app.process(outer), 5)
        assert (outcome.status, outcome.result) == ("done", "done")

    story(ledger, tmp_path, tell)


@both_ledgers
def test_an_event_whose_attempts_are_used_up_is_given_up_without_waiting(ledger: str, tmp_path: Path) -> None:
    async def tell(app: Semel) -> None:
        slow = Slow()
        app.on("**", name="slow", timeout=None, max_attempts=ISOLATED_FROM)(slow)
        suspect, poison = message(), message()
        await vanish(app, poison, times=ISOLATED_FROM)
        await vanish(app, suspect)
        running = asyncio.create_task(app.process(suspect))
        await until(lambda: slow.running == 1)
        assert (await app.process(poison)).status == "dead"
        slow.may_end.set()
        await running

    story(ledger, tmp_path, tell)


def test_inbox_items_that_wait_for_isolation_occupy_no_slot_and_are_not_taken_again_by_a_lapse(tmp_path: Path) -> None:
    """More of them wait than the lane has slots; a fresh event is done while one of them runs."""

    async def tell(app: Semel) -> None:
        assert isinstance(app.ledger, Inbox)
        may_end = asyncio.Event()
        attempts: dict[str, list[int]] = {}

        @app.on("**", timeout=None, lease=2.0)
        async def handle(event: Event, ctx: Context) -> None:
            attempts.setdefault(event.id, []).append(ctx.attempt)
            if event.id != "fresh":
                await may_end.wait()

        accept = Acceptor(app.ledger, app.planner, lambda: None).accept
        bodies = [message(f"suspect-{number}") for number in range(5)]
        for body in bodies:
            await accept(IncomingMessage(to_bytes(body)))
        await vanish(app, *bodies, lease_s=2.0)
        pump = InboxWorker(app.ledger, app.new_engine(app.ledger).process, app.handlers, 2)
        running = asyncio.create_task(pump.run())
        await until(lambda: len(attempts) == 1)
        await accept(IncomingMessage(to_bytes(message("fresh"))))
        pump.wake()
        await until(lambda: "fresh" in attempts)
        may_end.set()
        await until(lambda: len(attempts) == 6)
        await pump.stop(10)
        await running
        assert attempts == {body["id"]: [ISOLATED_FROM] for body in bodies} | {"fresh": [1]}
        assert await app.entries("dead") == []

    story("sqlite", tmp_path, tell)
