"""What a cluster says of our topics, asked once, for people. These functions block."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from semel.adapters.sources.kafka.options import Options
from semel.adapters.sources.kafka.telling import Quiet, driver
from semel.values.errors import ConfigError

ASK_S = 5.0
AWAY = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE")  # what may be over in a moment


def diagnose(
    options: Options, servers: str, topics: Sequence[str], group: str, dead_letters: str
) -> list[tuple[str, str]]:
    """A value that begins with "error: " or "warning: " is one."""
    with _asking(options, group) as asking:
        return [
            ("servers", servers),
            ("group", group),
            *[(f"topic {topic}", asking(topic, _to_be_acknowledged)) for topic in topics],
            ("dead letters", asking(dead_letters, _kept)),
        ]


def diagnose_topic(options: Options, servers: str, topic: str) -> list[tuple[str, str]]:
    with _asking(options, "semel-doctor") as asking:  # a consumer needs a group; it never joins it
        return [("servers", servers), (f"topic {topic}", asking(topic, _kept))]


@contextmanager
def _asking(options: Options, group: str) -> Iterator[Callable[[str, Callable[[Any, list[Any]], str]], str]]:
    """Gives a function that asks about a topic, and whose answers say what went wrong."""
    try:
        kafka = driver()
        consumer = kafka.Consumer(options.consumer(group), logger=Quiet())
    except Exception as error:  # no driver, or whatever it says of an option
        said = str(error) if isinstance(error, ConfigError) else options.plain(error)
        yield lambda topic, question: f"error: {said}"
        return

    def ask(topic: str, question: Callable[[Any, list[Any]], str]) -> str:
        try:
            told = consumer.list_topics(topic, timeout=ASK_S).topics[topic]
            if told.error is not None:
                return f"error: {told.error.str()}: create the topic, or correct its name"
            return question(consumer, [kafka.TopicPartition(topic, number) for number in sorted(told.partitions)])
        except kafka.KafkaException as error:
            away = "out of reach: " if error.args[0].name() in AWAY else ""
            return f"error: {away}{options.plain(error.args[0].str())}"

    try:
        yield ask
    finally:
        consumer.close()


def _to_be_acknowledged(consumer: Any, partitions: list[Any]) -> str:
    waiting = 0
    for place in consumer.committed(partitions, timeout=ASK_S):
        low, high = consumer.get_watermark_offsets(place, timeout=ASK_S)
        waiting += high - max(low, place.offset)
    return f"{len(partitions)} partitions, {waiting:,} messages to be acknowledged"


def _kept(consumer: Any, partitions: list[Any]) -> str:
    kept = 0
    for place in partitions:
        low, high = consumer.get_watermark_offsets(place, timeout=ASK_S)
        kept += high - low
    return f"{len(partitions)} partitions, {kept:,} messages"
