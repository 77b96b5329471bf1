"""A topic, its dead letters and a consumer group, seen by clients of their own."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.sources.consumer_process import happened
from tests.sources.kafka.consumer_process import Plan
from tests.sources.kafka.forking import starting
from tests.sources.places import make_app
from tests.support.servers.kafka import KafkaServer

from semel.core.crash_points import Boundary
from semel.sources.kafka_topic import KafkaSource
from semel.sources.kafka_topic.poller import KafkaStep
from semel.testing.source_laws import SourceDeadLetter, SourceHarness

SOON_S = 60.0
HOLD_S = 30.0  # a message is ours for as long as its partition is, and that is for longer than any law takes
STEPS = (*KafkaStep, Boundary.AFTER_CLAIM, Boundary.AFTER_SETTLE)
SESSION_MS = 2_500  # long enough for a busy machine; the mock cluster lets a whole one pass before a rebalance
GIVEN_SESSION_MS = 6_000  # a real broker takes no shorter one by default
OUTLASTING: Mapping[str, Any] = {"session.timeout.ms": 120_000}  # of who must still be a member after an outage
SHORT_SESSION_MS = 750  # of processes that are killed: the next one waits for its end


class Kept(NamedTuple):
    """A message of a topic."""

    value: bytes | None
    key: bytes | None
    headers: dict[str, bytes | None]
    at_ms: int

    @property
    def reason(self) -> str:
        return (self.headers.get("semel.reason") or b"").decode()


class Topics:
    def __init__(self, server: KafkaServer, *, partitions: int = 1) -> None:
        self.server = server
        self.topic, self.dead = (f"semel-{uuid4().hex}" for _ in range(2))
        self.group = f"semel-{uuid4().hex}"
        self.partitions = partitions
        for topic, count in ((self.topic, partitions), (self.dead, 1)):
            if server.is_given:
                _create(server.servers, topic, count)
            else:
                server.create(topic, count)
        self._producer = Producer({"bootstrap.servers": server.servers, "acks": "all", "linger.ms": 1, "log_level": 0})
        self._looking = self._consumer(self.group)  # never joins
        self._decode_options = self._consumer(uuid4().hex)

    def close(self) -> None:
        self._looking.close()
        self._decode_options.close()

    def _consumer(self, group: str) -> Consumer:
        settings: dict[str, Any] = {"bootstrap.servers": self.server.servers, "group.id": group, "log_level": 0}
        return Consumer(settings | {"enable.auto.commit": False, "enable.partition.eof": True})

    def options(self, session_ms: int = SESSION_MS) -> dict[str, Any]:
        session_ms = GIVEN_SESSION_MS if self.server.is_given else session_ms
        return {"session.timeout.ms": session_ms, "heartbeat.interval.ms": min(250, session_ms // 4)}

    def source(self, **changes: Any) -> KafkaSource:
        options = {**self.options(), **changes.pop("options", {})}
        given = {"group": self.group, "dead_letters": self.dead, "options": options, **changes}
        return KafkaSource(self.server.servers, [self.topic], **given)

    def send(self, bodies: Sequence[bytes | None], group: str = "", **more: Any) -> None:
        """With keys of their own where there is no group."""
        for body in bodies:
            self._producer.produce(self.topic, body, (group or uuid4().hex).encode(), on_delivery=_arrived, **more)
        assert self._producer.flush(SOON_S) == 0

    def positions(self) -> dict[int, int]:
        """What the group has committed."""
        partitions = [TopicPartition(self.topic, number) for number in range(self.partitions)]
        return {
            place.partition: max(0, place.offset) for place in _patiently(lambda: self._looking.committed(partitions))
        }

    def ends(self) -> dict[int, int]:
        """Where each partition ends."""
        return {number: self._high(self.topic, number) for number in range(self.partitions)}

    def _high(self, topic: str, partition: int) -> int:
        place = TopicPartition(topic, partition)
        marks: tuple[int, int] = _patiently(lambda: self._looking.get_watermark_offsets(place, timeout=5.0))
        return marks[1]

    def left(self) -> int:
        positions, ends = self.positions(), self.ends()
        return sum(end - positions[number] for number, end in ends.items())

    def dead_letters(self) -> list[Kept]:
        """Everything on the topic of dead letters."""
        count = self._high(self.dead, 0)
        self._decode_options.assign([TopicPartition(self.dead, 0, 0)])
        found: list[Kept] = []
        ends = time.monotonic() + SOON_S
        while len(found) < count:
            assert time.monotonic() < ends, f"only {len(found)} of {count} letters can be read"
            for message in self._decode_options.consume(count - len(found), 0.05):
                if message.error() is None:
                    headers: Any = dict(message.headers() or ())
                    found.append(Kept(message.value(), message.key(), headers, message.timestamp()[1]))
        return found

    def harness(self, home: Path, *, in_order: bool = False, steps: Sequence[str] = STEPS) -> SourceHarness:
        plan = Plan(
            home=str(home),
            servers=self.server.servers,
            topic=self.topic,
            dead_letters=self.dead,
            group=self.group,
            in_order=in_order,
            options=self.options(SHORT_SESSION_MS),
        )
        return SourceHarness(
            send=self.send,
            open=lambda: self.source(in_order=in_order),
            app=make_app(home),
            left=self.left,
            dead_letters=lambda: [
                SourceDeadLetter(dead_letter.value or b"", dead_letter.reason) for dead_letter in self.dead_letters()
            ],
            consumer=starting(plan, patience_s=0 if self.server.is_given else 1.2 * SHORT_SESSION_MS / 1000),
            steps=steps,
            happened=lambda: happened(home / "ledger.db"),
            hold_s=HOLD_S,
        )


def _create(servers: str, topic: str, partitions: int) -> None:
    """On a real broker, with as many replicas as it makes by itself."""
    admin = AdminClient({"bootstrap.servers": servers})
    for made in admin.create_topics([NewTopic(topic, partitions, -1)]).values():
        made.result(SOON_S)


def _arrived(error: Any, message: Any) -> None:
    assert error is None, error


def _patiently(question: Callable[[], Any]) -> Any:
    """A coordinator moves, and a broker comes back: the question is asked again."""
    ends = time.monotonic() + SOON_S
    while True:
        try:
            return question()
        except KafkaException:
            if time.monotonic() > ends:
                raise
            time.sleep(0.05)
