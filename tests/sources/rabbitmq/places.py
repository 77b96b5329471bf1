"""Queues of a real broker for the laws, and a client of their own that does not wait for any event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar
from uuid import uuid4

import aiormq
import aiormq.abc
from aiormq.exceptions import ChannelNotFoundEntity
from pamqp.commands import Basic
from tests.sources.places import make_app
from tests.sources.rabbitmq.consumer_process import RabbitPlan, happened
from tests.sources.rabbitmq.forking import starting
from tests.support.servers.rabbitmq import Broker

from semel.core.crash_points import Boundary
from semel.sources.rabbitmq_queue import RabbitSource
from semel.sources.rabbitmq_queue.messages import DELAYS_S, QUORUM, queue_arguments, wait_arguments, wait_queue
from semel.sources.rabbitmq_queue.session import RabbitStep
from semel.testing.source_laws import SourceDeadLetter, SourceHarness

T = TypeVar("T")

STEPS = (*RabbitStep, Boundary.AFTER_CLAIM, Boundary.HANDLER_END, Boundary.AFTER_SETTLE)
HOLD_S = 60.0  # far below the broker's timeout of 30 minutes, far above what giving back takes
READY_S = (1, 2)  # delays whose queues are there: a new one is only used when it has aged
CALL_S = 60.0
SETTLED_S = 1.5  # after which a given broker, which does not tell what is in somebody's hands, is believed

# The broker says that an acknowledgement is heard when it is in the queue's log, and counts when that is on the disk. A
# command of our own goes behind all of them: once it is answered, they count. And a message that waited is for a moment
# in both queues, or seen in neither by two looks: two looks at all of them that are the same, with nothing on its way,
# are a true count. Where somebody keeps working there is no such moment; then it is never nothing.
COUNT = """
    Named = fun(Q) -> binary_to_list(element(4, amqqueue:get_name(Q))) end,
    Queues = [Q || Q <- rabbit_amqqueue:list(<<"/">>), lists:prefix("{queue}", Named(Q)), Named(Q) =/= "{dead}"],
    [{{ok, _, _}} = ra:process_command(amqqueue:get_pid(Q), rabbit_fifo:make_garbage_collection())
        || Q <- Queues, Named(Q) =:= "{queue}"],
    Counts = fun(State) -> {{rabbit_fifo:query_messages_total(State), rabbit_fifo:query_stat_dlx(State)}} end,
    Look = fun() -> [element(2, {{ok, _, _}} = ra:leader_query(amqqueue:get_pid(Q), Counts)) || Q <- Queues] end,
    Sum = fun(Seen) -> lists:sum([Total || {{_, {{Total, _}}}} <- Seen]) end,
    Moving = fun(Seen) -> lists:sum([Moves || {{_, {{_, {{Moves, _}}}}}} <- Seen]) end,
    Still = fun
        Again(Seen, 0) -> max(1, Sum(Seen));
        Again(Seen, Looks) ->
            case {{Look(), Moving(Seen)}} of
                {{Seen, 0}} -> Sum(Seen);
                {{Other, _}} -> timer:sleep(5), Again(Other, Looks - 1)
            end
    end,
    Still(Look(), {looks})
"""
LOOKS = 40


class Client:
    """On a loop and a thread of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="client of RabbitMQ", daemon=True)
        self._connection: aiormq.abc.AbstractConnection | None = None

    def __enter__(self) -> Client:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        async def close() -> None:
            if self._connection is not None:
                await self._connection.close()

        self.run(close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CALL_S)
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_S)

    async def channel(self) -> aiormq.abc.AbstractChannel:
        if self._connection is not None and not self._connection.is_closed:
            with suppress(ConnectionError, RuntimeError):  # the broker may have died meanwhile
                return await self._connection.channel(on_return_raises=True)
        self._connection = await aiormq.connect(self._url)
        return await self._connection.channel(on_return_raises=True)


