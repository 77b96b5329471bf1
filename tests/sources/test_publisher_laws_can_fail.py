"""Laws that cannot fail prove nothing: publishers with a bug each, and the law that must catch it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.sources.places import Queue
from tests.sources.test_sqs_publisher import harness_of, publisher

from semel.aws import AwsClient
from semel.sources.sqs_queue import SqsPublisher
from semel.sources.sqs_queue.publisher import Outgoing
from semel.testing.laws import publishers
from semel.testing.proxy import FaultProxy
from semel.testing.publisher_laws import OrderedPublisherLaws, PublisherHarness, PublisherLaws
from semel.values.forwarded import TOO_LARGE, UNFIT, ForwardedEvent, ForwardMetadata

LAWS, ORDER = PublisherLaws(), OrderedPublisherLaws()


class Hopeful(SqsPublisher):
    """Takes silence for consent."""

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        return [why if why.startswith((TOO_LARGE, UNFIT)) else "" for why in await super().publish(parcels)]


class Patient(SqsPublisher):
    """Waits for as long as it takes."""

    def __init__(self, *options: Any, **more: Any) -> None:
        super().__init__(*options, **{**more, "timeout": 60.0})


class Careless(SqsPublisher):
    """Loses the notes."""

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        return await super().publish([replace(parcel, metadata=ForwardMetadata()) for parcel in parcels])


class Tidy(SqsPublisher):
    """Takes away white space."""

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        return await super().publish([replace(parcel, body=parcel.body.strip()) for parcel in parcels])


class Short(SqsPublisher):
    """One request for each call, whatever it holds."""

    async def _send_all(self, client: AwsClient, outgoing: Sequence[Outgoing]) -> None:
        await super()._send_all(client, outgoing[:10])
        for one in outgoing[10:]:
            one.reason = ""


class Spiteful(SqsPublisher):
    """One that does not fit spoils all."""

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        answers = await super().publish(parcels)
        return [answers[0] or why for why in answers] if all(answers) else ["spoilt" for _ in answers]


class Mixing(SqsPublisher):
    """Answers of one call go to another."""

    _others: tuple[str, ...] = ()

    async def publish(self, parcels: Sequence[ForwardedEvent]) -> list[str]:
        mine = await super().publish(parcels)
        others, self._others = self._others, (*mine, "somebody else's")
        return list(others or mine)


class Brusque(SqsPublisher):
    """Does not wait for anybody when it closes."""

    async def close(self) -> None:
        for publishing in self._publishing:
            publishing.cancel()
        await super().close()


class Shuffling(SqsPublisher):
    """The last one first."""

    async def _send_all(self, client: AwsClient, outgoing: Sequence[Outgoing]) -> None:
        await super()._send_all(client, outgoing[::-1])


@pytest.fixture
def bound(new_queue: Any, tmp_path: Path, quick_end: None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A harness for a publisher with a bug."""
    monkeypatch.setattr(publishers, "SOON_S", 1.5)  # what never happens need not be waited for so long

    def bind(kind: type[SqsPublisher], proxy: FaultProxy, queue: Queue) -> PublisherHarness:
        harness = harness_of(queue, proxy, tmp_path)
        endpoint, region = proxy.url(queue.server.endpoint), queue.server.region
        harness.open = lambda timeout: kind(queue.url, endpoint=endpoint, region=region, timeout=timeout)
        return harness

    return bind


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "law"),
    [
        (
            Hopeful,
            lambda harness: LAWS.test_a_silent_broker_is_reported_in_time_and_used_again_when_it_answers(harness, True),
        ),
        (
            Patient,
            lambda harness: LAWS.test_a_silent_broker_is_reported_in_time_and_used_again_when_it_answers(harness, True),
        ),
        (Careless, LAWS.test_a_confirmed_event_is_stored_unchanged),
        (Careless, LAWS.test_an_event_is_the_same_one_by_whichever_way_it_comes),
        (Tidy, LAWS.test_a_confirmed_event_is_stored_unchanged),
        (Short, LAWS.test_more_than_fits_into_one_request_is_published_all_the_same),
        (Spiteful, LAWS.test_an_unfit_event_is_refused_permanently_and_affects_no_other),
        (Mixing, LAWS.test_several_publishes_at_a_time_get_their_own_answers),
        (Brusque, LAWS.test_close_returns_when_everything_is_answered),
        (Shuffling, ORDER.test_events_of_a_group_stay_in_order),
    ],
)
def test_a_law_catches_the_bug_it_is_for(
    bound: Any, new_queue: Any, kind: type[SqsPublisher], law: Callable[[PublisherHarness], None]
) -> None:
    queue: Queue = new_queue(fifo=kind is Shuffling)
    with FaultProxy("127.0.0.1", queue.server.port) as proxy:
        with pytest.raises((AssertionError, TimeoutError, pytest.fail.Exception, asyncio.CancelledError)) as caught:
            law(bound(kind, proxy, queue))
    assert "inconclusive" not in str(caught.value)


def test_a_publisher_can_be_used_again_after_it_was_closed(queue: Queue) -> None:
    place = publisher(queue)

    async def once() -> None:
        many = [ForwardedEvent(b"x") for _ in range(300)]  # more requests than there may be at a time
        assert await place.publish(many) == [""] * 300
        await place.close()

    asyncio.run(once())
    asyncio.run(once())  # on another loop
