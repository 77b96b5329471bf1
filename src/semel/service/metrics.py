"""The metrics of the service, and their page for Prometheus.

Get the counters of a handler once (`metrics.handler("greet")`) and keep them: an increment is then 0.1 µs.
"""

from __future__ import annotations

import platform
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from operator import add
from pathlib import Path
from typing import Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from semel import __version__
from semel.service.shared_counters import SharedCounters, Sheet
from semel.values.delivery_state import LIVE
from semel.values.inbox import Depth
from semel.values.outbox import Backlog
from semel.values.outcome import Status

# Every metric of the service. docs/metrics.md lists the same ones; a test compares them.
#
# Label values come from the configuration or from a fixed set, never from an event or a request.

OTHER = "(other)"  # all values without a series of their own

BreakerState: TypeAlias = Literal["closed", "half-open", "open"]

OUTCOMES: tuple[str, ...] = (*get_args(Status), OTHER)
BREAKER_STATES: tuple[str, ...] = get_args(BreakerState)  # their indexes are the values of the gauge
TAKEN = ("received", "acked", "retried", "rejected", "failed", "unmatched")
SENT = (  # recorded outcomes of a dispatch, and results of its guard and its lease
    *("accepted", "refused", "limited", "unknown", "absent", "unclear", "policy", "released"),
    *("suppressed", "held", "lost"),
)
STORE_CALLS = ("claim", "settle", "renew", "accept", "take", "finish", "purge")
CODES = (
    *("200", "201", "202", "204", "400", "401", "403", "404", "405", "408", "409", "413", "415", "422", "429", "431"),
    *("499", "500", "503", OTHER),
)

# Seconds: milliseconds for a response, up to the timeout for a handler, up to the retries for a lease.
RESPONSE_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HANDLER_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 300.0)
AGE_S = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)


