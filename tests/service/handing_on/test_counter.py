"""What a door does that hands events on: what it takes, what it refuses, and when it answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from tests.service.handing_on.counter import Broker, Counter, saying, until
from tests.service.running import event

from semel import ConfigError, Semel
from semel.service import broker_forwarding
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.ingest import MAX_IN_FLIGHT, Ingest
from semel.values.event import DecodeOptions
from semel.values.forwarded import TOO_LARGE, UNFIT, ForwardedEvent, ForwardMetadata
from semel.values.outcome import Outcome
from semel.wiring import verifier

GENESYS = {
    "id": "1",
    "detail-type": "v2.detail.events.conversation.{id}.customer.end",
    "source": "aws.partner/genesys.com/cloud/org/bus",
    "time": "2022-04-06T09:30:45Z",
    "detail": {
        "topicName": "v2.detail.events.conversation.c-1.customer.end",
        "version": "2",
        "eventBody": {"eventTime": 1649237504949, "conversationId": "c-1", "participantId": "p", "sessionId": "s"},
        "metadata": {},
    },
}
HEARTBEAT = {"topicName": "channel.metadata", "eventBody": {"message": "WebSocket Heartbeat"}}


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is no fault."""
    monkeypatch.setattr(broker_forwarding, "PATIENCE_S", 60.0)


def test_an_event_is_answered_when_the_broker_has_it_and_not_before() -> None:
    async def story() -> None:
        may_answer = asyncio.Event()

        async def slowly(parcels: Sequence[ForwardedEvent]) -> list[str]:
            await may_answer.wait()
            return [""]

        broker = Broker(slowly)
        asked = asyncio.ensure_future(Counter(broker).post(event(1)))
        await until(lambda: bool(broker.batches), "the publish")
        assert not asked.done()
        may_answer.set()
        told = await asked
        assert (told.status, told.json) == (200, {"status": "accepted", "id": "e-1"})

    asyncio.run(story())


@pytest.mark.parametrize(
    ("why", "status", "says"),
    [
        ("the queue is gone: secret-queue", 503, ""),
        (f"{TOO_LARGE}300,000 bytes", 413, "300,000 bytes"),
        (f"{UNFIT}no text", 422, "no text"),
    ],
)
def test_an_event_that_the_broker_did_not_confirm_is_never_answered_200(why: str, status: int, says: str) -> None:
    async def story() -> None:
        told = await Counter(Broker(saying(why))).post(event(1))
        assert told.status == status
        assert says in told.json["detail"]
        assert b"secret-queue" not in told.body, "what ails it is nothing for those outside"
        assert (b"retry-after" in told.headers) is (status == 503)

    asyncio.run(story())


def test_an_error_of_the_publisher_is_503_and_the_next_is_tried() -> None:
    async def story() -> None:
        async def fails(parcels: Sequence[ForwardedEvent]) -> list[str]:
            raise RuntimeError("for a test")

        broker = Broker(fails)
        counter = Counter(broker)
        assert (await counter.post(event(1))).status == 503
        broker.answer = None
        await counter.until_taken(event(2))

    asyncio.run(story())


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (b"{", 400, 400),
        (b'{"id":"1","type":"t","id":"2"}', 400, 400),
        (b'{"neither":1}', 400, 400),
        (HEARTBEAT, 200, "ignored"),
    ],
)
def test_a_body_that_is_no_event_is_not_forwarded(body: Any, status: int, said: int | str) -> None:
    async def story() -> None:
        broker = Broker()
        told = await Counter(broker).post(body)
        assert told.status == status
        assert told.json["status"] == said
        assert broker.batches == []

    asyncio.run(story())


def test_only_verified_events_are_forwarded_and_never_credentials() -> None:
    async def story() -> None:
        broker = Broker()
        counter = Counter(broker, verifier=verifier("header", secrets=["letmein"]))
        assert (await counter.post(event(1))).status == 401
        assert broker.batches == []
        binary = {"ce-specversion": "1.0", "ce-id": "é", "ce-type": "t", "ce-source": "/s"}
        told = await counter.post(b'{"a":1}', {**binary, "x-api-key": "letmein", "content-type": "application/json"})
        assert told.status == 200
        (parcel,) = broker.parcels
        assert b"letmein" not in parcel.body + repr(parcel.metadata).encode()

    asyncio.run(story())


