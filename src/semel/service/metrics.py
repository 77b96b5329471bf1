"""The numbers of the service: counted here, and told to Prometheus.

Whoever counts asks once for its numbers (`metrics.handler("greet")`) and keeps them: an increment is then 0.1 µs.
"""

from __future__ import annotations

import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import TypeAlias, TypeVar

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from semel import __version__
from semel.service import families
from semel.service.families import OTHER, BreakerState, Family
from semel.service.slots import Sheet, Slots
from semel.values.inbox import Depth
from semel.values.outbox import Backlog

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS_MAX = 500  # handlers, endpoints, destinations and sources; more of a kind are counted together as OTHER

Series: TypeAlias = dict[tuple[str, ...], list[float]]  # the values of the labels, and the numbers
Of = TypeVar("Of")


class Number:
    """One number: a counter goes up, a gauge is set."""

    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: memoryview[float], at: int) -> None:
        self._numbers = numbers
        self._at = at

    def up(self) -> None:
        self._numbers[self._at] += 1.0

    def down(self) -> None:
        self._numbers[self._at] -= 1.0

    def add(self, many: float) -> None:
        self._numbers[self._at] += many

    def set(self, value: float) -> None:
        self._numbers[self._at] = value


class Spread:
    """A histogram: how many were at most so large, for each bound, and their sum."""

    __slots__ = ("_at", "_bounds", "_numbers", "_sum")

    def __init__(self, numbers: memoryview[float], at: int, bounds: tuple[float, ...]) -> None:
        self._numbers = numbers
        self._at = at
        self._bounds = bounds
        self._sum = at + len(bounds) + 1

    def saw(self, seconds: float) -> None:
        numbers = self._numbers
        numbers[self._at + bisect_left(self._bounds, seconds)] += 1.0
        numbers[self._sum] += seconds


class OfHandler:
    """The numbers of one handler."""

    __slots__ = ("failed_open", "fenced", "lease_age", "outcomes", "seconds", "takeovers")

    def __init__(self, book: Book, name: str) -> None:
        self.outcomes = book.numbers(families.DELIVERIES, name)
        self.takeovers = book.number(families.TAKEOVERS, name)
        self.fenced = book.number(families.FENCED, name)
        self.failed_open = book.number(families.FAILED_OPEN, name)
        self.lease_age = book.spread(families.LEASE_AGE, name)
        self.seconds = book.spread(families.HANDLER_SECONDS, name)


class OfEndpoint:
    """The numbers of one path."""

    __slots__ = ("_answers", "overloaded", "seconds")

    def __init__(self, book: Book, path: str) -> None:
        by_text = book.numbers(families.ANSWERS, path)
        self._answers = {int(code): number for code, number in by_text.items() if code != OTHER}
        self._answers[0] = by_text[OTHER]
        self.overloaded = book.number(families.OVERLOADED, path)
        self.seconds = book.spread(families.ANSWER_SECONDS, path)

    def answered(self, status: int) -> None:
        (self._answers.get(status) or self._answers[0]).up()


class OfSource:
    """The numbers of one source."""

    __slots__ = ("became", "broken", "failures", "in_hand", "lost")

    def __init__(self, book: Book, name: str) -> None:
        self.became = book.numbers(families.SOURCE_DELIVERIES, name)
        self.in_hand = book.number(families.SOURCE_IN_HAND, name)
        self.failures = book.number(families.SOURCE_FAILURES, name)
        self.lost = book.number(families.SOURCE_LOST, name)
        self.broken = book.number(families.SOURCE_BROKEN, name)


class OfProvider:
    """The numbers of one provider."""

    __slots__ = ("became", "seconds")

    def __init__(self, book: Book, name: str) -> None:
        self.became = book.numbers(families.NOTIFICATIONS, name)
        self.seconds = book.spread(families.PROVIDER_SECONDS, name)


class OfBreaker:
    """The state of one breaker, and its changes."""

    __slots__ = ("_last", "_moves", "_state")

    def __init__(self, state: Number, moves: dict[str, Number]) -> None:
        self._state = state
        self._moves = moves
        self._last: BreakerState = "closed"

    def says(self, state: BreakerState) -> None:
        """Told at each change, or now and then; only a change is counted."""
        if state != self._last:
            self._last = state
            self._state.set(families.BREAKER_STATES.index(state))
            self._moves[state].up()


