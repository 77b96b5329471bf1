"""Laws of a publisher: forwarded events reach the broker, and an answer means that they are stored there."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import pytest

from semel.ports import Delivery, Entry, Publisher, Source, Stoppable
from semel.testing.laws.source_harness import SOON_S, TOPIC, Handle, SourceWorker, document
from semel.values.event import PLAIN, DecodeOptions, Event
from semel.values.forwarded import TOO_LARGE, UNFIT, ForwardedEvent, ForwardMetadata

TIMEOUT_S = 20.0  # for a healthy broker; long, because the machine may be busy
SHORT_S = 1.5  # for a silent broker
RECEIVE_MAX = 50
TICKS = 5  # of the loop, until waiting tasks have their answers
LARGE = 150_000  # bytes; two such events exceed one SQS request
METADATA = (
    ForwardMetadata(),
    ForwardMetadata("acme"),
    ForwardMetadata(
        "é – 漢字",
        DecodeOptions(origin="platform", id_path="a.b", type_path="c"),
        trace="00-" + "1" * 32 + "-" + "2" * 16,
    ),
    ForwardMetadata(
        "acme", headers={"ce-specversion": "1.0", "ce-id": "1", "content-type": "text/plain; charset=utf-8"}
    ),
)
BINARY = {
    "ce-specversion": "1.0",
    "ce-id": "e",
    "ce-type": TOPIC,
    "ce-source": "/s",
    "content-type": "application/json",
}


class PublisherApp(Protocol):
    """`semel.Semel`."""

    async def process(
        self,
        body: bytes,
        *,
        tenant: str | None = None,
        origin: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any: ...
    def worker(self, source: Source) -> SourceWorker: ...
    async def entries(self, state: str | None = None, limit: int = 100) -> Sequence[Entry]: ...
    async def close(self) -> None: ...


@dataclass
class PublisherHarness:
    """Access to one empty destination at a broker."""

    open: Callable[[float], Publisher]
    """Opens another publisher to this destination, with this timeout in seconds."""

    source: Callable[[], Source]
    """Opens a consumer of this destination on the running loop. It trusts the metadata of forwarded events. Its
    deliveries have `decode_options` and `headers`."""

    app: Callable[[Handle], PublisherApp]
    """Opens an app with its own ledger and one handler for TOPIC, named "handle"."""

    silent: Callable[[], AbstractContextManager[Callable[[], bool]]]
    """During this block the broker accepts or keeps connections but sends nothing. Yields a function that returns
    whether the fault landed: a request was sent and got no answer. After the block the broker works again."""

    unfit: Sequence[ForwardedEvent]
    """Events that this broker never accepts. One of them is too large."""


class Got(NamedTuple):
    """One event as a consumer receives it."""

    body: bytes
    tenant: str
    decode_options: DecodeOptions
    headers: tuple[tuple[str, str], ...]


def got(delivery: Delivery) -> Got:
    headers: Mapping[str, str] | None = getattr(delivery, "headers", None)
    decode_options = delivery.decode_options
    return Got(delivery.body, delivery.tenant, decode_options or PLAIN, _pairs(headers))


def expected(event: ForwardedEvent) -> Got:
    metadata = event.metadata
    return Got(event.body, metadata.tenant, metadata.decode_options, _pairs(metadata.headers))


def _pairs(headers: Mapping[str, str] | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((headers or {}).items()))


@asynccontextmanager
async def opened(harness: PublisherHarness, timeout_s: float = TIMEOUT_S) -> AsyncIterator[Publisher]:
    publisher = harness.open(timeout_s)
    try:
        yield publisher
    finally:
        await publisher.close()


async def taken(harness: PublisherHarness, wanted: Iterable[Got]) -> list[Got]:
    """Consume until all wanted events have arrived. Returns everything received, in order, with redeliveries."""
    missing = set(wanted)
    found: list[Got] = []
    source = harness.source()
    try:
        async with asyncio.timeout(SOON_S):
            while missing:
                for delivery in await source.receive(RECEIVE_MAX):
                    found.append(got(delivery))
                    missing.discard(found[-1])
                    await delivery.ack()
    except TimeoutError:
        pytest.fail(f"{len(missing)} confirmed events did not arrive, such as {min(missing)!r:.300}")
    finally:
        if isinstance(source, Stoppable):
            await source.close()
    return found


def events(count: int, **data: Any) -> list[ForwardedEvent]:
    return [
        ForwardedEvent(document(f"e{number:04}", **data), METADATA[number % len(METADATA)]) for number in range(count)
    ]


class PublisherBinding:
    """A publisher's test class overrides `harness`."""

    @pytest.fixture
    def harness(self) -> PublisherHarness:
        raise NotImplementedError("bind the laws to a publisher: override the fixture `harness`")


