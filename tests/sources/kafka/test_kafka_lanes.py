"""How far a partition may be committed, for every order of answers."""

from __future__ import annotations

from random import Random
from typing import Any, cast

import pytest

from semel.sources.kafka_topic.in_flight import NONE, KafkaMessage, PartitionLane


def filled(offsets: list[int]) -> tuple[PartitionLane, list[KafkaMessage]]:
    lane = PartitionLane("topic", 0)
    return lane, [lane.add(offset, cast(Any, object())) for offset in offsets]


@pytest.mark.parametrize("seed", range(20))
def test_a_position_never_passes_an_unsettled_message(seed: int) -> None:
    random = Random(seed)
    offsets = sorted(random.sample(range(1_000), 40))  # a compacted topic has gaps
    lane, held = filled(offsets)
    left = set(offsets)
    for one in random.sample(held, len(held)):
        lane.settle(one)
        left.discard(one.offset)
        assert all(lane.position <= offset for offset in left)
        assert len(lane.outstanding) == sum(offset >= min(left, default=1_000) for offset in offsets)
    assert lane.position == offsets[-1] + 1


def test_nothing_is_settled_until_the_lowest_is() -> None:
    lane, (first, second, third) = filled([40, 41, 42])
    lane.settle(second)
    lane.settle(third)
    assert lane.position == NONE
    assert third.record is None, "only its offset is kept until then"
    lane.settle(first)
    assert lane.position == 43