class Book:
    """Gives series their place among the numbers."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def number(self, family: Family, *labels: str) -> Number:
        return Number(self._slots.numbers, self._slots.row((family.name, *labels), family.width))

    def numbers(self, family: Family, *labels: str) -> dict[str, Number]:
        """One for each value of the last label."""
        at = self._slots.row((family.name, *labels), family.width)
        return {value: Number(self._slots.numbers, at + place) for place, value in enumerate(family.among)}

    def spread(self, family: Family, *labels: str) -> Spread:
        return Spread(self._slots.numbers, self._slots.row((family.name, *labels), family.width), family.bounds)


class Metrics:
    """All numbers of this process. With a directory that several processes share, `exposition` tells of all of them.

    The directory belongs to one run of the service: made new when it starts, removed when it has ended."""

    def __init__(self, directory: str | Path | None = None) -> None:
        fleeting = [family.name for family in families.FAMILIES if family.kind == "gauge"]
        self._slots = Slots(Path(directory) if directory else None, fleeting)
        self._book = book = Book(self._slots)
        self._handlers: dict[str, OfHandler] = {}
        self._endpoints: dict[str, OfEndpoint] = {}
        self._destinations: dict[str, OfBreaker] = {}
        self._sources: dict[str, OfSource] = {}
        self._providers: dict[str, OfProvider] = {}
        self.in_flight = book.number(families.IN_FLIGHT)
        self.ledger_seconds = {what: book.spread(families.LEDGER_SECONDS, what) for what in families.ASKED}
        self.ledger_failures = book.numbers(families.LEDGER_FAILURES)
        self.ledger_breaker = OfBreaker(
            book.number(families.LEDGER_BREAKER), book.numbers(families.LEDGER_BREAKER_MOVES)
        )
        book.number(families.WORKERS).set(1)
        book.number(families.BUILD, __version__, platform.python_version()).set(1)

    def handler(self, name: str) -> OfHandler:
        """Its series exist from now on, at 0. The empty name is for deliveries without a handler."""
        return self._handlers.get(name) or _bounded(self._handlers, name, lambda own: OfHandler(self._book, own))

    def endpoint(self, path: str) -> OfEndpoint:
        """As configured, never as requested."""
        return self._endpoints.get(path) or _bounded(self._endpoints, path, lambda own: OfEndpoint(self._book, own))

    def destination(self, name: str) -> OfBreaker:
        return self._destinations.get(name) or _bounded(self._destinations, name, self._breaker)

    def source(self, name: str) -> OfSource:
        return self._sources.get(name) or _bounded(self._sources, name, lambda own: OfSource(self._book, own))

    def provider(self, name: str) -> OfProvider:
        return self._providers.get(name) or _bounded(self._providers, name, lambda own: OfProvider(self._book, own))

    def exposition(
        self,
        depths: Sequence[Depth] | None = None,
        now_ms: int | None = None,
        backlog: Sequence[Backlog] | None = None,
    ) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type.

        `depths` is what the inbox just said, `backlog` what the outbox did: they are the same for every process, so
        they are told and not added up. None: nobody could ask it, and the page says nothing about it."""
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        page = _Page(self._slots.read(), depths, now_ms, backlog)
        registry = CollectorRegistry()
        registry.register(page)
        return generate_latest(registry), CONTENT_TYPE

    def close(self) -> None:
        """As if the process had ended."""
        self._slots.close()

    def _breaker(self, name: str) -> OfBreaker:
        return OfBreaker(self._book.number(families.BREAKER, name), self._book.numbers(families.BREAKER_MOVES, name))


def _bounded(known: dict[str, Of], name: str, make: Callable[[str], Of]) -> Of:
    if name not in known and len(known) >= LABELS_MAX:
        name = OTHER
    return known.setdefault(name, make(name))