def test_a_cloud_event_in_binary_mode_is_forwarded_completely() -> None:
    async def story() -> None:
        broker = Broker()
        binary = {"ce-specversion": "1.0", "ce-id": "1", "ce-type": "t", "ce-source": "/s", "ce-subject": "c-1"}
        await Counter(broker).post(b"\xff\x00", {**binary, "content-type": "application/octet-stream"})
        (parcel,) = broker.parcels
        assert (parcel.group, parcel.metadata) == ("c-1", ForwardMetadata())
        assert parcel.content_type == "application/cloudevents+json"
        over_the_broker = Semel("memory://")
        ran: list[Any] = []

        @over_the_broker.on("t")
        async def handle(event: Any, ctx: Any) -> None:
            ran.append((event.id, event.subject, event.body))

        await over_the_broker.process(b"\xff\x00", headers={**binary, "content-type": "application/octet-stream"})
        again: Outcome = await over_the_broker.process(parcel.body)
        assert (again.status, len(ran)) == ("duplicate", 1)

    asyncio.run(story())


def test_an_event_without_a_handler_here_is_forwarded_too() -> None:
    async def story() -> None:
        broker = Broker()
        counter = Counter(broker)
        assert counter.app.handlers == []
        assert (await counter.post(GENESYS)).json["status"] == "accepted"
        assert len(broker.parcels) == 1

    asyncio.run(story())


def test_the_metadata_has_the_settings_of_endpoint_and_app() -> None:
    async def story() -> None:
        own = DecodeOptions("platform", "order.number", "kind")
        orders = {"order": {"number": "7"}, "kind": "placed"}
        told: list[ForwardMetadata] = []
        for app, door, body in (
            (Semel("memory://"), {}, event(1)),
            (Semel("memory://", tenant="acme", origin="here"), {}, event(1)),
            (Semel("memory://", tenant="acme"), {"tenant": "other", "decode_options": own}, orders),
            (Semel("memory://", origin="platform", id_path="order.number", type_path="kind"), {}, orders),
        ):
            broker = Broker()
            assert (await Counter(broker, app, "00-trace", **door).post(body)).status == 200
            told += [parcel.metadata for parcel in broker.parcels]
        assert told == [
            ForwardMetadata(trace="00-trace"),
            ForwardMetadata("acme", DecodeOptions("here"), trace="00-trace"),
            ForwardMetadata("other", own, trace="00-trace"),
            ForwardMetadata("", own, trace="00-trace"),
        ]

    asyncio.run(story())


def test_a_group_is_the_conversation_of_a_tenant_or_else_the_event_alone() -> None:
    async def story() -> None:
        broker = Broker()
        await Counter(broker).post(GENESYS)
        await Counter(broker, tenant="acme").post(GENESYS)
        await Counter(broker).post({"id": "e-1", "type": "t"})
        assert [parcel.group for parcel in broker.parcels] == ["c-1", "acme/c-1", "e-1"]

    asyncio.run(story())


def test_a_body_is_forwarded_byte_for_byte() -> None:
    async def story() -> None:
        broker = Broker()
        body = b' { "type" : "t", "id" : "\\u0041" , "data": {} } \n'
        await Counter(broker).post(body)
        assert broker.parcels[0].body == body

    asyncio.run(story())


def test_an_endpoint_that_forwards_needs_a_planner() -> None:
    async def story() -> None:
        with pytest.raises(ConfigError, match="planner"):
            Ingest(DeliveryHandler(Semel("memory://")), [ServedEndpoint("/events", publisher=Broker())])

    asyncio.run(story())


# ------------------------------------------------------------------------------------------------------- many at a time


def test_events_that_arrive_during_a_publish_form_one_batch_with_an_answer_each() -> None:
    async def story() -> None:
        may_answer = asyncio.Event()

        async def some(parcels: Sequence[ForwardedEvent]) -> list[str]:
            await may_answer.wait()
            return ["" if b'"e-1' in parcel.body else f"{TOO_LARGE}!" for parcel in parcels]

        broker = Broker(some)
        counter = Counter(broker)
        first = [asyncio.ensure_future(counter.post(event(1000 + at))) for at in range(100)]
        await until(lambda: len(broker.batches) == broker_forwarding.LANES, "all lanes")
        later = [asyncio.ensure_future(counter.post(event(2000 + at))) for at in range(100)]
        await asyncio.sleep(0.05)
        assert len(broker.batches) == broker_forwarding.LANES, "no more at a time"
        may_answer.set()
        assert {told.status for told in await asyncio.gather(*first)} == {200}
        assert {told.status for told in await asyncio.gather(*later)} == {413}
        assert len(broker.batches) == 2 * broker_forwarding.LANES
        assert len(broker.parcels) == 200

    asyncio.run(story())


