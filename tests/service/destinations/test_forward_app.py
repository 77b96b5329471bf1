"""Forwarding through the whole flow: a real app, a real sink."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import Any

import pytest
from aiohttp import web
from tests.engine.apps import message
from tests.service.destinations.servers import (
    Request,
    answering,
    closed_port,
    destination,
    opened,
    raw,
    run,
    saying,
    sink,
)

from semel import Outcome, Semel
from semel.core import handler_run
from semel.core.clock import steady_s
from semel.destinations import Forward
from semel.http_client.client import _Connections


def app_with(forward: Forward, **options: Any) -> Semel:
    app = Semel("memory://", random=lambda: 0.0)  # backoff of nothing
    app.on("interaction.created", name="crm", **{"effect": "keyed", **options})(forward)
    return app


async def to_its_end(app: Semel, body: Any) -> Outcome:
    """Delivered again for as long as the app asks for it."""
    async with asyncio.timeout(60):
        outcome = await app.process(body)
        while not outcome.final:
            await asyncio.sleep(min(outcome.after or 0, 0.05))
            outcome = await app.process(body)
        return outcome


def test_an_event_is_forwarded_once_and_copies_get_its_stored_result() -> None:
    async def story() -> None:
        async with sink(answering(201, '{"ticket":7}')) as server, opened(server.url) as crm:
            async with app_with(Forward(crm, "data")) as app:
                body = message(customer="c-1")
                first, again = await app.process(body), await app.process(body)
        assert (first.status, again.status) == ("done", "duplicate")
        assert first.result == again.result == {"status": 201, "body": {"ticket": 7}}
        (request,) = server.requests
        assert request.headers["Idempotency-Key"] == first.key
        assert request.body == b'{"customer":"c-1"}'

    run(story())


def test_a_retry_sends_the_same_bytes_under_the_same_key() -> None:
    async def story() -> None:
        answers = [answering(500), answering(503), answering(200)]

        async def answer(request: Request) -> web.StreamResponse:
            return await answers[len(server.requests) - 1](request)

        async with sink(answer) as server, opened(server.url) as crm:
            async with app_with(Forward(crm)) as app:
                outcome = await to_its_end(app, message())
        assert outcome.status == "done"
        assert {request.headers["Idempotency-Key"] for request in server.requests} == {outcome.key}
        assert len({request.body for request in server.requests}) == 1
        assert [request.headers["Semel-Attempt"] for request in server.requests] == ["1", "2", "3"]

    run(story())


def test_a_destination_that_asks_for_less_burns_no_attempts() -> None:
    async def story() -> None:
        async def answer(request: Request) -> web.StreamResponse:
            return await answering(429 if len(server.requests) < 5 else 200, Retry_After="0")(request)

        async with sink(answer) as server, opened(server.url, random=lambda: 0.0) as crm:
            async with app_with(Forward(crm), max_attempts=2) as app:
                outcome = await to_its_end(app, message())
        assert outcome.status == "done"
        assert [request.headers["Semel-Attempt"] for request in server.requests] == ["1"] * 5

    run(story())


def test_a_refused_event_is_dead_with_the_destination_s_words() -> None:
    async def story() -> Outcome:
        async with sink(answering(422, "no such customer")) as server, opened(server.url) as crm:
            async with app_with(Forward(crm)) as app:
                return await app.process(message())

    outcome = run(story())
    assert outcome.status == "dead"
    assert all(part in outcome.reason for part in ("crm (127.0.0.1)", "422", "no such customer"))


@pytest.mark.parametrize("status", [0, 500, 503])
def test_a_parking_route_lists_unknown_outcomes_as_uncertain(status: int) -> None:
    said = f"HTTP/1.1 {status} No\r\nContent-Length: 0\r\n\r\n".encode() if status else b""

    async def story() -> tuple[Outcome, Outcome, int]:
        async with raw(saying(said)) as server, opened(server.url) as crm:
            async with app_with(Forward(crm, park=True), effect="park") as app:
                body = message()
                return await app.process(body), await app.process(body), len(server.requests)

    first, again, requests = run(story())
    assert (first.status, requests) == ("uncertain", 1)
    assert again.final


def test_a_parking_route_tries_again_where_nothing_was_sent() -> None:
    async def story() -> None:
        port = await closed_port()
        crm = destination(f"http://127.0.0.1:{port}/")
        async with app_with(Forward(crm, park=True), effect="park") as app:
            body = message()
            assert (await app.process(body)).status == "retry"
            async with sink(port=port) as server:
                assert (await to_its_end(app, body)).status == "done"
                assert len(server.requests) == 1
            await crm.close()

    run(story())


def test_a_sink_that_honours_the_key_sees_every_effect_once_whatever_happens_on_the_way() -> None:
    """Replies are lost after the effect, requests are refused, copies come at the same time."""
    dice = random.Random(7)
    effects: Counter[str] = Counter()
    lost = 0

    async def answer(request: Request) -> web.StreamResponse:
        nonlocal lost
        fate = dice.random()
        if fate < 0.15:
            return web.Response(status=503)
        if fate < 0.2:
            return web.Response(status=429, headers={"Retry-After": "0"})
        key = request.headers["Idempotency-Key"]
        if key not in effects:
            effects[key] += 1
        if fate < 0.4:
            lost += 1
            request.hang_up()
        return web.json_response({"done": True})

    async def story() -> list[Outcome]:
        options: dict[str, Any] = {"concurrency": 8, "reserve": 10_000.0, "random": lambda: 0.0}
        async with sink(answer) as server, opened(server.url, **options) as crm:
            async with app_with(Forward(crm), max_attempts=50) as app:
                bodies = [message() for _ in range(60)] * 3
                dice.shuffle(bodies)
                return list(await asyncio.gather(*[to_its_end(app, body) for body in bodies]))

    outcomes = run(story())
    assert Counter(outcome.status for outcome in outcomes) == {"done": 60, "duplicate": 120}
    assert lost > 10, "no reply was lost: the fault has not landed"
    assert effects == Counter({outcome.key: 1 for outcome in outcomes})


def test_a_dead_destination_does_not_hold_up_the_routes_to_others() -> None:
    async def story() -> None:
        async with raw(saying(hold=True)) as hole, sink() as server:
            async with opened(hole.url, concurrency=2) as dead, opened(server.url) as alive:
                async with Semel("memory://") as app:
                    app.on("to.dead", name="dead")(Forward(dead))
                    app.on("to.alive", name="alive")(Forward(alive))
                    dead_ones = [message(type="to.dead") for _ in range(8)]
                    stuck = asyncio.create_task(app.process_many(dead_ones))
                    outcomes = await app.process_many([message(type="to.alive") for _ in range(40)])
                    assert {outcome.status for outcome in outcomes} == {"done"}
                    assert not stuck.done()
                    stuck.cancel()
                    await asyncio.wait([stuck])

    run(story())


def test_a_forward_of_a_process_that_stalled_past_its_lease_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stalls after the handler has begun, while it connects. The breaker learns nothing from that."""
    stalled_s = 0.0
    monkeypatch.setattr(handler_run, "steady_s", lambda: steady_s() + stalled_s)

    async def story() -> None:
        nonlocal stalled_s
        async with sink(answering(200, "{}")) as server, opened(server.url, breaker_failures=1) as crm:
            connection = _Connections.connection

            async def stall(way: _Connections) -> Any:
                nonlocal stalled_s
                made = await connection(way)
                stalled_s = 1_000.0
                return made

            monkeypatch.setattr(_Connections, "connection", stall)
            async with app_with(Forward(crm)) as app:
                body = message()
                assert (await app.process(body)).status == "busy"
                assert (server.requests, crm.state) == ([], "closed")
                assert await app.entries("waiting") == [], "no attempt has failed"

    run(story())
