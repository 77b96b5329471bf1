"""Hands events on to a topic: the publishing side of `accept = "kafka"`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from semel.adapters.sources.kafka.diagnosis import diagnose_topic
from semel.adapters.sources.kafka.options import Options, check_servers, check_topic
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
        self._sender = Sender(self._options, settings, f"Kafka, topic {topic}")

    async def publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """Answer each parcel, in order: empty when Kafka has it and will not lose it, else why not."""
        answers: list[str | None] = [None] * len(parcels)
        left = len(parcels)
        all_answered = asyncio.Event()

        def answered(at: int, error: KafkaError | None) -> None:
            nonlocal left
            answers[at] = "" if error is None else self._refusal(error)
            left -= 1
            if not left:
                all_answered.set()

        try:
            for at, parcel in enumerate(parcels):
                self._send(parcel, partial(answered, at))
        except ConfigError as error:  # an option that librdkafka does not take
            return [str(error)] * len(parcels)
        try:
            async with asyncio.timeout(self._timeout_s):
                if parcels:
                    await all_answered.wait()
        except TimeoutError:
            pass
        late = f"Kafka, topic {self.topic}: no answer within {self._timeout_s:g} s; whether it is there is not known"
        return [late if answer is None else answer for answer in answers]

    def _send(self, parcel: Parcel, report: Report) -> None:
        headers: list[Header] = [(NOTE, write_note(parcel.note).encode())]
        key = parcel.group.encode("utf-8", "surrogatepass") if parcel.group else None
        self._sender.send(self.topic, parcel.body, key=key, headers=headers, report=report)

    def _refusal(self, error: KafkaError) -> str:
        if error.name() == "MSG_SIZE_TOO_LARGE":
            return f"{TOO_LARGE}Kafka, topic {self.topic}, takes no messages of this size (message.max.bytes)"
        return f"Kafka, topic {self.topic}: {self._options.plain(error.str())}"

    async def diagnose(self) -> list[tuple[str, str]]:
        """What it publishes to, for people."""
        return await asyncio.to_thread(diagnose_topic, self._options, self.servers, self.topic)

    async def close(self) -> None:
        """Return when what is under way has been answered."""
        await self._sender.close(self._timeout_s)