class Family(Struct, frozen=True):
    """One metric, with all its series."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    among: tuple[str, ...] = ()  # all values of the last label, if they are a fixed set
    bounds: tuple[float, ...] = ()  # of a histogram, in seconds
    across: Literal["sum", "max"] = "sum"  # how gauges of several processes are combined

    @property
    def width(self) -> int:
        """The numbers of a series: one for each value of the last label, or buckets and their sum."""
        return len(self.bounds) + 2 if self.bounds else max(1, len(self.among))


DELIVERIES = Family(
    "semel_deliveries_total",
    "counter",
    "Outcomes of deliveries. Without a handler: not an event, or an event that no handler matches. "
    "`ignored` of a handler: an inbox item that could not run with the settings of this process.",
    ("handler", "outcome"),
    among=OUTCOMES,
)
DUPLICATES = Family("semel_duplicates_total", "counter", "Deliveries whose key was settled already.", ("handler",))
CONFLICTS = Family("semel_conflicts_total", "counter", "Deliveries with a known id and another body.", ("handler",))
TAKEOVERS = Family(
    "semel_takeovers_total", "counter", "Leases whose previous holder vanished without settling.", ("handler",)
)
FENCED = Family(
    "semel_fence_refusals_total", "counter", "Settlements under a lost lease, which the fence refused.", ("handler",)
)
LEASE_AGE = Family(
    "semel_lease_age_seconds",
    "histogram",
    "Age of a key since its first grant, when it was granted again.",
    ("handler",),
    bounds=AGE_S,
)
HANDLER_SECONDS = Family(
    "semel_handler_seconds", "histogram", "Duration of handler runs.", ("handler",), bounds=HANDLER_S
)
FAILED_OPEN = Family(
    "semel_fail_open_runs_total",
    "counter",
    "Runs without the ledger, of routes with fail_open: their effect may happen twice.",
    ("handler",),
)
ANSWERS = Family("semel_http_answers_total", "counter", "Responses to senders.", ("endpoint", "status"), among=CODES)
ANSWER_SECONDS = Family(
    "semel_http_seconds", "histogram", "Time until senders got a response.", ("endpoint",), bounds=RESPONSE_S
)
OVERLOADED = Family(
    "semel_overload_refusals_total", "counter", "Deliveries refused because too many were in flight.", ("endpoint",)
)
IN_FLIGHT = Family("semel_in_flight", "gauge", "Deliveries in flight, in all processes.")
LEDGER_SECONDS = Family("semel_ledger_seconds", "histogram", "Round trips to the store.", ("what",), bounds=RESPONSE_S)
LEDGER_FAILURES = Family(
    "semel_ledger_failures_total", "counter", "Round trips to the store that failed.", ("what",), among=STORE_CALLS
)
LEDGER_BREAKER = Family(
    "semel_ledger_breaker_state",
    "gauge",
    "0 closed, 1 half-open, 2 open: deliveries get 503 at once. The maximum of all processes.",
    across="max",
)
LEDGER_BREAKER_MOVES = Family(
    "semel_ledger_breaker_transitions_total",
    "counter",
    "Changes of the ledger's breaker to this state.",
    ("to",),
    among=BREAKER_STATES,
)
BREAKER = Family(
    "semel_destination_breaker_state",
    "gauge",
    "0 closed, 1 half-open, 2 open: nothing is sent. The maximum of all processes.",
    ("destination",),
    across="max",
)
BREAKER_MOVES = Family(
    "semel_destination_breaker_transitions_total",
    "counter",
    "Changes of a destination's breaker to this state.",
    ("destination", "to"),
    among=BREAKER_STATES,
)
INBOX_DEPTH = Family(
    "semel_inbox_depth",
    "gauge",
    "Inbox items: waiting, or taken by a worker.",
    ("lane", "state"),
    among=("waiting", "taken"),
)
INBOX_OLDEST = Family(
    "semel_inbox_oldest_seconds", "gauge", "Age of the oldest inbox item of a lane; 0 if it is empty.", ("lane",)
)
SOURCE_DELIVERIES = Family(
    "semel_source_deliveries_total",
    "counter",
    "Deliveries of a source: received, and their answers. failed: it could not be answered. unmatched: also counted as "
    "its answer.",
    ("source", "became"),
    among=TAKEN,
)
SOURCE_IN_FLIGHT = Family("semel_source_in_flight", "gauge", "Deliveries of a source in flight.", ("source",))
SOURCE_FAILURES = Family(
    "semel_source_failures_total", "counter", "Failed requests to the broker of a source.", ("source",)
)
SOURCE_LOST = Family(
    "semel_source_lost_total",
    "counter",
    "Deliveries that the broker of a source redelivers elsewhere.",
    ("source",),
)
SOURCE_BROKEN = Family(
    "semel_source_broken", "gauge", "Processes that cannot receive from this source now.", ("source",)
)
NOTIFICATIONS = Family(
    "semel_notifications_total",
    "counter",
    "Outcomes of attempts to send notifications. unknown: the message may have been sent.",
    ("provider", "answer"),
    among=SENT,
)
PROVIDER_SECONDS = Family(
    "semel_provider_seconds",
    "histogram",
    "Duration of provider calls, including those without an answer.",
    ("provider",),
    bounds=HANDLER_S,
)
OUTBOX_DEPTH = Family(
    "semel_outbox_depth",
    "gauge",
    "Unfinished notifications. uncertain: a report, a policy or an operator decides. @channel: no provider yet.",
    ("provider", "delivery_state"),
    among=LIVE,
)
OUTBOX_OLDEST = Family(
    "semel_outbox_oldest_seconds",
    "gauge",
    "Age of the oldest notification that is pending or sending; 0 if there is none.",
    ("provider",),
)
WORKERS = Family("semel_workers", "gauge", "Running processes.")
BUILD = Family(
    "semel_build_info", "gauge", "Always 1; the labels are the versions.", ("version", "python"), across="max"
)

FAMILIES = (
    *(DELIVERIES, DUPLICATES, CONFLICTS, TAKEOVERS, FENCED, LEASE_AGE, HANDLER_SECONDS, FAILED_OPEN),
    *(ANSWERS, ANSWER_SECONDS, OVERLOADED, IN_FLIGHT),
    *(LEDGER_SECONDS, LEDGER_FAILURES, LEDGER_BREAKER, LEDGER_BREAKER_MOVES, BREAKER, BREAKER_MOVES),
    *(INBOX_DEPTH, INBOX_OLDEST),
    *(SOURCE_DELIVERIES, SOURCE_IN_FLIGHT, SOURCE_FAILURES, SOURCE_LOST, SOURCE_BROKEN),
    *(NOTIFICATIONS, PROVIDER_SECONDS, OUTBOX_DEPTH, OUTBOX_OLDEST),
    *(WORKERS, BUILD),
)
OF_OUTCOME = {DUPLICATES.name: "duplicate", CONFLICTS.name: "conflict"}  # derived from the deliveries


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABELS_MAX = 500  # handlers, endpoints, destinations or sources; further ones are counted together as OTHER

Series: TypeAlias = dict[tuple[str, ...], list[float]]  # label values, and the numbers
Of = TypeVar("Of")


class Number:
    """One counter or gauge."""

    __slots__ = ("_at", "_numbers")

    def __init__(self, numbers: memoryview[float], at: int) -> None:
        self._numbers = numbers
        self._at = at

    def up(self) -> None:
        self._numbers[self._at] += 1.0

    def down(self) -> None:
        self._numbers[self._at] -= 1.0

    def add(self, amount: float) -> None:
        self._numbers[self._at] += amount

    def set(self, value: float) -> None:
        self._numbers[self._at] = value


class Spread:
    """A histogram: a count per bucket, and the sum."""

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


class HandlerMetrics:
    """The metrics of one handler."""

    __slots__ = ("failed_open", "fenced", "lease_age", "outcomes", "seconds", "takeovers")

    def __init__(self, series: SeriesAllocator, name: str) -> None:
        self.outcomes = series.numbers(DELIVERIES, name)
        self.takeovers = series.number(TAKEOVERS, name)
        self.fenced = series.number(FENCED, name)
        self.failed_open = series.number(FAILED_OPEN, name)
        self.lease_age = series.spread(LEASE_AGE, name)
        self.seconds = series.spread(HANDLER_SECONDS, name)


class EndpointMetrics:
    """The metrics of one endpoint."""

    __slots__ = ("_answers", "overloaded", "seconds")

    def __init__(self, series: SeriesAllocator, path: str) -> None:
        by_text = series.numbers(ANSWERS, path)
        self._answers = {int(code): number for code, number in by_text.items() if code != OTHER}
        self._answers[0] = by_text[OTHER]
        self.overloaded = series.number(OVERLOADED, path)
        self.seconds = series.spread(ANSWER_SECONDS, path)

    def answered(self, status: int) -> None:
        (self._answers.get(status) or self._answers[0]).up()


class SourceMetrics:
    """The metrics of one source."""

    __slots__ = ("became", "broken", "failures", "in_flight", "lost")

    def __init__(self, series: SeriesAllocator, name: str) -> None:
        self.became = series.numbers(SOURCE_DELIVERIES, name)
        self.in_flight = series.number(SOURCE_IN_FLIGHT, name)
        self.failures = series.number(SOURCE_FAILURES, name)
        self.lost = series.number(SOURCE_LOST, name)
        self.broken = series.number(SOURCE_BROKEN, name)


class ProviderMetrics:
    """The metrics of one provider."""

    __slots__ = ("became", "seconds")

    def __init__(self, series: SeriesAllocator, name: str) -> None:
        self.became = series.numbers(NOTIFICATIONS, name)
        self.seconds = series.spread(PROVIDER_SECONDS, name)


class BreakerMetrics:
    """The state of one breaker, and its changes."""

    __slots__ = ("_last", "_moves", "_state")

    def __init__(self, state: Number, moves: dict[str, Number]) -> None:
        self._state = state
        self._moves = moves
        self._last: BreakerState = "closed"

    def set_state(self, state: BreakerState) -> None:
        """Record the state; only a change is counted."""
        if state != self._last:
            self._last = state
            self._state.set(BREAKER_STATES.index(state))
            self._moves[state].up()


class SeriesAllocator:
    """Allocates counters, gauges and histograms for series."""

    def __init__(self, counters: SharedCounters) -> None:
        self._counters = counters

    def number(self, family: Family, *labels: str) -> Number:
        return Number(self._counters.numbers, self._counters.row((family.name, *labels), family.width))

    def numbers(self, family: Family, *labels: str) -> dict[str, Number]:
        """One counter for each value of the last label."""
        at = self._counters.row((family.name, *labels), family.width)
        return {value: Number(self._counters.numbers, at + place) for place, value in enumerate(family.among)}

    def spread(self, family: Family, *labels: str) -> Spread:
        return Spread(self._counters.numbers, self._counters.row((family.name, *labels), family.width), family.bounds)


class Metrics:
    """The metrics of this process. With a shared directory, `exposition` covers all processes.

    The directory belongs to one run of the service: it is created at its start and removed at its end."""

    def __init__(self, directory: str | Path | None = None) -> None:
        fleeting = [family.name for family in FAMILIES if family.kind == "gauge"]
        self._counters = SharedCounters(Path(directory) if directory else None, fleeting)
        self._allocator = series = SeriesAllocator(self._counters)
        self._handlers: dict[str, HandlerMetrics] = {}
        self._endpoints: dict[str, EndpointMetrics] = {}
        self._destinations: dict[str, BreakerMetrics] = {}
        self._sources: dict[str, SourceMetrics] = {}
        self._providers: dict[str, ProviderMetrics] = {}
        self.in_flight = series.number(IN_FLIGHT)
        self.ledger_seconds = {what: series.spread(LEDGER_SECONDS, what) for what in STORE_CALLS}
        self.ledger_failures = series.numbers(LEDGER_FAILURES)
        self.ledger_breaker = BreakerMetrics(series.number(LEDGER_BREAKER), series.numbers(LEDGER_BREAKER_MOVES))
        series.number(WORKERS).set(1)
        series.number(BUILD, __version__, platform.python_version()).set(1)

    def handler(self, name: str) -> HandlerMetrics:
        """The metrics of a handler. Its series start at 0. The empty name is for deliveries without a handler."""
        return self._handlers.get(name) or _bounded(
            self._handlers, name, lambda own: HandlerMetrics(self._allocator, own)
        )

    def endpoint(self, path: str) -> EndpointMetrics:
        """`path` is a configured path, never the requested one."""
        return self._endpoints.get(path) or _bounded(
            self._endpoints, path, lambda own: EndpointMetrics(self._allocator, own)
        )

    def destination(self, name: str) -> BreakerMetrics:
        return self._destinations.get(name) or _bounded(
            self._destinations,
            name,
            lambda own: BreakerMetrics(
                self._allocator.number(BREAKER, own), self._allocator.numbers(BREAKER_MOVES, own)
            ),
        )

    def source(self, name: str) -> SourceMetrics:
        return self._sources.get(name) or _bounded(self._sources, name, lambda own: SourceMetrics(self._allocator, own))

    def provider(self, name: str) -> ProviderMetrics:
        return self._providers.get(name) or _bounded(
            self._providers, name, lambda own: ProviderMetrics(self._allocator, own)
        )

    def exposition(
        self,
        depths: Sequence[Depth] | None = None,
        now_ms: int | None = None,
        backlog: Sequence[Backlog] | None = None,
    ) -> tuple[bytes, str]:
        """The page for Prometheus, and its content type.

        `depths` comes from the inbox and `backlog` from the outbox. They are the same for every process, so they are
        not added up. None leaves their metrics out."""
        now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
        page = _Page(self._counters.read(), depths, now_ms, backlog)
        registry = CollectorRegistry()
        registry.register(page)
        return generate_latest(registry), CONTENT_TYPE

    def close(self) -> None:
        """Release the counters, as the end of the process does."""
        self._counters.close()


def _bounded(known: dict[str, Of], name: str, make: Callable[[str], Of]) -> Of:
    if name not in known and len(known) >= LABELS_MAX:
        name = OTHER
    return known.setdefault(name, make(name))


class _Page:
    """The combined numbers of all processes, for one scrape."""

    def __init__(
        self,
        sheets: Iterable[Sheet],
        depths: Sequence[Depth] | None,
        now_ms: int,
        backlog: Sequence[Backlog] | None = None,
    ) -> None:
        self._series: dict[str, Series] = {family.name: {} for family in FAMILIES}
        known = {family.name: family for family in FAMILIES}
        for sheet in sheets:
            for (name, *labels), row in sheet.items():
                if name in known and len(row) == known[name].width:
                    self._add(known[name], tuple(labels), row)
        for name, outcome in OF_OUTCOME.items():
            place = OUTCOMES.index(outcome)
            deliveries = self._series[DELIVERIES.name]
            self._series[name] = {labels: [row[place]] for labels, row in deliveries.items() if labels != ("",)}
        if depths is not None:
            self._add_depths(depths, now_ms)
        if backlog is not None:
            self._add_backlog(backlog, now_ms)

    def collect(self) -> Iterable[Metric]:
        for family in FAMILIES:
            if series := self._series[family.name]:
                yield _histogram(family, series) if family.bounds else _plain(family, series)

    def _add(self, family: Family, labels: tuple[str, ...], row: tuple[float, ...]) -> None:
        before = self._series[family.name].get(labels)
        if before is None:
            self._series[family.name][labels] = list(row)
        else:
            join = max if family.across == "max" else add
            before[:] = map(join, before, row)

    def _add_depths(self, depths: Sequence[Depth], now_ms: int) -> None:
        """A lane of a handler that is empty gets 0, so that it is not missing."""
        rows = {name: [0.0, 0.0] for (name,) in self._series[DELIVERIES.name] if name}
        oldest_s = dict.fromkeys(rows, 0.0)
        for depth in depths:
            lane = depth.lane if depth.lane in rows or len(rows) < LABELS_MAX else OTHER
            row = rows.setdefault(lane, [0.0, 0.0])
            row[:] = row[0] + depth.waiting, row[1] + depth.taken
            age_s = (now_ms - depth.oldest_ms) / 1000 if depth.waiting or depth.taken else 0.0
            oldest_s[lane] = max(age_s, oldest_s.get(lane, 0.0))
        self._series[INBOX_DEPTH.name] = {(lane,): row for lane, row in rows.items()}
        self._series[INBOX_OLDEST.name] = {(lane,): [age_s] for lane, age_s in oldest_s.items()}

    def _add_backlog(self, backlog: Sequence[Backlog], now_ms: int) -> None:
        """Covers every provider of the settings, and others with waiting notifications."""
        names = {labels[0] for labels in self._series[NOTIFICATIONS.name]}
        depth = {name: [0.0] * OUTBOX_DEPTH.width for name in names}
        oldest_s = dict.fromkeys(depth, 0.0)
        for waiting in backlog:
            name = waiting.provider if waiting.provider in depth or len(depth) < LABELS_MAX else OTHER
            row = depth.setdefault(name, [0.0] * OUTBOX_DEPTH.width)
            row[OUTBOX_DEPTH.among.index(waiting.state)] += waiting.count
            age_s = 0.0 if waiting.state == "uncertain" else max(0.0, (now_ms - waiting.oldest_ms) / 1000)
            oldest_s[name] = max(age_s, oldest_s.get(name, 0.0))
        self._series[OUTBOX_DEPTH.name] = {(name,): row for name, row in depth.items()}
        self._series[OUTBOX_OLDEST.name] = {(name,): [age_s] for name, age_s in oldest_s.items()}


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
