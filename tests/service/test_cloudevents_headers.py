"""CloudEvents in binary mode at an endpoint: `ce-` headers count only where the verifier proves them."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import MutableMapping
from typing import Any

import pytest
from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent
from tests.service.test_message_ids import SECRET, post, signed

from semel import Semel
from semel.ports import Verifier
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import Ingest

ORDER = {"id": "order-1", "type": "order"}


def cloud_event(id: str) -> CloudEvent:
    attributes = {"id": id, "source": "/shop", "type": "order.changed", "datacontenttype": "application/json"}
    return CloudEvent({**attributes, "specversion": "1.0"}, ORDER)


def hub_signature(body: bytes) -> dict[str, str]:
    return {"X-Hub-Signature-256": "sha256=" + hmac.new(b"secret", body, hashlib.sha256).hexdigest()}


def app() -> Semel:
    made = Semel("memory://")
    made.on("**", name="noted")(lambda event, ctx: event.id)
    return made


@pytest.mark.parametrize(
    ("options", "credentials"),
    [
        ({}, {}),
        ({"verify": "header", "secrets": ["letmein"]}, {"X-Api-Key": "letmein"}),
        ({"verify": "basic", "secrets": ["pass"], "username": "user"}, {"Authorization": "Basic dXNlcjpwYXNz"}),
    ],
)
def test_where_headers_are_proven_two_ids_about_one_order_are_two_events(
    options: dict[str, Any], credentials: dict[str, str]
) -> None:
    async def story() -> None:
        asgi = app().asgi(**options)
        for id, status in (("1", "processed"), ("2", "processed"), ("1", "duplicate")):
            message = http.to_binary_event(cloud_event(id))
            answer = (await post(asgi, message.body, {**message.headers, **credentials}))[1]
            assert (answer["status"], answer["id"]) == (status, id)

    asyncio.run(story())


def test_where_only_the_body_is_signed_binary_mode_is_400() -> None:
    async def story() -> None:
        asgi = app().asgi(verify="hmac-hex", secrets=["secret"])
        message = http.to_binary_event(cloud_event("1"))
        for left_out in ("", "ce-id", "ce-specversion"):
            headers = {name: value for name, value in message.headers.items() if name != left_out}
            assert (await post(asgi, message.body, {**headers, **hub_signature(message.body)}))[0] == 400
        standard = app().asgi(verify="standard-webhooks", secrets=[SECRET])
        assert (await post(standard, message.body, {**message.headers, **signed(message.body, "msg_1")}))[0] == 400

    asyncio.run(story())


def test_nothing_is_read_before_unproven_headers_are_refused() -> None:
    class Unasked:
        covers_headers = False

        async def verify(self, *_: object) -> bool:
            raise AssertionError("asked")

    async def story() -> None:
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            raise AssertionError("read")

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        verifier: Verifier = Unasked()
        door = ServedEndpoint("/events", verifier=verifier)
        headers = [(b"ce-specversion", b"1.0"), (b"ce-id", b"1"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST", "path": "/events", "headers": headers}
        await Ingest(None, [door]).deliver(door, scope, receive, send)  # type: ignore[arg-type]
        assert sent[0]["status"] == 400

    asyncio.run(story())


def test_a_signed_body_in_structured_mode_is_taken_with_any_headers_beside_it() -> None:
    async def story() -> None:
        asgi = app().asgi(verify="hmac-hex", secrets=["secret"])
        message = http.to_structured_event(cloud_event("1"))
        beside = {"ce-specversion": "1.0", "ce-id": "2", "ce-source": "/forged", "ce-type": "forged"}
        headers = {**message.headers, **beside, **hub_signature(message.body)}
        status, answer = await post(asgi, message.body, headers)
        assert (status, answer["id"]) == (200, "1")

    asyncio.run(story())


def test_a_retry_without_data_and_with_another_trace_is_a_duplicate() -> None:
    async def story() -> None:
        asgi = app().asgi()
        for mode in (http.to_binary_event, http.to_structured_event):
            statuses = []
            for trace in ("00-1", "00-2"):
                attributes = {"id": mode.__name__, "source": "/s", "type": "t", "specversion": "1.0"}
                message = mode(CloudEvent({**attributes, "traceparent": trace}, None))
                statuses.append((await post(asgi, message.body, message.headers))[1]["status"])
            assert statuses == ["processed", "duplicate"]

    asyncio.run(story())
