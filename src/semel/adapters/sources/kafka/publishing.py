"""Hands events on to a topic: the publishing side of `accept = "kafka"`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from semel.adapters.sources.kafka.diagnosis import diagnose_topic
from semel.adapters.sources.kafka.options import Options, check_servers, check_topic
from semel.adapters.sources.kafka.sending import TOO_LARGE as BATCH_TOO_LARGE
from semel.adapters.sources.kafka.sending import Header, Report, Sender
from semel.values.errors import ConfigError
from semel.values.parcel import NOTE, TOO_LARGE, Parcel, write_note

if TYPE_CHECKING:
    from confluent_kafka import KafkaError

TIMEOUT_S = 5.0  # a webhook's sender waits for our answer
EARLIER = 0.9  # librdkafka gives up before we do, so that its own words can be told


class KafkaPublisher:
    """A parcel counts when all replicas in sync have it. Opened by the first `publish`, on whose loop it lives.

    timeout: seconds within which every call is answered."""

    def __init__(
        self, servers: str, topic: str, *, timeout: float = TIMEOUT_S, options: Mapping[str, str] | None = None
    ) -> None:
        check_servers(servers)
        check_topic("topic", topic)
        if not 0.1 <= timeout <= 300:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, at least 0.1 and at most 300")
        self.servers = servers
        self.topic = topic
        self._timeout_s = timeout
        self._options = Options(servers, options or {})
        settings = self._options.producer(timeout * EARLIER, **{"allow.auto.create.topics": False})
        self._together = Sender(self._options, settings, f"Kafka, topic {topic}")
        # A batch that is too large is refused as a whole. What is too large by itself is known when it was sent alone.
        self._alone = Sender(self._options, settings | {"batch.num.messages": 1}, f"Kafka, topic {topic}, one by one")

    async def publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """Answer each parcel, in order: empty when Kafka has it and will not lose it, else why not."""
        answers: list[str | None] = [None] * len(parcels)
        left = len(parcels)
        all_answered = asyncio.Event()

        def answer(at: int, why: str) -> None:
            nonlocal left
            answers[at] = why
            left -= 1
            if not left:
                all_answered.set()

        def sent_alone(at: int, error: KafkaError | None) -> None:
            answer(at, self._why(error))

        def sent_together(at: int, error: KafkaError | None) -> None:
            if error is None or error.name() != BATCH_TOO_LARGE:
                answer(at, self._why(error))
                return
            try:
                self._send(self._alone, parcels[at], partial(sent_alone, at))
            except ConfigError as failed:
                answer(at, str(failed))

        try:
            for at, parcel in enumerate(parcels):
                self._send(self._together, parcel, partial(sent_together, at))
        except ConfigError as error:  # an option that librdkafka does not take
            return [str(error)] * len(parcels)
        try:
            async with asyncio.timeout(self._timeout_s):
                if parcels:
                    await all_answered.wait()
        except TimeoutError:
            pass
        late = f"Kafka, topic {self.topic}: no answer within {self._timeout_s:g} s; whether it is there is not known"
        return [late if why is None else why for why in answers]

    def _send(self, sender: Sender, parcel: Parcel, report: Report) -> None:
        headers: list[Header] = [(NOTE, write_note(parcel.note).encode())]
        if parcel.content_type:
            headers.append(("content-type", parcel.content_type.encode()))
        key = parcel.group.encode("utf-8", "surrogatepass") if parcel.group else None
        sender.send(self.topic, parcel.body, key=key, headers=headers, report=report)

    def _why(self, error: KafkaError | None) -> str:
        if error is None:
            return ""
        if error.name() == BATCH_TOO_LARGE:
            return f"{TOO_LARGE}Kafka, topic {self.topic}, takes no messages of this size (message.max.bytes)"
        return f"Kafka, topic {self.topic}: {self._options.plain(error.str())}"

    async def diagnose(self) -> list[tuple[str, str]]:
        """What it publishes to, for people."""
        return await asyncio.to_thread(diagnose_topic, self._options, self.servers, self.topic)

    async def close(self) -> None:
        """Return when what is under way has been answered."""
        await self._together.close(self._timeout_s)
        await self._alone.close(self._timeout_s)