class PublishLaws(PublisherBinding):
    """Laws of the answers of a publisher, and of the events at the broker."""

    def test_a_confirmed_event_is_stored_unchanged(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            bodies = [
                document("é – 漢字 \U0001f4de"),
                b" \t\r\n" + document("spaced") + b"\n",
                document("large", text="x" * LARGE),
                b"no JSON at all",
            ]
            handed = [
                ForwardedEvent(body, metadata, f"{at}") for at, body in enumerate(bodies) for metadata in METADATA
            ]
            async with opened(harness) as publisher:
                assert await publisher.publish(handed) == [""] * len(handed)
            assert set(await taken(harness, map(expected, handed))) == set(map(expected, handed))

        asyncio.run(story())

    def test_nothing_at_all_is_answered_with_nothing(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            async with opened(harness) as publisher:
                assert await publisher.publish([]) == []

        asyncio.run(story())

    def test_more_than_fits_into_one_request_is_published_all_the_same(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            handed = [*events(45), *[ForwardedEvent(document(f"large{at}", text="x" * LARGE)) for at in range(4)]]
            async with opened(harness) as publisher:
                assert await publisher.publish(handed) == [""] * len(handed)
            assert set(await taken(harness, map(expected, handed))) == set(map(expected, handed))

        asyncio.run(story())

    def test_an_unfit_event_is_refused_permanently_and_affects_no_other(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            good = events(len(harness.unfit) + 3)
            mixed = [one for pair in zip(good, harness.unfit, strict=False) for one in pair] + good[-3:]
            async with opened(harness) as publisher:
                answers = await publisher.publish(mixed)
            refusals = [answer for event, answer in zip(mixed, answers, strict=True) if event in harness.unfit]
            assert all(reason.startswith((TOO_LARGE, UNFIT)) for reason in refusals), refusals
            assert any(reason.startswith(TOO_LARGE) for reason in refusals), refusals
            assert [answer for event, answer in zip(mixed, answers, strict=True) if event in good] == [""] * len(good)
            found = set(await taken(harness, map(expected, good)))
            assert found == set(map(expected, good)), "refused events are not at the broker"

        asyncio.run(story())

    def test_several_publishes_at_a_time_get_their_own_answers(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            portions = [[ForwardedEvent(document(f"{at}-{number}")) for number in range(7)] for at in range(20)]
            async with opened(harness) as publisher:
                answers = await asyncio.gather(*[publisher.publish(portion) for portion in portions])
            assert answers == [[""] * 7] * 20
            handed = [expected(event) for portion in portions for event in portion]
            assert set(await taken(harness, handed)) == set(handed)

        asyncio.run(story())

    @pytest.mark.parametrize("used", [False, True], ids=["never used", "used before"])
    def test_a_silent_broker_is_reported_in_time_and_used_again_when_it_answers(
        self, harness: PublisherHarness, used: bool
    ) -> None:
        async def story() -> None:
            before, during, after = [ForwardedEvent(document(event)) for event in ("before", "during", "after")]
            async with opened(harness, SHORT_S) as publisher:
                if used:
                    await _until_there(publisher, before)
                with harness.silent() as landed:
                    async with asyncio.timeout(SOON_S):
                        (why,) = await publisher.publish([during])
                    assert landed(), "inconclusive: the broker was not silent"
                assert why
                assert not why.startswith((TOO_LARGE, UNFIT)), "the refusal is not permanent"
                await _until_there(publisher, after)
            await taken(harness, [expected(after), *([expected(before)] if used else [])])

        asyncio.run(story())

    def test_close_returns_when_everything_is_answered(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            handed = events(60)
            publisher = harness.open(TIMEOUT_S)
            publishing = [asyncio.ensure_future(publisher.publish([event])) for event in handed]
            await asyncio.sleep(0)  # all of them have started
            await publisher.close()
            for _ in range(TICKS):
                await asyncio.sleep(0)
            assert all(one.done() for one in publishing)
            there = [event for event, one in zip(handed, publishing, strict=True) if one.result() == [""]]
            assert there == handed, "a healthy broker accepts the requests in flight"
            assert set(await taken(harness, map(expected, there))) == set(map(expected, there))

        asyncio.run(story())

    def test_an_event_is_the_same_one_by_whichever_way_it_comes(self, harness: PublisherHarness) -> None:
        """An event has the same key whether it reaches the app directly, as a webhook, or through the broker."""

        async def story() -> None:
            ran: list[str] = []

            async def handle(event: Event, ctx: Any) -> None:
                ran.append(event.tenant)

            app = harness.app(handle)
            data = json.dumps({"text": "x"}).encode()
            ways: list[tuple[bytes, ForwardMetadata]] = [
                (document("e"), ForwardMetadata()),
                (document("e"), ForwardMetadata("acme")),
                (document("e"), ForwardMetadata("acme", DecodeOptions(origin="platform"))),
                (data, ForwardMetadata("binary", headers=BINARY)),
            ]
            for body, metadata in ways:
                await app.process(
                    body, tenant=metadata.tenant, origin=metadata.decode_options.origin, headers=metadata.headers
                )
            async with opened(harness) as publisher:
                handed = [ForwardedEvent(body, metadata) for body, metadata in ways] + [
                    ForwardedEvent(document("last"), ForwardMetadata("last"))
                ]
                assert await publisher.publish(handed[:-1]) == [""] * len(ways)
                assert await publisher.publish(handed[-1:]) == [""]
            source = harness.source()
            working = asyncio.ensure_future(app.worker(source).run())
            ends = asyncio.get_running_loop().time() + SOON_S
            while len(ran) < len(ways) + 1 and not working.done():
                assert asyncio.get_running_loop().time() < ends, f"the last event did not arrive: {ran}"
                await asyncio.sleep(0.05)
            assert isinstance(source, Stoppable)
            source.stop()
            await working
            await source.close()
            entries = await app.entries()
            await app.close()
            assert ran == ["", "acme", "acme", "binary", "last"], "each had its effect once"
            assert {entry.state for entry in entries} == {"done"}
            assert len(entries) == len(ways) + 1

        asyncio.run(story())


class PublishOrderLaws(PublisherBinding):
    """Laws for brokers that keep order within a group."""

    def test_events_of_a_group_stay_in_order(self, harness: PublisherHarness) -> None:
        async def story() -> None:
            handed = [
                ForwardedEvent(document(f"{at:03}", group=at % 3), ForwardMetadata(), f"group {at % 3}")
                for at in range(48)
            ]
            async with opened(harness) as publisher:
                assert await publisher.publish(handed[:36]) == [""] * 36
                for event in handed[36:]:
                    assert await publisher.publish([event]) == [""]
            found = [one.body for one in await taken(harness, map(expected, handed))]
            for group in range(3):
                assert _firsts([body for body in found if json.loads(body)["data"]["group"] == group]) == [
                    event.body for event in handed if event.group == f"group {group}"
                ]

        asyncio.run(story())


async def _until_there(publisher: Publisher, event: ForwardedEvent) -> None:
    """Publish until the broker confirms. On a busy machine the short timeout may need several attempts."""
    ends = asyncio.get_running_loop().time() + SOON_S
    while (answers := await publisher.publish([event])) != [""]:
        assert asyncio.get_running_loop().time() < ends, answers
        await asyncio.sleep(0.05)


def _firsts(bodies: Sequence[bytes]) -> list[bytes]:
    return list(dict.fromkeys(bodies))
