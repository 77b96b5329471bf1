"""Facts about topics for `semel doctor`, read once. These functions block."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from semel.ports import Fact
from semel.sources.kafka_topic.options import DriverOptions, KafkaOptions
from semel.sources.kafka_topic.poller import DebugLogger, driver
from semel.values.errors import ConfigError

ASK_S = 5.0
UNREACHABLE = ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE")  # failures that can be over soon

Describe: TypeAlias = Callable[[Any, list[Any]], str]
TopicQuery: TypeAlias = Callable[[str, str, Describe], Fact]
"""Takes the name of the fact, the topic, and the function that describes the topic's partitions."""


def diagnose(options: KafkaOptions, driver_options: DriverOptions) -> list[Fact]:
    with _topic_query(driver_options, options.group) as query:
        return [
            Fact("servers", options.servers),
            Fact("group", options.group),
            *[query(f"topic {topic}", topic, _describe_lag) for topic in options.topics],
            query("dead letters", options.dead_letters, _describe_size),
        ]


def diagnose_topic(options: DriverOptions, servers: str, topic: str) -> list[Fact]:
    with _topic_query(options, "semel-doctor") as query:  # a consumer needs a group; it never joins it
        return [Fact("servers", servers), query(f"topic {topic}", topic, _describe_size)]


@contextmanager
def _topic_query(options: DriverOptions, group: str) -> Iterator[TopicQuery]:
    """Yield a function that makes a fact of a topic, or of the error."""
    try:
        kafka = driver()
        consumer = kafka.Consumer(options.consumer(group), logger=DebugLogger())
    except Exception as error:  # no driver, or a refused option
        text = str(error) if isinstance(error, ConfigError) else options.redact(error)
        yield lambda name, topic, describe: Fact(name, text, "error")
        return

    def query_topic(name: str, topic: str, describe: Describe) -> Fact:
        try:
            metadata = consumer.list_topics(topic, timeout=ASK_S).topics[topic]
            if metadata.error is not None:
                return Fact(name, f"{metadata.error.str()}: create the topic, or correct its name", "error")
            partitions = [kafka.TopicPartition(topic, number) for number in sorted(metadata.partitions)]
            return Fact(name, describe(consumer, partitions))
        except kafka.KafkaException as error:
            away = "out of reach: " if error.args[0].name() in UNREACHABLE else ""
            return Fact(name, f"{away}{options.redact(error.args[0].str())}", "error")

    try:
        yield query_topic
    finally:
        consumer.close()


def _describe_lag(consumer: Any, partitions: list[Any]) -> str:
    waiting = 0
    for partition in consumer.committed(partitions, timeout=ASK_S):
        low, high = consumer.get_watermark_offsets(partition, timeout=ASK_S)
        waiting += high - max(low, partition.offset)
    return f"{len(partitions)} partitions, {waiting:,} messages to be acknowledged"


def _describe_size(consumer: Any, partitions: list[Any]) -> str:
    kept = 0
    for partition in partitions:
        low, high = consumer.get_watermark_offsets(partition, timeout=ASK_S)
        kept += high - low
    return f"{len(partitions)} partitions, {kept:,} messages"
