"""What keeps a destination from being hammered, and from holding up the others."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiohttp import web
from tests.service.destinations.servers import (
    Clock,
    Ctx,
    Request,
    Sink,
    answering,
    closed_port,
    fresh_key,
    opened,
    outcome_of,
    raw,
    run,
    saying,
    sink,
    until,
)

from semel.destinations import Destination, Forward
from semel.values.outcome import NotNow, Reject, Retry


class Gate:
    """A sink's answer that waits until it is let go."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.opened = asyncio.Event()

    async def __call__(self, _: Request) -> web.Response:
        await self.opened.wait()
        return web.Response(status=self.status)


async def kinds_of(forward: Forward, times: int, attempt: int = 1) -> list[type]:
    return [type(await outcome_of(forward, ctx=Ctx(fresh_key(), attempt))) for _ in range(times)]


# -------------------------------------------------------------------------------------------------- the breaker


@pytest.mark.parametrize("status", [500, 503, 401])
def test_the_breaker_opens_and_the_destination_is_left_alone(status: int) -> None:
    async def story() -> None:
        clock = Clock()
        options: dict[str, Any] = {"clock": clock, "breaker_failures": 3, "breaker_open_s": 10}
        async with sink(answering(status)) as server, opened(server.url, **options) as crm:
            forward = Forward(crm)
            assert (crm.state, forward.ready_in_s(), forward.concurrency) == ("closed", 0, 16)
            assert await kinds_of(forward, 3) == [Retry] * 3
            assert (crm.state, forward.ready_in_s(), forward.concurrency) == ("open", 10, 1)
            refusals = [await outcome_of(forward) for _ in range(5)]
            assert all(isinstance(said, NotNow) and said.after >= 10 for said in refusals)
            assert len(server.requests) == 3
            assert "crm (127.0.0.1)" in refusals[0].reason

    run(story())


@pytest.mark.parametrize("status", [200, 400, 404, 409, 422, 425, 302])
def test_answers_below_500_keep_the_breaker_closed(status: int) -> None:
    async def story() -> str:
        async with sink(answering(status)) as server, opened(server.url, breaker_failures=2) as crm:
            await kinds_of(Forward(crm), 5)
            assert len(server.requests) == 5
            return crm.state

    assert run(story()) == "closed"


def test_half_open_lets_one_request_through_and_its_success_closes_the_breaker() -> None:
    async def story() -> None:
        clock = Clock()
        async with sink(answering(500)) as server, opened(server.url, clock=clock, breaker_failures=2) as crm:
            forward = Forward(crm)
            assert await kinds_of(forward, 2) == [Retry] * 2
            clock.now += 60
            assert (crm.state, forward.ready_in_s()) == ("half-open", 0)
            server.answer = gate = Gate()
            racers = [asyncio.create_task(outcome_of(forward)) for _ in range(10)]
            await until(lambda: sum(racer.done() for racer in racers) == 9 and len(server.requests) >= 3)
            assert forward.ready_in_s() > 0
            gate.opened.set()
            outcomes = await asyncio.gather(*racers)
            assert sum(isinstance(outcome, NotNow) for outcome in outcomes) == 9
            assert [outcome for outcome in outcomes if not isinstance(outcome, NotNow)] == [{"status": 200}]
            assert (crm.state, forward.concurrency, len(server.requests)) == ("closed", 16, 3)
            assert await kinds_of(forward, 3) == [dict] * 3

    run(story())


def test_a_probe_that_fails_opens_it_again_for_longer() -> None:
    async def story() -> None:
        clock = Clock()
        options: dict[str, Any] = {"clock": clock, "breaker_failures": 1, "breaker_open_s": 10}
        async with sink(answering(500)) as server, opened(server.url, **options) as crm:
            assert await kinds_of(Forward(crm), 1) == [Retry]
            clock.now += 10
            assert await kinds_of(Forward(crm), 2) == [Retry, NotNow]
            assert crm.ready_in_s() == 20
            assert len(server.requests) == 2

    run(story())


def test_a_probe_that_was_not_sent_counts_as_no_attempt() -> None:
    """An outage of hours must not turn the events that happen to probe it into dead letters."""

    async def story() -> None:
        clock = Clock()
        url = f"http://127.0.0.1:{await closed_port()}/"
        async with opened(url, clock=clock, breaker_failures=1, breaker_open_s=10) as crm:
            assert await kinds_of(Forward(crm), 1) == [Retry]
            for open_s in (20, 40, 60):
                clock.now += crm.ready_in_s()
                came_to = await outcome_of(Forward(crm))
                assert isinstance(came_to, NotNow)
                assert came_to.after == open_s
                assert came_to.reason.startswith("crm (127.0.0.1): ")

    run(story())


