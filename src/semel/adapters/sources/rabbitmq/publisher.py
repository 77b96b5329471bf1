"""Handing events on to RabbitMQ, each confirmed by the broker.

A parcel is there when the broker has confirmed it: a quorum queue does so when most of its nodes have it on disk.
Whatever else happens (it came back because no queue takes it, a refusal, a lost connection, the end of our time) it
counts as not there: its sender brings it again, and the consumer finds the duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Callable, Sequence

from pamqp.commands import Basic

from semel.adapters.sources.rabbitmq.address import NAME_MAX_BYTES, check_name, check_url, shown
from semel.adapters.sources.rabbitmq.connecting import Failed, connect, hang_up, told_of
from semel.adapters.sources.rabbitmq.copying import PERSISTENT
from semel.adapters.sources.rabbitmq.sending import Sending
from semel.adapters.sources.rabbitmq.sending import declare as look_at
from semel.adapters.sources.rabbitmq.waiting import QUORUM, queue_arguments
from semel.values.errors import ConfigError
from semel.values.parcel import NOTE, NOTE_MAX, TOO_LARGE, Parcel, write_note

TIMEOUT_S = 5.0
TIMEOUT_MAX_S = 60.0
MESSAGE_MAX_BYTES = 16 * 1024 * 1024  # what a broker takes unless it was told otherwise (older ones: 128 MiB)


class RabbitPublisher:
    """Hands events on to one queue. Opened by the first `publish`, on whose loop it lives until it is closed.

    queue: the name of a queue; with an exchange, the routing key.
    timeout: seconds after which what is not known to be there is answered as such.
    declare: make the queue and `dead_letters` where they are missing, as a source with the same options does.
    """

    def __init__(
        self,
        url: str,
        queue: str,
        *,
        exchange: str = "",
        timeout: float = TIMEOUT_S,
        declare: bool = False,
        dead_letters: str = "",
        random: Callable[[], float] = _random.random,
    ) -> None:
        check_url(url)
        check_name("queue", queue)
        if len(exchange.encode()) > NAME_MAX_BYTES:
            raise ConfigError(f"exchange={exchange!r}: at most {NAME_MAX_BYTES} bytes")
        if not 0 < timeout <= TIMEOUT_MAX_S:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, above 0 and at most {TIMEOUT_MAX_S:g}")
        if declare and (exchange or not dead_letters):
            raise ConfigError(
                "declare: needs dead_letters, the queue that the source names too, and no exchange: what an exchange "
                "routes to is not known here"
            )
        if dead_letters:
            check_name("dead_letters", dead_letters)
        self.queue = queue
        self.dead_letters = dead_letters
        self._declare = declare
        self.exchange = exchange
        self.timeout = timeout
        self._url = url
        self._sending = Sending(url, f"semel-to-{queue}", random)
        self._under_way: set[asyncio.Task[list[str]]] = set()

    def __repr__(self) -> str:
        return f"RabbitPublisher({shown(self._url)!r}, {self.queue!r})"

    async def publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """Each answer is empty when the broker has the parcel. Never waits longer than the timeout."""
        publishing = asyncio.ensure_future(self._publish(parcels))
        self._under_way.add(publishing)
        publishing.add_done_callback(self._under_way.discard)
        return await publishing

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about where it publishes to, for `semel doctor`, also of a publisher that was never used."""
        facts = [("broker", shown(self._url)), ("exchange", self.exchange or "the default one"), ("queue", self.queue)]
        try:
            connection = await connect(self._url, "semel-doctor")
        except Failed as failure:
            return [*facts, ("connection", told_of(failure))]
        try:
            if self.exchange:
                return facts
            waiting, consumers = await look_at(connection, self.queue, None, shown(self._url))
        except Failed as failure:
            if failure.missing and self._declare:
                return [*facts, ("waiting", "the queue is made with the first event")]
            return [*facts, ("queue", f"error: {failure}")]
        finally:
            await hang_up(connection)
        return [*facts, ("waiting", f"{waiting:,}"), ("consumers", f"{consumers:,}")]

    async def close(self) -> None:
        """Return when what is under way has been answered."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        await self._sending.close()

    async def _publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """All at once: on one channel they stay in order, and one confirmation often answers many."""
        return list(await asyncio.gather(*[self._send(parcel) for parcel in parcels]))

    async def _send(self, parcel: Parcel) -> str:
        note = write_note(parcel.note)
        if len(note) > NOTE_MAX:
            return f"{TOO_LARGE}its note has more than {NOTE_MAX:,} bytes"
        if len(parcel.body) > MESSAGE_MAX_BYTES:
            return f"{TOO_LARGE}it has {len(parcel.body):,} bytes, the broker takes {MESSAGE_MAX_BYTES:,}"
        if self._declare and (why := await self._make_queues()):
            return why
        content_type = parcel.content_type or None
        properties = Basic.Properties(content_type=content_type, headers={NOTE: note}, delivery_mode=PERSISTENT)
        return await self._sending.send(self.exchange, self.queue, parcel.body, properties, self.timeout)

    async def _make_queues(self) -> str:
        """Once for each connection. Empty when both are there, else why that is not known."""
        try:
            async with asyncio.timeout(self.timeout):
                await self._sending.declare(self.dead_letters, QUORUM)
                await self._sending.declare(self.queue, queue_arguments(self.dead_letters))
        except TimeoutError:
            return f"{shown(self._url)}: its queues were not made within {self.timeout:g} s"
        except Failed as failure:
            return str(failure)
        return ""
