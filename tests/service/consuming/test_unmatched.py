"""What is reported about events of a source that no handler wants."""

from __future__ import annotations

from typing import Literal

import pytest
from tests.service.consuming.shelf import Shelf, ShelfItem, run

from semel.core.routing import Unmatched
from semel.values.log import LogEvent


@pytest.mark.parametrize("then", ["ack", "reject"])
def test_the_log_counts_unmatched_events_and_names_their_answer(
    caplog: pytest.LogCaptureFixture, then: Literal["ack", "reject"]
) -> None:
    """At the first, second, fourth, eighth … event of a topic, each topic by itself."""

    async def story() -> None:
        topics = iter(["a"] * 9 + ["b"])
        counted: list[str] = []
        seen = Unmatched(lambda _: next(topics), then, "queue", lambda: counted.append("one"))
        source = Shelf()
        for _ in range(10):
            assert await seen.answer(ShelfItem(source, b"")) is (then == "reject")
        assert [answer.partition(":")[0] for answer in source.answers()] == [then] * 10
        assert len(counted) == 10, "each is counted, also between two lines"

    run(story())
    lines = [record.msg for record in caplog.records if isinstance(record.msg, LogEvent)]
    assert [(line.name, line.fields) for line in lines] == [
        ("event_unmatched", {"source": "queue", "topic": topic, "count": count, "answer": then})
        for topic, count in [("a", 1), ("a", 2), ("a", 4), ("a", 8), ("b", 1)]
    ]
