"""Features of Genesys Cloud: rate limits in headers, contacts that can be looked up, references in data."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

import msgspec
import pytest
from tests.outbox.providers.kits import HERE, contact, text

from semel.providers.genesys import Genesys, GenesysOptions
from semel.providers.registry import provider
from semel.testing.provider_laws import dispatch_of
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.genesys import CLIENT, SECRET
from semel.values.delivery_state import Accepted, Refused
from semel.values.outbox import Absent, Found, LookedUp, Unclear
from semel.values.secret import Secret

T = TypeVar("T")


def opened(simulator: SimulatorProcess, kind: str, story: Callable[[Any], Awaitable[T]], **more: Any) -> T:
    simulator.tell_the_truth()
    url = simulator.url("genesys")
    known = {"url": url, "login_url": url, "client_id": CLIENT, "client_secret": Secret(SECRET), "allow": HERE}

    async def run() -> T:
        made = provider(kind, "genesys", {**known, **more})
        try:
            return await story(made)
        finally:
            await made.close()

    return asyncio.run(run())


def test_no_request_is_sent_while_the_rate_limit_is_exhausted(simulator: SimulatorProcess) -> None:
    """Its headers say so with the last answer: who comes next waits, and nothing is sent in vain."""

    def asked() -> int:
        return len([name for name, _ in simulator.told()["requests"] if name == "genesys"])

    async def story(made: Any) -> tuple[list[Any], int]:
        simulator.allow("genesys", 2, reset_s=25.0)
        before, answers = asked(), []
        for _ in range(4):
            dispatch = dispatch_of(text(uuid4().hex))
            answers.append(await made.send(dispatch, made.prepare(dispatch)))
        return answers, asked() - before

    answers, requests = opened(simulator, "genesys", story, sender="+490")
    simulator.tell_the_truth()
    assert [type(answer) for answer in answers] == [Accepted, Accepted, Refused, Refused]
    assert requests == 2
    for answer in answers[2:]:
        assert answer.limited
        assert 0 < answer.after_s <= 25.0


@pytest.mark.parametrize(
    ("headers", "rate_limited_for_s"),
    [
        ({}, 0.0),
        ({"inin-ratelimit-count": "5", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "40"}, 0.0),
        ({"inin-ratelimit-count": "300", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "40"}, 40.0),
        ({"inin-ratelimit-count": "300", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "9e9"}, 300.0),
        ({"inin-ratelimit-count": "300", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "-1"}, 0.0),
        ({"inin-ratelimit-count": "300", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "nan"}, 0.0),
        ({"inin-ratelimit-count": "x", "inin-ratelimit-allowed": "300", "inin-ratelimit-reset": "1"}, 0.0),
        ({"inin-ratelimit-count": "0", "inin-ratelimit-allowed": "0", "inin-ratelimit-reset": "1"}, 0.0),
    ],
)
def test_a_rate_limit_header_is_limited_to_a_maximum(
    simulator: SimulatorProcess, headers: dict[str, str], rate_limited_for_s: float
) -> None:
    async def story(made: Genesys[GenesysOptions]) -> float:
        return made.rate_limited_for_s(headers)

    assert opened(simulator, "genesys", story) == rate_limited_for_s


def test_a_contact_is_found_by_the_notification_id_or_is_absent(simulator: SimulatorProcess) -> None:
    there, missing = dispatch_of(contact(uuid4().hex)), dispatch_of(contact(uuid4().hex))

    async def story(made: Any) -> list[LookedUp]:
        assert isinstance(await made.send(there, made.prepare(there)), Accepted)
        return [await made.look_up(there), await made.look_up(missing)]

    options = {"contact_list": "list-1", "column": "phone"}
    assert opened(simulator, "genesys-contacts", story, **options) == [Found(there.id.hex()), Absent()]


def test_an_unreadable_contact_list_makes_the_look_up_unclear(simulator: SimulatorProcess) -> None:
    async def story(made: Any) -> LookedUp:
        return await made.look_up(dispatch_of(contact(uuid4().hex)))  # type: ignore[no-any-return]

    options = {"contact_list": "list-1", "column": "phone"}
    wrong = {"client_secret": Secret("wrong")}
    assert isinstance(opened(simulator, "genesys-contacts", story, **options, **wrong), Unclear)
    nobody = {"url": "http://127.0.0.1:1"}
    assert isinstance(opened(simulator, "genesys-contacts", story, **options, **nobody), Unclear)


def test_a_key_without_a_window_is_sent_but_not_relied_on(simulator: SimulatorProcess) -> None:
    async def story(made: Any) -> tuple[Any, dict[str, Any]]:
        said = text(uuid4().hex, channel="event", body={"text": "t"})
        request = msgspec.json.decode(made.prepare(dispatch_of(said)))
        return made.contract.key, msgspec.json.decode(request["body"])

    key, body = opened(simulator, "genesys-keyed", story)
    assert key is None
    assert len(body["idempotencyKey"]) == 32
    key, _ = opened(simulator, "genesys-keyed", story, key_window=60)
    assert (key.path, key.window_s) == ("idempotencyKey", 60)


def test_signing_in_takes_no_more_than_its_share_of_the_time(simulator: SimulatorProcess) -> None:
    """A token endpoint that hangs is a refusal: nothing has left, and the relay does not have to guess."""

    async def story(made: Any) -> list[Any]:
        async with asyncio.timeout(60):
            many = [dispatch_of(text(uuid4().hex)) for _ in range(10)]
            return list(await asyncio.gather(*(made.send(one, made.prepare(one)) for one in many)))

    with socket.create_server(("127.0.0.1", 0)) as deaf:  # the system connects, and nobody answers
        options = {"login_url": f"http://127.0.0.1:{deaf.getsockname()[1]}", "sender": "+490", "timeout": 1.5}
        answers = opened(simulator, "genesys", story, **options)
        deaf.setblocking(False)
        connections = 0
        with suppress(BlockingIOError):
            while True:
                deaf.accept()[0].close()
                connections += 1
    assert {type(answer) for answer in answers} == {Refused}
    assert all("token" in answer.reason for answer in answers)
    assert connections == 1, "many ask once, and share what comes of it"
