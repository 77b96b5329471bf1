"""What a queue must have before anything is taken from it, and what may be missing. On an emulator, by real HTTP."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest
from tests.facts import rendered
from tests.sources.meddling import Meddler, refusal
from tests.sources.places import Queue
from tests.sources.test_sqs_answers import bodies, meddled, received, until

from semel import Context, Event, Semel
from semel.aws import error_name
from semel.sources.sqs_queue import SqsSource
from semel.sources.sqs_queue.client import region_of
from semel.testing.proxy import Fault, FaultProxy
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions

pytestmark = pytest.mark.usefixtures("quick_end")

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/q"


def with_redrive(queue: Queue, receives: int) -> str:
    """The URL of a queue that gives up after so many receives; its dead letters are the other's."""
    arn = queue.aws.get_queue_attributes(QueueUrl=queue.dead_url, AttributeNames=["QueueArn"])["Attributes"]["QueueArn"]
    policy = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": receives})
    return queue.make(False, RedrivePolicy=policy)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": "my-queue"}, "my-queue.*URL"),
        ({"dead_letters": "arn:aws:sqs:eu-central-1:123456789012:dead"}, "123456789012:dead.*URL"),
        ({"dead_letters": URL}, "dead.letters"),
        ({"pollers": 0}, "pollers=0"),
        ({"max_in_flight": 0}, "max_in_flight=0"),
        ({"visibility": 0}, "visibility=0"),
        ({"visibility": 43_201}, "43,200"),
        ({"visibility": 1.5}, r"visibility=1\.5"),
        ({"wait": 0}, "wait=0"),
        ({"wait": 21}, "20"),
    ],
)
def test_an_impossible_option_is_an_error_that_names_it(options: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SqsSource(**{"queue": URL, **options})


def test_the_region_is_read_from_the_url_of_the_queue() -> None:
    assert region_of(URL) == "eu-central-1"
    assert region_of("https://eu-west-1.queue.amazonaws.com/1/q") == "eu-west-1"
    assert region_of("https://sqs.us-east-1.api.aws/1/q") == "us-east-1"
    assert region_of("http://127.0.0.1:4566/1/q") is None


def test_the_error_of_a_missing_driver_names_the_package_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aiobotocore.session", None)
    with pytest.raises(ConfigError, match=r"semel\[aws\]"):
        asyncio.run(_received_one(SqsSource(URL)))


async def _received_one(source: SqsSource) -> None:
    try:
        await source.receive(1)
    finally:
        await source.close()


@pytest.mark.parametrize("missing", ["queue", "dead_letters"])
def test_a_missing_queue_is_an_error_that_names_it(queue: Queue, missing: str) -> None:
    source = queue.source(**{missing: queue.url + "-not-there"})
    with pytest.raises(ConfigError, match="-not-there"):
        asyncio.run(_received_one(source))


def test_credentials_that_are_refused_are_an_error(queue: Queue) -> None:
    def meddle(operation: str, request: Mapping[str, Any]) -> None:
        raise refusal("InvalidClientTokenId", 403)

    with pytest.raises(ConfigError, match="InvalidClientTokenId"):
        asyncio.run(_received_one(meddled(queue, Meddler(meddle))))


def test_without_a_destination_for_dead_letters_nothing_is_received(queue: Queue) -> None:
    queue.send([b"{"])
    with pytest.raises(ConfigError, match="dead_letters"):
        asyncio.run(_received_one(queue.source(dead_letters="")))
    assert queue.visible() == 1


def test_without_permission_to_read_attributes_the_source_works_and_logs_it(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    def meddle(operation: str, request: Mapping[str, Any]) -> None:
        if operation == "get_queue_attributes":
            raise refusal("AccessDenied", 403)

    queue.send(bodies(1))
    meddler = Meddler(meddle)
    asyncio.run(_received_one(meddled(queue, meddler)))
    assert meddler.landed == 2
    assert "sqs:GetQueueAttributes" in caplog.text


def test_a_rejected_message_without_dead_letters_is_left_to_the_redrive_policy(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    url = with_redrive(queue, receives=2)
    queue.aws.send_message(QueueUrl=url, MessageBody="{")

    async def story() -> None:
        meddler = Meddler()
        source = queue.source(
            queue=url, dead_letters="", visibility=1, connect=meddler.connect(queue.server, queue.url)
        )
        for times in (1, 2):
            (delivery,) = await received(source, 1)
            await delivery.reject("no event: for a test")
            assert source.counts.left == times
        await until(lambda: queue.visible_of(queue.dead_url) == 1)
        assert meddler.asked("delete_message_batch") == []
        await source.close()

    asyncio.run(story())
    assert queue.dead_letters()[0]["Body"] == "{"
    assert "message_left_to_redrive" in caplog.text
    assert "2 receives" in caplog.text


def test_a_service_out_of_reach_is_waited_for(queue: Queue) -> None:
    async def story() -> None:
        queue.send(bodies(3))
        with FaultProxy("127.0.0.1", queue.server.port) as proxy:
            source = queue.source(endpoint=proxy.url(queue.server.endpoint))
            with proxy.fault(Fault(reset_new=True)):
                receiving = asyncio.ensure_future(received(source, 3))
                await until(lambda: proxy.seen.resets >= 2)
                assert not receiving.done()
            for delivery in await receiving:
                await delivery.ack()
            await source.close()
            assert queue.left() == 0

    asyncio.run(story())


def test_a_source_can_be_closed_before_it_was_opened_while_it_opens_and_twice(queue: Queue) -> None:
    async def story() -> None:
        unused = queue.source()
        await unused.close()
        assert await unused.receive(1) == []
        with FaultProxy("127.0.0.1", queue.server.port) as proxy:
            proxy.set(Fault(reset_new=True))
            opening = queue.source(endpoint=proxy.url(queue.server.endpoint))
            receiving = asyncio.ensure_future(opening.receive(1))
            await until(lambda: proxy.seen.resets >= 1)
            opening.stop()
            assert await receiving == []
            await opening.close()
        used = queue.source()
        queue.send(bodies(1))
        await used.receive(1)
        await used.close()
        await used.close()
        assert queue.left() == 1

    asyncio.run(story())


def test_a_close_that_is_cancelled_gives_everything_back_all_the_same(queue: Queue) -> None:
    """The process lives on: a source that nobody closes would extend what it holds for twelve hours."""

    async def story() -> None:
        queue.send(bodies(2))
        source, other = queue.source(visibility=6), queue.source()
        await received(source, 2)
        closing = asyncio.ensure_future(source.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        for delivery in await received(other, 2):
            await delivery.ack()
        await source.close()
        await other.close()
        assert queue.left() == 0

    asyncio.run(story())


def test_two_concurrent_receives_reopen_the_source_once(queue: Queue) -> None:
    """Messages in a hand that another one has replaced would be hidden until their visibility ends."""

    async def story() -> None:
        refusing = True

        def meddle(operation: str, request: Mapping[str, Any]) -> None:
            if refusing and operation == "get_queue_attributes":
                raise refusal("AWS.SimpleQueueService.NonExistentQueue")

        meddler = Meddler(meddle)
        source = meddled(queue, meddler, pollers=1)

        async def stubborn() -> None:
            while True:
                with suppress(ConfigError):
                    assert await source.receive(1) == []
                    return

        receivers = [asyncio.ensure_future(stubborn()) for _ in range(4)]
        await until(lambda: meddler.landed >= 8)
        refusing = False
        await until(lambda: len(meddler.asked("receive_message")) >= 2)
        await source.close()
        await asyncio.gather(*receivers)
        assert meddler.most["receive_message"] == 1

    asyncio.run(story())


def test_diagnose_shows_the_attributes_of_the_queue(queue: Queue) -> None:
    queue.send(bodies(2))
    facts = rendered(asyncio.run(queue.source().diagnose()))
    assert facts["waiting"] == "2"
    assert facts["kept for"] == "4 days"
    assert (facts["dead letters"].split()[0], queue.dead_url in facts["dead letters"]) == ("0", True)
    assert "redrive" not in facts
    assert rendered(asyncio.run(queue.source(dead_letters="").diagnose()))["dead letters"].startswith("error: ")
    few = rendered(asyncio.run(queue.source(queue=with_redrive(queue, 3), dead_letters="").diagnose()))
    assert few["redrive"].startswith("warning: ")
    assert "3 receives" in few["redrive"]
    assert "redrive" in few["dead letters"]
    gone = rendered(asyncio.run(queue.source(queue=queue.url + "-not-there").diagnose()))
    assert gone["attributes"].startswith("error: ")


def test_deliveries_have_the_tenant_and_the_reading_of_their_source(queue: Queue) -> None:
    async def story() -> None:
        queue.aws.send_message(QueueUrl=queue.url, MessageBody='{"any": {"number": 4711}}')
        source = queue.source(tenant="acme", decode_options=DecodeOptions(origin="crm", id_path="any.number"))
        async with Semel("memory://") as app:
            seen: list[Event] = []

            @app.on("**")
            async def handle(event: Event, ctx: Context) -> None:
                seen.append(event)
                source.stop()

            assert await app.worker(source).run() == 1
        await source.close()
        assert [(event.id, event.tenant, event.origin) for event in seen] == [("4711", "acme", "crm")]

    asyncio.run(story())
    assert queue.left() == 0


@pytest.mark.parametrize(
    "code", ["QueueDoesNotExist", "AWS.SimpleQueueService.QueueDoesNotExist", "a.b#QueueDoesNotExist"]
)
def test_error_names_are_recognised_in_every_spelling(code: str) -> None:
    assert error_name(code) == "QueueDoesNotExist"


@pytest.mark.parametrize("fifo", [True, False])
def test_a_lost_response_of_a_fifo_queue_is_requested_again(new_queue: Callable[..., Queue], fifo: bool) -> None:
    async def story() -> None:
        queue = new_queue(fifo=fifo)

        def meddle(operation: str, request: Mapping[str, Any]) -> None:
            if operation == "receive_message" and meddler.landed < 2:
                raise ConnectionResetError("the answer is lost")

        meddler = Meddler(meddle)
        source = meddled(queue, meddler, pollers=1)
        queue.send(bodies(1))
        for delivery in await received(source, 1):
            await delivery.ack()
        await until(lambda: len(meddler.asked("receive_message")) >= 4)
        await source.close()
        ids = [request.get("ReceiveRequestAttemptId") for request in meddler.asked("receive_message")[:4]]
        if fifo:
            assert ids[0]
            assert ids[0] == ids[1] == ids[2] != ids[3]
        else:
            assert ids == [None] * 4

    asyncio.run(story())
