"""Handing events on to SQS: the laws of every publisher, and what only a queue of SQS does."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.facts import rendered
from tests.sources.meddling import Meddle, Meddler, refusal
from tests.sources.places import Queue, make_app

from semel.sources.sqs_queue import SqsPublisher
from semel.testing.proxy import BLACK_HOLE, FaultProxy
from semel.testing.publisher_laws import OrderedPublisherLaws, PublisherHarness, PublisherLaws
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions
from semel.values.forwarded import TOO_LARGE, UNFIT, ForwardedEvent, ForwardMetadata, decode_metadata, encode_metadata

NOT_TAKEN = (
    ForwardedEvent(b"x" * 300_000),
    ForwardedEvent(b"\xff\xfe"),
    ForwardedEvent(b""),
    ForwardedEvent(b"a\x00b"),
    ForwardedEvent("no JSON \uffff".encode()),
    ForwardedEvent(b"note", ForwardMetadata(headers={"x": "y" * 20_000})),
)


def publisher(queue: Queue, timeout: float = 20.0, **options: Any) -> SqsPublisher:
    place = {"endpoint": queue.server.endpoint, "region": queue.server.region}
    return SqsPublisher(queue.url, **{**place, "timeout": timeout, **options})


def harness_of(queue: Queue, proxy: FaultProxy, home: Path) -> PublisherHarness:
    @contextmanager
    def silent() -> Iterator[Callable[[], bool]]:
        before = proxy.seen.swallowed
        with proxy.fault(BLACK_HOLE):
            yield lambda: proxy.seen.swallowed > before
        proxy.reset()

    return PublisherHarness(
        open=lambda timeout: publisher(queue, timeout, endpoint=proxy.url(queue.server.endpoint)),
        source=lambda: queue.source(forwarded=True),
        app=make_app(home),
        silent=silent,
        unfit=NOT_TAKEN,
    )


class Bound:
    """Each test has a queue, and a proxy before it."""

    fifo = False

    @pytest.fixture
    def harness(self, new_queue: Any, tmp_path: Path, quick_end: None) -> Iterator[PublisherHarness]:
        with ExitStack() as stack:
            queue: Queue = new_queue(fifo=self.fifo)
            proxy = stack.enter_context(FaultProxy("127.0.0.1", queue.server.port))
            yield harness_of(queue, proxy, tmp_path)


class TestSqs(Bound, PublisherLaws):
    pass


class TestSqsFifo(Bound, PublisherLaws, OrderedPublisherLaws):
    fifo = True


# ------------------------------------------------------------------------------------------------- requests and answers


def meddled(queue: Queue, meddle: Meddle, **options: Any) -> tuple[SqsPublisher, Meddler]:
    meddler = Meddler(meddle)
    return publisher(queue, connect=meddler.connect(queue.server, queue.url), **options), meddler


def messages(queue: Queue) -> list[dict[str, Any]]:
    """What is in the queue. The next look does not see it."""
    found: list[dict[str, Any]] = []
    while some := queue.aws.receive_message(
        QueueUrl=queue.url, MaxNumberOfMessages=10, MessageAttributeNames=["All"], AttributeNames=["All"]
    ).get("Messages", []):
        found += some
    return found


def bodies_in(queue: Queue) -> list[str]:
    return sorted(message["Body"] for message in messages(queue))


def said(count: int) -> list[ForwardedEvent]:
    return [ForwardedEvent(f"{number:02}".encode()) for number in range(count)]


def test_requests_hold_ten_messages_and_256_kib_and_travel_together(queue: Queue) -> None:
    async def story() -> None:
        def slowly(operation: str, request: Mapping[str, Any]) -> Any:
            return asyncio.sleep(0.05) if operation == "send_message_batch" else None

        publishing, meddler = meddled(queue, slowly)
        handed = [*said(25), *[ForwardedEvent(b"x" * 100_000, ForwardMetadata(), str(at)) for at in range(5)]]
        assert await publishing.publish(handed) == [""] * 30
        await publishing.close()
        requests = [request["Entries"] for request in meddler.asked("send_message_batch")]
        assert [len(entries) for entries in requests] == [10, 10, 7, 2, 1]
        for entries in requests:
            sizes = [len(one["MessageBody"]) + len(str(one["MessageAttributes"])) for one in entries]
            assert sum(sizes) <= 256 * 1024
        assert meddler.most["send_message_batch"] > 1

    asyncio.run(story())


def test_a_message_that_fits_exactly_is_taken_and_one_byte_more_is_too_large(queue: Queue) -> None:
    async def story() -> None:
        metadata = ForwardMetadata("acme")
        room = 256 * 1024 - len("semel" + "String" + encode_metadata(metadata))
        publishing = publisher(queue)
        fits, too_large = await publishing.publish(
            [ForwardedEvent(b"x" * room, metadata), ForwardedEvent(b"x" * (room + 1), metadata)]
        )
        await publishing.close()
        assert fits == ""
        assert too_large.startswith(TOO_LARGE)
        assert "262,145" in too_large

    asyncio.run(story())


def test_the_message_size_limit_of_the_queue_is_used(new_queue: Any) -> None:
    async def story() -> None:
        queue: Queue = new_queue(MaximumMessageSize="2048")
        publishing = publisher(queue)
        assert [
            bool(why) for why in await publishing.publish([ForwardedEvent(b"x" * 1_000), ForwardedEvent(b"x" * 3_000)])
        ] == [0, 1]
        await publishing.close()
        assert bodies_in(queue) == ["x" * 1_000]

    asyncio.run(story())


def test_throttled_events_are_retried_and_published_ones_are_not(queue: Queue) -> None:
    async def story() -> None:
        left = iter([True, True])

        async def half(request: Mapping[str, Any]) -> Any:
            """Those with even ids go well."""
            kept = [entry for entry in request["Entries"] if int(entry["Id"]) % 2 == 0]
            answer = await meddler.really("send_message_batch", {**request, "Entries": kept})
            codes = {"1": "RequestThrottled", "3": "InternalError"}
            failed = [
                {"Id": entry["Id"], "Code": codes.get(entry["Id"], "ThrottlingException"), "SenderFault": False}
                for entry in request["Entries"]
                if entry not in kept
            ]
            return {"Successful": answer["Successful"], "Failed": failed}

        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            return half(request) if operation == "send_message_batch" and next(left, False) else None

        publishing, meddler = meddled(queue, meddle)
        assert await publishing.publish(said(10)) == [""] * 10
        await publishing.close()
        assert [len(request["Entries"]) for request in meddler.asked("send_message_batch")] == [10, 5, 2]
        assert bodies_in(queue) == [f"{number:02}" for number in range(10)], "nothing is there twice"

    asyncio.run(story())


def test_endless_throttling_is_reported_within_the_timeout(queue: Queue) -> None:
    async def story() -> None:
        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            if operation == "send_message_batch":
                raise refusal("RequestThrottled")

        publishing, meddler = meddled(queue, meddle)
        assert await publishing.publish([]) == []  # it is open now, which may take long on a busy machine
        publishing.timeout = 1.0
        assert await publishing.publish(said(2)) == ["RequestThrottled: for a test"] * 2
        await publishing.close()
        assert len(meddler.asked("send_message_batch")) >= 2
        assert bodies_in(queue) == []

    asyncio.run(story())


@pytest.mark.parametrize("fifo", [False, True])
def test_at_the_timeout_each_event_gets_the_reason_known_by_then(new_queue: Any, fifo: bool) -> None:
    async def story() -> None:
        queue: Queue = new_queue(fifo=fifo)

        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            stuck = any(entry["MessageBody"] == "15" for entry in request.get("Entries", ()))
            return asyncio.sleep(600) if stuck else None

        publishing, meddler = meddled(queue, meddle)
        assert await publishing.publish([]) == []
        publishing.timeout = 2.0
        answers = await publishing.publish(said(30))
        await publishing.close()
        assert meddler.landed == 1
        assert answers[:10] == [""] * 10
        assert all(answers[10:20])
        assert all(answers[20:]) is fifo, "in a FIFO queue nothing overtakes"
        assert bodies_in(queue) == [f"{at:02}" for at, why in enumerate(answers) if not why]

    asyncio.run(story())


@pytest.mark.parametrize("code", ["InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong"])
def test_one_invalid_message_of_a_batch_is_the_only_one_refused(queue: Queue, code: str) -> None:
    async def story() -> None:
        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            if any(entry["MessageBody"] == "03" for entry in request.get("Entries", ())):
                raise refusal(code)

        publishing, meddler = meddled(queue, meddle)
        answers = await publishing.publish(said(6))
        await publishing.close()
        assert meddler.landed == 2
        assert [bool(why) for why in answers] == [number == 3 for number in range(6)]
        assert answers[3].startswith(UNFIT) is (code == "InvalidMessageContents"), "else a person may put it right"
        assert bodies_in(queue) == ["00", "01", "02", "04", "05"]

    asyncio.run(story())


@pytest.mark.parametrize("code", ["AccessDenied", "QueueDoesNotExist", "ExpiredToken"])
def test_a_permanent_refusal_is_reported_at_once(queue: Queue, code: str) -> None:
    async def story() -> None:
        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            raise refusal(code)

        publishing, meddler = meddled(queue, meddle)
        assert await publishing.publish(said(3)) == [f"{code}: for a test"] * 3
        await publishing.close()
        assert len(meddler.asked("send_message_batch")) == 1

    asyncio.run(story())


def test_a_lost_connection_is_retried_once_and_then_reported(queue: Queue) -> None:
    async def story() -> None:
        losses = iter([1, 0, 1, 1])

        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            if operation == "send_message_batch" and next(losses):
                raise ConnectionResetError("for a test")

        publishing, _ = meddled(queue, meddle)
        assert await publishing.publish([ForwardedEvent(b"one")]) == [""]
        (why,) = await publishing.publish([ForwardedEvent(b"two")])
        await publishing.close()
        assert "ConnectionResetError" in why
        assert bodies_in(queue) == ["one"]

    asyncio.run(story())


def test_an_event_that_the_response_lacks_is_not_published(queue: Queue) -> None:
    async def story() -> None:
        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            return {"Successful": [{"Id": "1"}]} if operation == "send_message_batch" else None

        publishing, _ = meddled(queue, meddle)
        assert [bool(why) for why in await publishing.publish(said(3))] == [True, False, True]
        await publishing.close()

    asyncio.run(story())


def test_a_missing_driver_or_region_is_an_answer_and_no_error(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
            monkeypatch.delenv(name, raising=False)
        publishing = SqsPublisher("http://127.0.0.1:9/queue")
        (why,) = await publishing.publish(said(1))
        assert "region" in why
        facts = rendered(await publishing.diagnose())
        assert facts["client"].startswith("error: ")
        await publishing.close()

    asyncio.run(story())


# ----------------------------------------------------------------------------------------------------------- text, FIFO


def test_a_character_that_sqs_does_not_carry_is_spelled_otherwise_in_the_same_document(queue: Queue) -> None:
    async def story() -> None:
        body = '{"id":"\uffff","text":"\\\\\ufffe\\u0041"}'
        publishing = publisher(queue)
        assert await publishing.publish([ForwardedEvent(body.encode(), ForwardMetadata("\uffff"))]) == [""]
        await publishing.close()
        (message,) = messages(queue)
        assert json.loads(message["Body"]) == json.loads(body)
        assert decode_metadata(message["MessageAttributes"]["semel"]["StringValue"]) == ForwardMetadata("\uffff")

    asyncio.run(story())


def test_a_fifo_queue_drops_a_repetition_and_nothing_that_differs(new_queue: Any) -> None:
    async def story() -> None:
        queue: Queue = new_queue(fifo=True)
        publishing = publisher(queue)
        first = ForwardedEvent(b'{"id":"e"}', ForwardMetadata("acme", trace="one"), "g")
        others = [
            ForwardedEvent(b'{"id":"e","more":1}', ForwardMetadata("acme"), "g"),  # a conflict is for somebody to see
            ForwardedEvent(b'{"id":"e"} ', ForwardMetadata("acme"), "g"),
            ForwardedEvent(b'{"id":"e"}', ForwardMetadata("other"), "g"),
            ForwardedEvent(b'{"id":"e"}', ForwardMetadata("acme", DecodeOptions(origin="platform")), "g"),
        ]
        again = ForwardedEvent(first.body, ForwardMetadata("acme", trace="two"), "g")
        assert await publishing.publish([first, again, *others]) == [""] * 6
        assert await publishing.publish([again]) == [""]
        await publishing.close()
        assert len(messages(queue)) == 5

    asyncio.run(story())


@pytest.mark.parametrize(
    "group",
    ["", "with spaces", "x" * 200, "é", "\ud800", "plain-1"],
    ids=["none", "spaces", "long", "é", "odd", "plain"],
)
def test_every_group_is_one_that_a_fifo_queue_takes(new_queue: Any, group: str) -> None:
    async def story() -> None:
        queue: Queue = new_queue(fifo=True)
        publishing, meddler = meddled(queue, lambda operation, request: None)
        assert await publishing.publish(
            [ForwardedEvent(b"1", ForwardMetadata(), group), ForwardedEvent(b"2", ForwardMetadata(), group)]
        ) == ["", ""]
        await publishing.close()
        (request,) = meddler.asked("send_message_batch")
        groups = [entry["MessageGroupId"] for entry in request["Entries"]]
        assert all(re.fullmatch(r"[!-~]{1,128}", one) for one in groups)
        assert len(set(groups)) == (1 if group else 2)
        assert group != "plain-1" or groups[0] == group

    asyncio.run(story())


def test_an_event_that_a_later_one_of_its_group_overtook_is_not_sent(new_queue: Any) -> None:
    async def story() -> None:
        queue: Queue = new_queue(fifo=True)
        turns = iter([True])

        async def without_the_first(request: Mapping[str, Any]) -> Any:
            answer = await meddler.really("send_message_batch", {**request, "Entries": request["Entries"][2:]})
            failed = [{"Id": at, "Code": "RequestThrottled", "SenderFault": False} for at in ("0", "1")]
            return {"Successful": answer["Successful"], "Failed": failed}

        def meddle(operation: str, request: Mapping[str, Any]) -> Any:
            return without_the_first(request) if operation == "send_message_batch" and next(turns, False) else None

        publishing, meddler = meddled(queue, meddle)
        handed = [
            ForwardedEvent(b"a1", ForwardMetadata(), "a"),
            ForwardedEvent(b"b1", ForwardMetadata(), "b"),
            ForwardedEvent(b"a2", ForwardMetadata(), "a"),
        ]
        answers = await publishing.publish(handed)
        await publishing.close()
        assert [bool(why) for why in answers] == [True, False, False]
        assert bodies_in(queue) == ["a2", "b1"]

    asyncio.run(story())


# ---------------------------------------------------------------------------------------------------------- for people


def test_diagnose_describes_the_queue(new_queue: Any) -> None:
    async def story() -> None:
        facts = rendered(await publisher(new_queue(fifo=True)).diagnose())
        assert "group" in facts["order"]
        small = rendered(await publisher(new_queue(MaximumMessageSize="2048")).diagnose())
        assert small["messages"].startswith("warning: ")
        queue: Queue = new_queue()
        queue.aws.delete_queue(QueueUrl=queue.url)
        assert rendered(await publisher(queue).diagnose())["attributes"].startswith("error: ")

    asyncio.run(story())


@pytest.mark.parametrize("options", [{"queue": "orders"}, {"timeout": 0}, {"timeout": 1e9}])
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        SqsPublisher(**{"queue": "https://sqs.eu-central-1.amazonaws.com/1/q", **options})
