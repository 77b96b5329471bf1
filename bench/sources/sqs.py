"""SQS: Semel's source on a queue in memory, compared with a hand-written loop on the same queue.

The queue has a latency of a millisecond. Both use the same store, a Valkey on loopback.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from bench.sources.fake_sqs import ROUND_TRIP_S, FakeSqs
from bench.sources.plan import DUPLICATES, Line, Sample, Scenario, Sizes
from bench.stores.loops import KEPT_S, Envelope
from bench.stores.on_semel import Counted
from bench.stores.servers import running
from bench.stores.timing import Watch, of_redis
from tests.support.servers.valkey import Valkey

from semel.sources.sqs_queue import SqsSource
from semel.testing.traffic import events

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/bench"
MEMORY = "memory://"
WARM = 200  # other events before the measurement, which open connections and load scripts

LINES = (
    Line("semel_16", "loop", at_least=12),
    Line("semel_16", rate_at_least=20_000),
    Line("semel_4", "loop"),
    Line("semel_1", "loop"),
    Line("near", rate_at_least=20_000),
    Line("memory", "loop"),
    Line("queue"),
    Line("loop"),
)


@contextmanager
def opened(folder: Path, sizes: Sizes) -> Iterator[Sqs]:
    with running(Valkey(folder)) as server:
        yield Sqs(server.url, sizes)


class Sqs:
    """Every measure begins with a full queue and an empty store."""

    name = "sqs"
    title = "SQS, a fake in memory, and one Valkey"
    lines: Sequence[Line] = LINES

    def __init__(self, url: str, sizes: Sizes) -> None:
        self._url = url
        self._sizes = sizes
        self._watch = Watch(of_redis([url]))
        self.scenarios = [
            Scenario("loop", "SET NX loop", "receive one, a pydantic model and one SET NX, delete it", self._loop),
            Scenario("queue", "queue alone", "16 pollers that receive ten and delete ten, and do nothing", self._alone),
            Scenario(
                "semel_1", "Semel, 1 poller", "the whole flow, a handler that counts; 1 worker", self._semel(1, 1)
            ),
            Scenario("semel_4", "Semel, 4 pollers", "the same with 2 workers", self._semel(4, 2)),
            Scenario("semel_16", "Semel, 16 pollers", "the same with 4 workers", self._semel(16, 4)),
            Scenario("near", "… no distance", "the same, and the queue answers at once", self._semel(16, 4, 0.0)),
            Scenario(
                "memory", "… in memory", "the same, 1 ms, on a ledger in memory", self._semel(16, 4, ledger=MEMORY)
            ),
        ]

    def remarks(self) -> list[str]:
        return [
            f"{self._sizes.messages:,} messages of 1.4 KB, of which {DUPLICATES:.0%} are copies; every request to the "
            f"queue takes {ROUND_TRIP_S * 1000:g} ms and an asyncio timer's rounding; the loop has "
            f"{self._sizes.singly:,} messages",
        ]

    # ------------------------------------------------------------------------------------------------------ measures

    def _semel(
        self, pollers: int, workers: int, away_s: float = ROUND_TRIP_S, ledger: str = ""
    ) -> Callable[[], Sample]:
        def measure() -> Sample:
            self._empty()
            return asyncio.run(
                by_semel(self._watch, self._many, ledger or self._url, pollers=pollers, workers=workers, away_s=away_s)
            )

        return measure

    def _loop(self) -> Sample:
        self._empty()
        return asyncio.run(by_hand(self._watch, self._few, self._url))

    def _alone(self) -> Sample:
        return asyncio.run(queue_alone(self._watch, self._many))

    def _empty(self) -> None:
        with redis.Redis.from_url(self._url) as client:
            client.flushall()

    @cached_property
    def _many(self) -> list[bytes]:
        return messages(self._sizes.messages)

    @cached_property
    def _few(self) -> list[bytes]:
        return messages(self._sizes.singly)


def messages(count: int) -> list[bytes]:
    """Genesys events through EventBridge. The copies arrive after all originals. A copy that arrived during the run of
    its original would be busy and return after a second, which would distort the measurement."""
    made = list(events(round(count * (1 - DUPLICATES))))
    return made + made[: count - len(made)]


async def by_semel(
    watch: Watch, bodies: Sequence[bytes], ledger: str, *, pollers: int, workers: int, away_s: float = ROUND_TRIP_S
) -> Sample:
    """The whole flow: decode, key, claim, handler, settle, delete."""
    counted = Counted(ledger)
    queue = FakeSqs(bodies, away_s)
    options: dict[str, Any] = {"pollers": pollers, "max_in_flight": max(1_000, pollers * 20), "wait": 1}
    source = SqsSource(URL, dead_letters=URL + "-dead", connect=queue.connect, **options)
    async with counted.app as app:
        await app.process_many(list(events(WARM, seed=1)))
        counted.ran = 0
        tasks: list[asyncio.Task[int]] = []

        async def work() -> None:
            tasks.extend(asyncio.create_task(app.worker(source).run()) for _ in range(workers))
            emptied = asyncio.create_task(queue.empty.wait())
            await asyncio.wait([emptied, *tasks], return_when=asyncio.FIRST_COMPLETED)
            if not emptied.done():
                emptied.cancel()
                await asyncio.gather(*tasks)  # raises what went wrong

        sample = await watch.timed(len(bodies), work())
        source.stop()
        await asyncio.gather(*tasks)
        await source.close()
    _check(counted.ran, len(set(bodies)))
    return sample


async def by_hand(watch: Watch, bodies: Sequence[bytes], url: str) -> Sample:
    """Receive, mark, act and delete one message: the loop of most tutorials, which loses an event in a crash."""
    queue = FakeSqs(bodies)
    ran = 0

    async def work() -> None:
        nonlocal ran
        while queue.left:
            for message in (await queue.receive_message(WaitTimeSeconds=1))["Messages"]:
                envelope = Envelope.model_validate_json(message["Body"])
                if await client.set(envelope.key, b"1", nx=True, ex=KEPT_S):
                    ran += 1
                await queue.delete_message(ReceiptHandle=message["ReceiptHandle"])

    async with redis.asyncio.Redis.from_url(url) as client:
        await client.ping()
        sample = await watch.timed(len(bodies), work())
    _check(ran, len(set(bodies)))
    return sample


async def queue_alone(watch: Watch, bodies: Sequence[bytes], pollers: int = 16) -> Sample:
    """The cost of the fake, which limits every other line."""
    queue = FakeSqs(bodies)

    async def poll() -> None:
        while queue.waiting:
            received = (await queue.receive_message(MaxNumberOfMessages=10))["Messages"]
            if received:
                entries = [{"Id": str(at), "ReceiptHandle": one["ReceiptHandle"]} for at, one in enumerate(received)]
                await queue.delete_message_batch(Entries=entries)

    async def work() -> None:
        await asyncio.gather(*[poll() for _ in range(pollers)])

    return await watch.timed(len(bodies), work())


def _check(ran: int, distinct: int) -> None:
    if ran != distinct:
        raise AssertionError(f"{ran:,} handlers ran where {distinct:,} had to: its time means nothing")