def test_callers_that_lose_patience_open_the_breaker_like_timeouts() -> None:
    async def story() -> None:
        async with raw(saying(hold=True)) as server, opened(server.url, breaker_failures=2) as crm:
            for asked in (1, 2):
                task = asyncio.create_task(outcome_of(Forward(crm)))
                await until(lambda asked=asked: len(server.requests) == asked)  # type: ignore[misc]
                task.cancel()
                await asyncio.wait([task])
            assert crm.state == "open"

    run(story())


def test_routes_to_one_destination_share_its_breaker() -> None:
    async def story() -> None:
        async with sink(answering(500)) as server, opened(server.url, breaker_failures=2) as crm:
            await kinds_of(Forward(crm), 2)
            assert await kinds_of(Forward(crm, "data"), 1) == [NotNow]
            assert len(server.requests) == 2

    run(story())


# ------------------------------------------------------------------------------------------------- concurrency


def test_there_are_never_more_requests_at_a_time_than_allowed_and_everything_gets_there() -> None:
    async def story() -> Sink:
        async def answer(_: Request) -> web.Response:
            await asyncio.sleep(0.005)
            return web.Response()

        async def insist(crm: Destination) -> None:
            ctx = Ctx(fresh_key())
            said = await outcome_of(Forward(crm), ctx=ctx)
            while isinstance(said, NotNow):
                await asyncio.sleep(said.after / 20)
                said = await outcome_of(Forward(crm), ctx=ctx)
            assert said == {"status": 200}

        async with sink(answer) as server, opened(server.url, concurrency=4) as crm:
            await asyncio.gather(*[insist(crm) for _ in range(60)])
            return server

    server = run(story())
    assert server.at_work_most == 4
    assert len({request.headers["Idempotency-Key"] for request in server.requests}) == len(server.requests) == 60


def test_few_requests_wait_for_a_slot_and_the_others_are_refused_at_once() -> None:
    async def story() -> None:
        gate = Gate()
        async with sink(gate) as server, opened(server.url, concurrency=2) as crm:
            tasks = [asyncio.create_task(outcome_of(Forward(crm))) for _ in range(6)]
            await until(lambda: sum(task.done() for task in tasks) == 2 and len(server.requests) == 2)
            gate.opened.set()  # two were told, two wait, two are under way
            outcomes = await asyncio.gather(*tasks)
            told = [outcome for outcome in outcomes if isinstance(outcome, NotNow)]
            assert len(told) in (2, 3, 4)  # on a slow machine a wait may be in vain
            assert all(0 < one.after < 5 and "2" in one.reason for one in told)
            assert server.at_work_most == 2

    run(story())


def test_a_wait_for_a_slot_ends_before_the_timeout_of_the_handler() -> None:
    async def story() -> None:
        gate = Gate()
        async with sink(gate) as server, opened(server.url, concurrency=1) as crm:
            first = asyncio.create_task(outcome_of(Forward(crm)))
            await until(lambda: len(server.requests) == 1)
            second = asyncio.create_task(outcome_of(Forward(crm)))
            assert isinstance(await second, NotNow)
            assert not first.done()
            gate.opened.set()
            assert await first == {"status": 200}
            assert await outcome_of(Forward(crm)) == {"status": 200}  # no turn was lost
            assert len(server.requests) == 2

    run(story())


def test_a_request_that_waited_checks_the_destination_again() -> None:
    async def story() -> None:
        gate = Gate(500)
        async with sink(gate) as server, opened(server.url, concurrency=1, breaker_failures=1) as crm:
            tasks = [asyncio.create_task(outcome_of(Forward(crm))) for _ in range(2)]
            await until(lambda: len(server.requests) == 1)
            gate.opened.set()
            assert [type(outcome) for outcome in await asyncio.gather(*tasks)] == [Retry, NotNow]
            assert len(server.requests) == 1

    run(story())


def test_a_dead_destination_does_not_delay_another() -> None:
    async def story() -> None:
        async with raw(saying(hold=True)) as hole, sink() as server:
            async with opened(hole.url, concurrency=4) as dead, opened(server.url, concurrency=4) as alive:
                stuck = [asyncio.create_task(outcome_of(Forward(dead))) for _ in range(50)]
                await until(lambda: len(hole.requests) == 4)
                assert await kinds_of(Forward(alive), 50) == [dict] * 50
                assert sum(not task.done() for task in stuck) >= 4
                for task in stuck:
                    task.cancel()
                await asyncio.wait(stuck)

    run(story())