def test_events_of_one_conversation_are_never_under_way_at_the_same_time_and_stay_in_order() -> None:
    async def story() -> None:
        under_way: list[str] = []
        order: list[bytes] = []

        async def watched(parcels: Sequence[ForwardedEvent]) -> list[str]:
            groups = [parcel.group for parcel in parcels]
            assert not set(groups) & set(under_way), "one of its group is on its way"
            under_way.extend(groups)
            await asyncio.sleep(0.002)
            order.extend(parcel.body for parcel in parcels)
            for group in groups:
                under_way.remove(group)
            return [""] * len(parcels)

        counter = Counter(Broker(watched))
        bodies = [
            b'{"id":"%d","type":"t","data":{"conversationId":"c-%d"}}' % (at, at % 7) for at in range(MAX_IN_FLIGHT)
        ]
        posts = []  # more at a time would queue for admission, which does not keep the order of its queue and newcomers
        for at, body in enumerate(bodies):
            posts.append(asyncio.ensure_future(counter.post(body)))
            if at % 10 == 0:
                await asyncio.sleep(0)
        assert {told.status for told in await asyncio.gather(*posts)} == {200}
        for group in range(7):
            mine = b'"c-%d"' % group
            assert [body for body in order if mine in body] == [body for body in bodies if mine in body]

    asyncio.run(story())


def test_a_sender_that_disconnects_does_not_affect_others() -> None:
    async def story() -> None:
        may_answer = asyncio.Event()

        async def slowly(parcels: Sequence[ForwardedEvent]) -> list[str]:
            await may_answer.wait()
            return [""] * len(parcels)

        broker = Broker(slowly)
        counter = Counter(broker)
        same = [{**event(at), "data": {"id": "c"}} for at in range(3)]
        posts = [asyncio.ensure_future(counter.post(body)) for body in same]
        await until(lambda: bool(broker.batches), "the publish")
        posts[1].cancel()
        await asyncio.sleep(0)
        may_answer.set()
        assert [(await posts[at]).status for at in (0, 2)] == [200, 200]

    asyncio.run(story())


# ------------------------------------------------------------------------------------------------ a broker that is down


def test_while_the_broker_is_down_senders_are_refused_at_once_and_let_in_when_it_is_back() -> None:
    async def story() -> None:
        broker = Broker(saying("out of reach"))
        counter = Counter(broker)
        statuses = [(await counter.post(event(at))).status for at in range(500)]
        assert set(statuses) == {503}
        assert len(broker.batches) < 50, "most were refused without asking it"
        broker.answer = None
        await counter.until_taken(event("again"))
        assert [(await counter.post(event(at))).status for at in range(20)] == [200] * 20

    asyncio.run(story())


def test_the_broker_is_opened_before_the_first_sender_comes() -> None:
    async def story() -> None:
        broker = Broker()
        Counter(broker)
        await until(lambda: broker.opened == 1, "the opening")
        assert broker.batches == []

    asyncio.run(story())


def test_the_log_has_errors_of_the_broker_and_refused_events(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async def mixed(parcels: Sequence[ForwardedEvent]) -> list[str]:
            return ["", f"{TOO_LARGE}300,000 bytes", "throttled"][: len(parcels)]

        counter = Counter(Broker(mixed))
        same = [counter.post({**event(at), "data": {"id": "c"}}) for at in range(3)]
        assert [told.status for told in await asyncio.gather(*same)] == [200, 413, 503]
        await Counter(Broker(saying("out of reach"))).post(event(1))

    asyncio.run(story())
    for said in ("300,000 bytes", "throttled", "out of reach"):
        assert said in caplog.text


def test_an_unfit_event_is_no_evidence_against_the_broker() -> None:
    async def story() -> None:
        broker = Broker(saying(f"{UNFIT}no text"))
        counter = Counter(broker)
        assert [(await counter.post(event(at))).status for at in range(20)] == [422] * 20
        assert len(broker.batches) == 20

    asyncio.run(story())


def test_a_broker_that_takes_a_part_is_not_down() -> None:
    async def story() -> None:
        async def one_of_two(parcels: Sequence[ForwardedEvent]) -> list[str]:
            return ["" if at % 2 else "throttled" for at in range(len(parcels))]

        counter = Counter(Broker(one_of_two))
        for _ in range(5):
            same = [counter.post({**event(at), "data": {"id": "c"}}) for at in range(10)]
            assert [told.status for told in await asyncio.gather(*same)] == [503, 200] * 5

    asyncio.run(story())


def test_a_broker_that_does_not_answer_is_reported_before_the_sender_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(broker_forwarding, "PATIENCE_S", 0.2)
        silent = asyncio.Event()

        async def stuck(parcels: Sequence[ForwardedEvent]) -> list[str]:
            await silent.wait()
            return [""] * len(parcels)

        broker = Broker(stuck)
        counter = Counter(broker)
        async with asyncio.timeout(30):
            first = await asyncio.gather(*[counter.post(event(at)) for at in range(50)])
            assert {told.status for told in first} == {503}
            assert len(broker.batches) <= broker_forwarding.LANES
            silent.set()
            broker.answer = None
            await counter.until_taken(event("again"))

    asyncio.run(story())
