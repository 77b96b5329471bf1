"""The contract of sources, bound to Kafka: librdkafka's mock cluster, by real sockets, or SEMEL_TEST_KAFKA."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sources.kafka.topics import Topics

from semel.sources.kafka_topic.poller import KafkaStep
from semel.testing.source_laws import HoldingSourceLaws, OrderedSourceLaws, SourceHarness, SourceLaws, WaitingSourceLaws

IN_ORDER_STEPS = (KafkaStep.WAITING, KafkaStep.AFTER_COMMIT, KafkaStep.AFTER_DEAD_LETTER)


class TestKafka(SourceLaws, WaitingSourceLaws, HoldingSourceLaws):
    """With one partition: by the rules of a group it stays with whoever has it."""

    @pytest.fixture
    def harness(self, tmp_path: Path, topics: Topics) -> SourceHarness:
        return topics.harness(tmp_path)


class TestKafkaInOrder(SourceLaws, WaitingSourceLaws, OrderedSourceLaws):
    """With three, of which a second consumer gets some: what the first has in hand of them may come to both."""

    @pytest.fixture
    def harness(self, tmp_path: Path, new_topics: Callable[..., Topics]) -> SourceHarness:
        harness = new_topics(partitions=3).harness(tmp_path, in_order=True, steps=IN_ORDER_STEPS)
        harness.hold_s = 0
        return harness