# ------------------------------------------------------------------------------------------------ slowing down


@pytest.mark.parametrize("status", [429, 503])
def test_a_destination_that_asks_for_a_pause_gets_it_from_everybody(status: int) -> None:
    async def story() -> None:
        clock = Clock()
        answer = answering(status, Retry_After="30")
        async with sink(answer) as server, opened(server.url, clock=clock, random=lambda: 0.0) as crm:
            await outcome_of(Forward(crm))
            assert (crm.state, crm.ready_in_s()) == ("closed", 30)
            assert await kinds_of(Forward(crm), 3) == [NotNow] * 3
            assert len(server.requests) == 1
            clock.now += 30
            server.answer = answering()
            assert await kinds_of(Forward(crm), 2) == [dict] * 2

    run(story())


def test_one_answer_cannot_stop_a_destination_for_long() -> None:
    async def story() -> float:
        answer = answering(429, Retry_After="86400")
        async with sink(answer) as server, opened(server.url, clock=Clock(), random=lambda: 0.0) as crm:
            said = await outcome_of(Forward(crm))
            assert said.after == 86_400  # this event waits as long as it was asked to
            return crm.ready_in_s()

    assert run(story()) == 60


def test_429_without_a_time_backs_off_further_each_time_and_forgets_it_at_a_success() -> None:
    async def story() -> None:
        clock = Clock()
        async with sink(answering(429)) as server, opened(server.url, clock=clock, random=lambda: 1.0) as crm:
            waits = []
            for _ in range(8):
                waits.append((await outcome_of(Forward(crm))).after)
                clock.now += crm.ready_in_s()
            assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
            server.answer = answering()
            assert await kinds_of(Forward(crm), 1) == [dict]
            server.answer = answering(429)
            assert (await outcome_of(Forward(crm))).after == 1

    run(story())


def test_requests_that_were_under_way_together_back_off_as_one() -> None:
    async def story() -> None:
        gate = Gate(429)
        async with sink(gate) as server, opened(server.url, clock=Clock(), random=lambda: 1.0) as crm:
            tasks = [asyncio.create_task(outcome_of(Forward(crm))) for _ in range(10)]
            await until(lambda: len(server.requests) == 10)
            gate.opened.set()
            assert [outcome.after for outcome in await asyncio.gather(*tasks)] == [1] * 10

    run(story())


# ---------------------------------------------------------------------------------------------- the retry budget


def test_retries_beyond_the_budget_are_not_made_now_and_first_tries_still_are() -> None:
    async def story() -> None:
        clock = Clock()
        options: dict[str, Any] = {"clock": clock, "reserve": 2.0, "retry_budget": 0.5}
        async with sink(answering(500)) as server, opened(server.url, **options) as crm:
            assert await kinds_of(Forward(crm), 4, attempt=2) == [Retry, Retry, NotNow, NotNow]
            assert len(server.requests) == 2
            assert await kinds_of(Forward(crm), 2, attempt=1) == [Retry, Retry]  # which earn one retry
            assert await kinds_of(Forward(crm), 2, attempt=7) == [Retry, NotNow]
            clock.now += 1
            assert await kinds_of(Forward(crm), 2, attempt=2) == [Retry, NotNow]

    run(story())


def test_after_an_outage_a_backlog_of_retries_drains_as_it_succeeds() -> None:
    async def story() -> None:
        options: dict[str, Any] = {"clock": Clock(), "reserve": 1.0, "retry_budget": 0.0}
        async with sink() as server, opened(server.url, **options) as crm:
            assert await kinds_of(Forward(crm), 100, attempt=3) == [dict] * 100
            server.answer = answering(422)
            assert await kinds_of(Forward(crm), 10, attempt=3) == [Reject] * 10  # decided: nothing is repeated
            server.answer = answering(500)
            assert await kinds_of(Forward(crm), 2, attempt=3) == [Retry, NotNow]

    run(story())


def test_a_part_that_is_missing_costs_nothing() -> None:
    async def story() -> None:
        options: dict[str, Any] = {"clock": Clock(), "reserve": 1.0, "retry_budget": 0.0}
        async with sink(answering(500)) as server, opened(server.url, **options) as crm:
            assert await kinds_of(Forward(crm, "nowhere"), 5, attempt=2) == [Reject] * 5
            assert await kinds_of(Forward(crm), 1, attempt=2) == [Retry]
            assert len(server.requests) == 1

    run(story())
