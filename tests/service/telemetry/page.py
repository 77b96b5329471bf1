"""Reading the page for Prometheus as Prometheus does."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from semel.service.metrics import Metrics
from semel.values.inbox import Depth

Labels = frozenset[tuple[str, str]]


def samples(page: bytes) -> dict[tuple[str, Labels], float]:
    """Every sample of a page, by its name and labels."""
    found: dict[tuple[str, Labels], float] = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            at = (sample.name, frozenset(sample.labels.items()))
            assert at not in found, f"{at} is told twice"
            found[at] = sample.value
    return found


def value(metrics: Metrics, name: str, depths: list[Depth] | None = None, **labels: str) -> float | None:
    return samples(metrics.exposition(depths, now_ms=100_000)[0]).get((name, frozenset(labels.items())))
