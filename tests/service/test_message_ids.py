"""Standard Webhooks: the signed `webhook-id` is the identity of a generic webhook.

The first document is the specification's own example, the second the one of its reference libraries. Messages are
signed by the official library.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, MutableMapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook
from tests.service.handing_on.counter import Broker, Counter, until
from tests.service.handing_on.test_counter import GENESYS

from semel import Semel
from semel.wiring import verifier

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CONTACT = (
    b'{"type":"contact.created","timestamp":"2022-11-03T20:26:10.344522Z",'
    b'"data":{"id":"1f81eb52-5198-4599-803e-771906343485"}}'
)
SQUASHED = b'{"test": 2432232314}'
CLOUD_EVENT = b'{"specversion":"1.0","id":"A234","source":"/crm","type":"contact.created","data":{"id":1}}'
OPEN_MESSAGING = (
    b'{"id":"m-1","type":"Text","text":"hi","channel":{"messageId":"m-1","to":{"id":"x"},"time":"2026-01-01"}}'
)


def signed(body: bytes, message_id: str, family: str = "webhook") -> dict[str, str]:
    now = datetime.now(tz=UTC)
    signature = Webhook(SECRET).sign(message_id, now, body.decode())
    stamp = str(int(now.timestamp()))
    return {f"{family}-id": message_id, f"{family}-timestamp": stamp, f"{family}-signature": signature}


async def post(asgi: Any, body: bytes, headers: Mapping[str, str]) -> tuple[int, Any]:
    """One request, as an ASGI server makes it."""
    sent: list[MutableMapping[str, Any]] = []

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await asgi({"type": "http", "method": "POST", "path": "/events", "headers": pairs}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


class Endpoint:
    """An endpoint with scheme standard-webhooks, and the events that its handler got."""

    def __init__(self, ledger: str = "memory://", mode: Any = "inline", **options: Any) -> None:
        self.app = Semel(ledger, **options)
        self.ran: list[Any] = []
        self.app.on("**", name="noted")(self._note)
        self.asgi = self.app.asgi(mode=mode, verify="standard-webhooks", secrets=[SECRET])

    async def _note(self, event: Any, ctx: Any) -> None:
        self.ran.append(event)

    async def post(self, body: bytes, message_id: str, family: str = "webhook") -> Any:
        _, answer = await post(self.asgi, body, signed(body, message_id, family))
        return answer["status"]


@pytest.mark.parametrize("body", [CONTACT, SQUASHED])
@pytest.mark.parametrize("family", ["webhook", "svix"])
def test_the_signed_message_id_is_the_identity(body: bytes, family: str) -> None:
    async def story() -> None:
        endpoint = Endpoint()
        first = "msg_2KWPBgLlAfxdpx2AI54pPJ85f4W"
        assert await endpoint.post(body, first, family) == "processed"
        assert await endpoint.post(body, first, family) == "duplicate"
        assert await endpoint.post(body, "msg_other", family) == "processed"
        assert [(event.id, event.delivery_id, event.shape) for event in endpoint.ran] == [
            (first, first, "webhook"),
            ("msg_other", "msg_other", "webhook"),
        ]

    asyncio.run(story())


def test_the_members_of_the_specification_are_read() -> None:
    async def story() -> None:
        endpoint = Endpoint()
        await endpoint.post(CONTACT, "msg_1")
        await endpoint.post(SQUASHED, "msg_2")
        contact, squashed = endpoint.ran
        assert (contact.type, contact.subject) == ("contact.created", "1f81eb52-5198-4599-803e-771906343485")
        assert contact.time == datetime(2022, 11, 3, 20, 26, 10, 344522, tzinfo=UTC)
        assert contact.body == {"id": "1f81eb52-5198-4599-803e-771906343485"}
        assert (squashed.type, squashed.body) == ("json", {"test": 2432232314})

    asyncio.run(story())


def test_two_updates_of_one_resource_are_two_events() -> None:
    async def story() -> None:
        endpoint = Endpoint()
        for number in range(2):
            body = json.dumps({"id": "contact-1", "type": "contact.updated", "data": {"id": 1, "n": number}}).encode()
            assert await endpoint.post(body, f"msg_{number}") == "processed"

    asyncio.run(story())


def test_one_message_id_with_another_body_is_a_conflict() -> None:
    async def story() -> None:
        endpoint = Endpoint()
        other = CONTACT.replace(b"1f81", b"2f81")
        assert await endpoint.post(CONTACT, "msg_1") == "processed"
        assert (await post(endpoint.asgi, other, signed(other, "msg_1")))[0] == 422

    asyncio.run(story())


def test_webhook_and_svix_headers_name_the_same_message() -> None:
    async def story() -> None:
        endpoint = Endpoint()
        assert await endpoint.post(CONTACT, "msg_1", "webhook") == "processed"
        assert await endpoint.post(CONTACT, "msg_1", "svix") == "duplicate"

    asyncio.run(story())


@pytest.mark.parametrize(
    "body",
    [json.dumps(GENESYS).encode(), CLOUD_EVENT, OPEN_MESSAGING],
    ids=["genesys", "cloudevents", "open messaging"],
)
def test_a_recognised_shape_keeps_its_natural_identity(body: bytes) -> None:
    async def story() -> None:
        endpoint = Endpoint()
        assert await endpoint.post(body, "msg_1") == "processed"
        assert await endpoint.post(body, "msg_2") == "duplicate"

    asyncio.run(story())


def test_a_configured_id_path_is_preferred_to_the_message_id() -> None:
    async def story() -> None:
        endpoint = Endpoint(id_path="order.number")
        body = b'{"order":{"number":17}}'
        assert await endpoint.post(body, "msg_1") == "processed"
        assert await endpoint.post(body, "msg_2") == "duplicate"
        assert await endpoint.post(b'{"order":{}}', "msg_3") == "processed"
        assert [event.id for event in endpoint.ran] == ["17", "msg_3"]

    asyncio.run(story())


def test_an_unsigned_message_id_is_ignored() -> None:
    async def story() -> None:
        app = Semel("memory://")
        app.on("**", name="noted")(lambda event, ctx: event.id)
        asgi = app.asgi(verify="header", secrets=["letmein"])
        body = b'{"id":"e-1","type":"ok"}'
        for message_id, status in (("msg_1", "processed"), ("msg_2", "duplicate")):
            headers = {"X-Api-Key": "letmein", "webhook-id": message_id, "svix-id": message_id}
            assert (await post(asgi, body, headers))[1]["status"] == status

    asyncio.run(story())


def test_an_unsigned_id_beside_the_signed_one_is_ignored() -> None:
    async def story() -> None:
        endpoint = Endpoint()
        assert await endpoint.post(CONTACT, "msg_1") == "processed"
        forged = {**signed(CONTACT, "msg_1"), "svix-id": "msg_2"}
        assert (await post(endpoint.asgi, CONTACT, forged))[1]["status"] == "duplicate"

    asyncio.run(story())


def test_an_accepted_event_keeps_its_message_id_in_the_inbox(tmp_path: Path) -> None:
    async def story() -> None:
        endpoint = Endpoint(f"sqlite:///{tmp_path}/semel.db", mode="inbox")
        async with endpoint.app, endpoint.app.handling():
            assert await endpoint.post(CONTACT, "msg_1") == "accepted"
            assert await endpoint.post(CONTACT, "msg_1") == "duplicate"
            assert await endpoint.post(CONTACT, "msg_2") == "accepted"
            await until(lambda: len(endpoint.ran) == 2, "both handler runs")
        assert sorted(event.id for event in endpoint.ran) == ["msg_1", "msg_2"]

    asyncio.run(story())


def test_an_event_forwarded_to_a_broker_takes_its_message_id_along() -> None:
    async def story() -> None:
        broker, app = Broker(), Semel("memory://", origin="crm")
        counter = Counter(broker, app, verifier=verifier("standard-webhooks", secrets=[SECRET]))
        for message_id in ("msg_1", "msg_2"):
            assert (await counter.post(CONTACT, signed(CONTACT, message_id))).json["id"] == message_id
        readings = [parcel.metadata.decode_options for parcel in broker.parcels]
        assert [(decode_options.message_id, decode_options.origin) for decode_options in readings] == [
            ("msg_1", "crm"),
            ("msg_2", "crm"),
        ]

    asyncio.run(story())
