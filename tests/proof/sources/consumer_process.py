"""The process that the storm kills: one worker on one source, and effects in a store that everybody sees."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import redis.asyncio
from tests.proof.sources.tally import Tally

from semel import Context, Event, Semel
from semel.ports import Delivery, Source
from semel.values.effect import Effect

TOPIC = "proof"
LEASE_S = 1.5  # long against a round trip, short against a test
LANES = 4  # handlers of one process at a time
NEVER = 10_000  # attempts: nobody is given up on because a stranger kills processes

INSERT = "insert into effect (event) values ($1)"  # no unique constraint anywhere: a double would show
# A downstream that honours keys, as a provider with idempotency keys does, and tells how often it was called.
SINK = """
redis.call('HINCRBY', 'calls', ARGV[1], 1)
if redis.call('SET', 'known:' .. ARGV[1], 1, 'NX') then redis.call('RPUSH', 'effects', ARGV[2]) end
"""

ACK_FIRST = "acknowledges before it has settled"
OUTSIDE = "writes beside its transaction"
OTHER_KEY = "has another key for each run"
BUGS = (ACK_FIRST, OUTSIDE, OTHER_KEY)  # planted: the storm has to find them

HandlerRun = Callable[[Event, Context], Awaitable[None]]


class Plan(msgspec.Struct, frozen=True):
    """What one process is to do."""

    kind: str  # of the source
    options: dict[str, Any]
    ledger: str
    effect: Effect
    sink: str  # the URL of where effects go
    handler_s: float
    tally: str
    bug: str = ""  # one of BUGS


def source_of(kind: str, options: dict[str, Any]) -> Source:
    """Each driver is imported by its own consumers only."""
    if kind == "sqs":
        from semel.sources.sqs_queue import SqsSource

        return SqsSource(**options)
    if kind == "kafka":
        from semel.sources.kafka_topic import KafkaSource

        return KafkaSource(**options)
    from semel.sources.rabbitmq_queue import RabbitSource

    return RabbitSource(**options)


class Watched:
    """A source whose deliveries and answers are counted."""

    def __init__(self, source: Source, tally: Tally, bug: str) -> None:
        self._source = source
        self._tally = tally
        self._bug = bug

    async def receive(self, limit: int) -> Sequence[Delivery]:
        deliveries = await self._source.receive(limit)
        self._tally.add("handed", len(deliveries))
        if self._bug == ACK_FIRST:
            for delivery in deliveries:
                await delivery.ack()
        return [WatchedDelivery(delivery, self._tally) for delivery in deliveries]


class WatchedDelivery(Delivery):
    def __init__(self, delivery: Delivery, tally: Tally) -> None:
        self._delivery = delivery
        self._tally = tally
        self.body = delivery.body
        self.tenant = delivery.tenant
        self.decode_options = getattr(delivery, "decode_options", None)

    async def ack(self) -> None:
        await self._delivery.ack()
        self._tally.add("answered")

    async def retry(self, after_s: float) -> None:
        await self._delivery.retry(after_s)
        self._tally.add("answered")

    async def reject(self, reason: str) -> None:
        await self._delivery.reject(reason)
        self._tally.add("answered")


async def in_transaction(event: Event, ctx: Context) -> None:
    await ctx.tx.execute(INSERT, event.id)


def beside_transaction(url: str) -> HandlerRun:
    async def act(event: Event, ctx: Context) -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(INSERT, event.id)
        finally:
            await connection.close()

    return act


def at_sink(url: str, bug: str) -> HandlerRun:
    sink = redis.asyncio.Redis.from_url(url)

    async def act(event: Event, ctx: Context) -> None:
        key = f"{ctx.key}/{ctx.token}" if bug == OTHER_KEY else ctx.key
        await sink.eval(SINK, 0, key, event.id)

    return act


def act_of(plan: Plan) -> HandlerRun:
    if plan.effect == "transaction":
        return beside_transaction(plan.sink) if plan.bug == OUTSIDE else in_transaction
    return at_sink(plan.sink, plan.bug)


async def work(plan: Plan) -> None:
    """Until it dies."""
    tally = Tally(Path(plan.tally))
    act = act_of(plan)

    async def handle(event: Event, ctx: Context) -> None:
        tally.add("runs")
        await act(event, ctx)
        await asyncio.sleep(plan.handler_s)

    async with Semel(plan.ledger, lease=LEASE_S, concurrency=LANES) as app:
        app.on(TOPIC, effect=plan.effect, name="act", max_attempts=NEVER)(handle)
        await app.worker(Watched(source_of(plan.kind, plan.options), tally, plan.bug)).run()