class Place:
    """A quorum queue and its dead letters."""

    def __init__(self, broker: Broker, client: Client, *, declared: bool = True) -> None:
        self.broker = broker
        self.client = client
        self.queue = f"semel-{uuid4().hex}"
        self.dead = f"{self.queue}.dead"
        self._sources: list[RabbitSource] = []
        self._seen_at = 0.0  # when there was something, at a given broker
        if declared:
            self.declare()

    def declare(self, **arguments: Any) -> None:
        async def work() -> None:
            channel = await self.client.channel()
            await channel.queue_declare(self.dead, durable=True, arguments=dict(QUORUM))
            await channel.queue_declare(self.queue, durable=True, arguments={**queue_arguments(self.dead), **arguments})
            for delay in READY_S:
                await channel.queue_declare(
                    wait_queue(self.queue, delay), durable=True, arguments=wait_arguments(self.queue, delay)
                )
            await channel.close()

        self.client.run(work())

    def occupy(self, name: str) -> None:
        """Somebody has made this queue otherwise: our declaration of it is refused."""

        async def work() -> None:
            channel = await self.client.channel()
            await channel.queue_declare(name, durable=True, arguments={**QUORUM, "x-message-ttl": 7})
            await channel.close()

        self.client.run(work())

    def delete(self, *names: str) -> None:
        async def work() -> None:
            channel = await self.client.channel()
            for name in names or (self.queue, self.dead, *[wait_queue(self.queue, delay) for delay in DELAYS_S]):
                await channel.queue_delete(name)
            await channel.close()

        self.client.run(work())

    def send(self, bodies: Sequence[bytes], group: str = "", **properties: Any) -> None:
        async def work() -> None:
            channel = await self.client.channel()
            for body in bodies:
                await channel.basic_publish(
                    body,
                    routing_key=self.queue,
                    properties=Basic.Properties(delivery_mode=2, **properties),
                    mandatory=True,
                )
            await channel.close()

        self.client.run(work())

    def source(self, **options: Any) -> RabbitSource:
        source = RabbitSource(
            options.pop("url", self.broker.url), self.queue, **{"dead_letters": self.dead, "prefetch": 50, **options}
        )
        self._sources.append(source)
        return source

    # ------------------------------------------------------------------------------------------------- what is there

    def left(self) -> int:
        """Not acknowledged, retries that wait included."""
        if self.broker.is_ours:
            return int(self.broker.evaluate(COUNT.format(queue=self.queue, dead=self.dead, looks=LOOKS)))
        waiting = sum(self.ready(name) for name in [wait_queue(self.queue, delay) for delay in DELAYS_S])
        seen = (
            self.ready(self.queue) + waiting + sum(len(source._in_flight) for source in self._sources if source._opened)
        )
        now = time.monotonic()
        self._seen_at = now if seen else self._seen_at or now
        return seen or int(now - self._seen_at < SETTLED_S)

    def ready(self, name: str) -> int:
        """How many messages are to be had; 0 where there is no such queue."""

        async def work() -> int:
            channel = await self.client.channel()
            try:
                told = await channel.queue_declare(name, passive=True)
            except ChannelNotFoundEntity:
                return 0
            await channel.close()
            return told.message_count or 0

        return self.client.run(work())

    def dead_letters(self) -> list[aiormq.abc.DeliveredMessage]:
        """The messages among the dead letters, which stay there."""
        return self.peek(self.dead)

    def peek(self, name: str) -> list[aiormq.abc.DeliveredMessage]:
        async def work() -> list[aiormq.abc.DeliveredMessage]:
            channel = await self.client.channel()
            found = []
            while isinstance((message := await channel.basic_get(name)).delivery, Basic.GetOk):
                found.append(message)
            if found:  # said, or they come back some time after the channel is closed, and the next look sees fewer
                await channel.basic_nack(0, multiple=True, requeue=True)
            await channel.close()
            return found

        return self.client.run(work())

    # -------------------------------------------------------------------------------------------------------- the laws

    def harness(self, home: Path) -> SourceHarness:
        plan = RabbitPlan(str(home), self.broker.url, self.queue, self.dead)
        return SourceHarness(
            send=self.send,
            open=self.source,
            app=make_app(home),
            left=self.left,
            dead_letters=lambda: [
                SourceDeadLetter(message.body, reason_of(message)) for message in self.dead_letters()
            ],
            consumer=starting(plan),
            steps=STEPS,
            happened=lambda: happened(home / "ledger.db"),
            hold_s=HOLD_S,
        )


def headers_of(message: aiormq.abc.DeliveredMessage) -> dict[str, Any]:
    return dict(message.header.properties.headers or {})


def reason_of(message: aiormq.abc.DeliveredMessage) -> str:
    return str(headers_of(message).get("semel.reason", ""))
