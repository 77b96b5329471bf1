"""The contract of publishers, bound to Kafka (librdkafka's mock cluster)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.sources.kafka.topics import Topics
from tests.sources.places import make_app
from tests.support.servers.kafka import KafkaServer

from semel.sources.kafka_topic import KafkaPublisher
from semel.testing.publisher_laws import OrderedPublisherLaws, PublisherHarness, PublisherLaws
from semel.values.forwarded import ForwardedEvent


class TestKafkaPublisher(PublisherLaws, OrderedPublisherLaws):
    @pytest.fixture
    def harness(self, own_kafka: KafkaServer, tmp_path: Path) -> Iterator[PublisherHarness]:
        topics = Topics(own_kafka, partitions=2)
        server = own_kafka.process

        @contextmanager
        def silent() -> Iterator[Callable[[], bool]]:
            server.pause()
            try:
                yield lambda: _state(server.pid) == "T"
            finally:
                server.resume()

        yield PublisherHarness(
            open=lambda timeout: KafkaPublisher(own_kafka.servers, topics.topic, timeout=timeout),
            source=lambda: topics.source(forwarded=True),
            app=make_app(tmp_path),
            silent=silent,
            unfit=[ForwardedEvent(b"x" * 3_000_000)],
        )
        topics.close()


def _state(pid: int) -> str:
    """T: it is stopped, and answers nobody."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