class _Page:
    """What all processes say, put together for one scrape."""

    def __init__(
        self,
        sheets: Iterable[Sheet],
        depths: Sequence[Depth] | None,
        now_ms: int,
        backlog: Sequence[Backlog] | None = None,
    ) -> None:
        self._series: dict[str, Series] = {family.name: {} for family in families.FAMILIES}
        known = {family.name: family for family in families.FAMILIES}
        for sheet in sheets:
            for (name, *labels), row in sheet.items():
                if name in known and len(row) == known[name].width:
                    self._add(known[name], tuple(labels), row)
        for name, outcome in families.OF_OUTCOME.items():
            place = families.OUTCOMES.index(outcome)
            deliveries = self._series[families.DELIVERIES.name]
            self._series[name] = {labels: [row[place]] for labels, row in deliveries.items() if labels != ("",)}
        if depths is not None:
            self._tell_depths(depths, now_ms)
        if backlog is not None:
            self._tell_backlog(backlog, now_ms)

    def collect(self) -> Iterable[Metric]:
        for family in families.FAMILIES:
            if series := self._series[family.name]:
                yield _histogram(family, series) if family.bounds else _plain(family, series)

    def _add(self, family: Family, labels: tuple[str, ...], row: tuple[float, ...]) -> None:
        before = self._series[family.name].get(labels)
        if before is None:
            self._series[family.name][labels] = list(row)
        else:
            join = max if family.across == "max" else add
            before[:] = map(join, before, row)

    def _tell_depths(self, depths: Sequence[Depth], now_ms: int) -> None:
        """Every lane that has a handler is told, so that an empty one is 0 and not missing."""
        rows = {name: [0.0, 0.0] for (name,) in self._series[families.DELIVERIES.name] if name}
        oldest_s = dict.fromkeys(rows, 0.0)
        for depth in depths:
            lane = depth.lane if depth.lane in rows or len(rows) < LABELS_MAX else OTHER
            row = rows.setdefault(lane, [0.0, 0.0])
            row[:] = row[0] + depth.waiting, row[1] + depth.taken
            age_s = (now_ms - depth.oldest_ms) / 1000 if depth.waiting or depth.taken else 0.0
            oldest_s[lane] = max(age_s, oldest_s.get(lane, 0.0))
        self._series[families.INBOX_DEPTH.name] = {(lane,): row for lane, row in rows.items()}
        self._series[families.INBOX_OLDEST.name] = {(lane,): [age_s] for lane, age_s in oldest_s.items()}

    def _tell_backlog(self, backlog: Sequence[Backlog], now_ms: int) -> None:
        """Every provider of the settings is told, and the others that something waits for."""
        names = {labels[0] for labels in self._series[families.NOTIFICATIONS.name]}
        depth = {name: [0.0] * families.OUTBOX_DEPTH.width for name in names}
        oldest_s = dict.fromkeys(depth, 0.0)
        for waiting in backlog:
            name = waiting.provider if waiting.provider in depth or len(depth) < LABELS_MAX else OTHER
            row = depth.setdefault(name, [0.0] * families.OUTBOX_DEPTH.width)
            row[families.OUTBOX_DEPTH.among.index(waiting.state)] += waiting.count
            age_s = 0.0 if waiting.state == "uncertain" else max(0.0, (now_ms - waiting.oldest_ms) / 1000)
            oldest_s[name] = max(age_s, oldest_s.get(name, 0.0))
        self._series[families.OUTBOX_DEPTH.name] = {(name,): row for name, row in depth.items()}
        self._series[families.OUTBOX_OLDEST.name] = {(name,): [age_s] for name, age_s in oldest_s.items()}


def _plain(family: Family, series: Series) -> Metric:
    kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
    metric = kind(family.name, family.help, labels=family.labels)
    for labels, row in series.items():
        if not family.among:
            metric.add_metric(labels, row[0])
        for last, value in zip(family.among, row, strict=False):
            metric.add_metric([*labels, last], value)
    return metric


def _histogram(family: Family, series: Series) -> Metric:
    metric = HistogramMetricFamily(family.name, family.help, labels=family.labels)
    bounds = [*(str(bound) for bound in family.bounds), "+Inf"]
    for labels, row in series.items():
        *counts, total = row
        metric.add_metric(labels, list(zip(bounds, accumulate(counts), strict=True)), total)
    return metric
