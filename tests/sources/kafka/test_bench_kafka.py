"""The measures of Kafka run, and each of them handles every message."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.sources import kafka
from bench.sources.plan import Sizes
from bench.sources.rounds import finding


@pytest.mark.long
def test_every_measure_of_kafka_runs(tmp_path: Path) -> None:
    with kafka.opened(tmp_path, Sizes(rounds=1, messages=4_000, singly=10)) as part:
        samples = {scenario.name: [scenario.measure()] for scenario in part.scenarios}
        labels = {scenario.name: scenario.label for scenario in part.scenarios}
        assert "4,000 messages" in part.remarks()[0]
    findings = [finding(line, labels, samples) for line in part.lines]
    assert all(one.rate > 0 for one in findings)
    assert findings[0].aim.startswith("≥ 30,000/s")
