"""Options of a Kafka source, and those for librdkafka: the configured ones and those that Semel's guarantees need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from semel.sources.lifecycle import SourceOptions
from semel.values.errors import ConfigError

IN_FLIGHT_MAX = 1_000_000  # they are in memory
BEHIND = 10  # times max_in_flight
DEAD_LETTER_TIMEOUT_S = 30  # for a dead letter to become durable; then it is retried
HIDDEN = "…"

REFUSED = {  # option: why it cannot be set
    "bootstrap.servers": "use the first argument, servers",
    "metadata.broker.list": "use the first argument, servers",
    "group.id": "use the argument group",
    "enable.auto.commit": "Semel commits an offset only when every message before it is settled",
    "enable.auto.offset.store": "Semel stores an offset only when every message before it is settled",
    "auto.commit.enable": "Semel commits an offset only when every message before it is settled",
    "enable.partition.eof": "the end of a partition is no message",
    "partition.assignment.strategy": "Semel uses cooperative-sticky: a rebalance revokes only partitions that move",
    "group.protocol": "Semel uses classic, the tested one",
    "enable.idempotence": "dead letters and forwarded events need an idempotent producer",
    "acks": "a message counts as sent when all in-sync replicas have it",
    "request.required.acks": "a message counts as sent when all in-sync replicas have it",
    "transactional.id": "Semel sends no transactions",
    "offset.store.method": "the broker keeps the offsets, so that the next consumer of the group finds them",
    "delivery.report.only.error": "a message without a delivery report would never count as sent",
}
OF_TOPICS = "topic."  # prefix that librdkafka accepts for many options; it has no effect
SKIPS = ("latest", "largest", "end")
OF_CONSUMERS = re.compile(
    r"group\.|session\.|heartbeat\.|max\.poll\.|auto\.|fetch\.|queued\.(min|max)|max\.partition\.|isolation\.|check\.crcs"
)
SECRET = re.compile(r"password|secret|\.key|token|jaas|oauthbearer\.config|basic\.auth")


class KafkaOptions(SourceOptions, frozen=True, kw_only=True):
    """Options of a Kafka source.

    servers: the bootstrap servers, "broker1:9092,broker2:9092".
    dead_letters: the topic for rejected messages; it must exist.
    in_order: messages of one key run one after the other, also after failures.
    max_in_flight: messages that are received and not settled, including those that wait for a retry.
    max_behind: how far a partition is read beyond its lowest unsettled message; by default ten times max_in_flight.
    options: options of librdkafka, for example TLS and SASL.
    """

    servers: str
    topics: Sequence[str]
    group: str
    in_order: bool = False
    max_in_flight: int = 1_000
    max_behind: int | None = None
    options: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        """Raises ConfigError that names the wrong option."""
        topics, dead_letters, max_in_flight = self.topics, self.dead_letters, self.max_in_flight
        check_servers(self.servers)
        if isinstance(topics, str) or not topics:
            raise ConfigError(f"topics={topics!r}: expected a list of at least one topic")
        for topic in topics:
            check_topic("topics", topic)
        if len(set(topics)) < len(topics):
            raise ConfigError(f"topics={list(topics)!r}: one of them is named twice")
        if not isinstance(self.group, str) or not self.group:
            raise ConfigError("group: name the consumer group; consumers of one group share the partitions of a topic")
        if not dead_letters:
            raise ConfigError(
                "dead_letters: name a topic for rejected messages; Kafka has no other place for them, and an unsettled "
                "message would block the commits of its partition forever"
            )
        check_topic("dead_letters", dead_letters)
        if dead_letters in topics:
            raise ConfigError(
                f"dead_letters={dead_letters!r}: a topic cannot keep its own dead letters; name another one"
            )
        if type(max_in_flight) is not int or not 1 <= max_in_flight <= IN_FLIGHT_MAX:
            raise ConfigError(
                f"max_in_flight={max_in_flight!r}: expected a whole number, at least 1 and at most {IN_FLIGHT_MAX:,}"
            )
        behind = self.behind_max
        if type(behind) is not int or not max_in_flight <= behind <= 10 * IN_FLIGHT_MAX:
            raise ConfigError(f"max_behind={behind!r}: expected a whole number, at least {max_in_flight:,}")

    @property
    def behind_max(self) -> int:
        return BEHIND * self.max_in_flight if self.max_behind is None else self.max_behind

    def __repr__(self) -> str:  # without the options of librdkafka, which can contain secrets
        return f"KafkaOptions({self.servers!r}, {self.topics!r}, group={self.group!r})"


def check_servers(servers: str) -> None:
    if not isinstance(servers, str) or not re.fullmatch(r"[^,\s]+(,\s*[^,\s]+)*", servers):
        raise ConfigError('servers: expected the bootstrap servers, "broker1:9092,broker2:9092"')


def check_topic(name: str, topic: str) -> None:
    if not isinstance(topic, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic):
        raise ConfigError(f"{name}: {topic!r} is not the name of a topic (letters, digits, '.', '_' and '-')")


class DriverOptions:
    """Options of librdkafka, checked. They can contain secrets, so they are never shown."""

    def __init__(self, servers: str, options: Mapping[str, Any]) -> None:
        self._servers = servers
        self._options: dict[str, str | int | float | bool] = {}
        for name, value in options.items():
            if (reason := REFUSED.get(name.removeprefix(OF_TOPICS))) is not None:
                raise ConfigError(f"options: {name} cannot be set: {reason}")
            if not isinstance(value, str | int | float):
                raise ConfigError(f"options: {name}: expected text or a number, not {type(value).__name__}")
            self._options[name.removeprefix(OF_TOPICS)] = value
        reset = self._options.get("auto.offset.reset")
        if str(reset).strip().lower() in SKIPS:  # as librdkafka reads it
            raise ConfigError(
                f"options: auto.offset.reset = {reset} would skip unread messages whenever an offset is missing. To "
                "begin at the end, set the group's offsets once with kafka-consumer-groups --reset-offsets"
            )
        self._secrets = [str(value) for name, value in self._options.items() if SECRET.search(name) and str(value)]

    def __repr__(self) -> str:
        return f"DriverOptions({self._servers}, {sorted(self._options)})"

    def consumer(self, group: str) -> dict[str, Any]:
        return {
            "auto.offset.reset": "earliest",  # without an offset, no message is skipped
            "allow.auto.create.topics": False,  # a misspelt topic is an error, not an empty topic
            "log.connection.close": False,  # brokers close idle connections all day
            **self._options,
            "bootstrap.servers": self._servers,
            "group.id": group,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "partition.assignment.strategy": "cooperative-sticky",
        }

    def producer(self, timeout_s: float, **settings: Any) -> dict[str, Any]:
        options = {name: value for name, value in self._options.items() if not OF_CONSUMERS.match(name)}
        return {
            "message.timeout.ms": max(1, round(timeout_s * 1000)),
            "linger.ms": 5,
            "log.connection.close": False,
            **settings,
            **options,
            "bootstrap.servers": self._servers,
            "enable.idempotence": True,
            "acks": "all",
        }

    def redact(self, error: object) -> str:
        """Return an error as one line without secrets."""
        text = " ".join(str(error).split())
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return text[:500]
