"""Every metric of the service. docs/metrics.md is this list for people; a test holds one to the other.

The values of labels come from configuration or from a fixed set, never from an event or a request.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from semel.values.outcome import Status
from semel.values.sending import LIVE

OTHER = "(other)"  # what has no place of its own

BreakerState: TypeAlias = Literal["closed", "half-open", "open"]

OUTCOMES: tuple[str, ...] = (*get_args(Status), OTHER)
BREAKER_STATES: tuple[str, ...] = get_args(BreakerState)  # their places are the values of the gauge
TAKEN = ("received", "acked", "retried", "rejected", "failed", "unmatched")
SENT = (  # what is written of a dispatch, and what its guard or its lease had to say
    *("accepted", "refused", "limited", "unknown", "absent", "unclear", "policy", "released"),
    *("suppressed", "held", "lost"),
)
ASKED = ("claim", "settle", "renew", "accept", "take", "finish", "purge")
CODES = (
    *("200", "201", "202", "204", "400", "401", "403", "404", "405", "408", "409", "413", "415", "422", "429", "431"),
    *("499", "500", "503", OTHER),
)

# Seconds. An answer should come within milliseconds, a handler within its timeout, a lease within its retries.
QUICK_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
HANDLER_S = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 60.0, 300.0)
AGE_S = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3_600.0, 21_600.0, 86_400.0)


class Family(Struct, frozen=True):
    """One metric, with all its series."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    among: tuple[str, ...] = ()  # all values of the last label, where they are a fixed set
    bounds: tuple[float, ...] = ()  # of a histogram, in seconds
    across: Literal["sum", "max"] = "sum"  # how a gauge of several processes comes together

    @property
    def width(self) -> int:
        """How many numbers a series has: one for each value of the last label, or buckets and their sum."""
        return len(self.bounds) + 2 if self.bounds else max(1, len(self.among))


DELIVERIES = Family(
    "semel_deliveries_total",
    "counter",
    "What deliveries came to. Without a handler: no event, or an event that nobody wants. "
    "`ignored` of a handler: an inbox item that could not run with the settings of this process.",
    ("handler", "outcome"),
    among=OUTCOMES,
)
DUPLICATES = Family("semel_duplicates_total", "counter", "Deliveries of what was known already.", ("handler",))
CONFLICTS = Family("semel_conflicts_total", "counter", "Deliveries of a known id with another body.", ("handler",))
TAKEOVERS = Family(
    "semel_takeovers_total", "counter", "Leases whose holder before vanished without settling.", ("handler",)
)
FENCED = Family(
    "semel_fence_refusals_total", "counter", "Settles under a lease that was lost: the fence held.", ("handler",)
)
LEASE_AGE = Family(
    "semel_lease_age_seconds",
    "histogram",
    "How old a key was, from its first grant, when it was granted again.",
    ("handler",),
    bounds=AGE_S,
)
HANDLER_SECONDS = Family("semel_handler_seconds", "histogram", "How long handlers ran.", ("handler",), bounds=HANDLER_S)
FAILED_OPEN = Family(
    "semel_fail_open_runs_total",
    "counter",
    "Runs without the ledger, by choice of their route: their effect may happen twice.",
    ("handler",),
)
ANSWERS = Family(
    "semel_http_answers_total", "counter", "Answers given to senders.", ("endpoint", "status"), among=CODES
)
ANSWER_SECONDS = Family(
    "semel_http_seconds", "histogram", "How long senders waited for an answer.", ("endpoint",), bounds=QUICK_S
)
OVERLOADED = Family(
    "semel_overload_refusals_total", "counter", "Deliveries refused because too many were in flight.", ("endpoint",)
)
IN_FLIGHT = Family("semel_in_flight", "gauge", "Deliveries being answered now, in all processes.")
LEDGER_SECONDS = Family("semel_ledger_seconds", "histogram", "Round trips to the store.", ("what",), bounds=QUICK_S)
LEDGER_FAILURES = Family(
    "semel_ledger_failures_total", "counter", "Round trips to the store that failed.", ("what",), among=ASKED
)
LEDGER_BREAKER = Family(
    "semel_ledger_breaker_state",
    "gauge",
    "0 closed, 1 half-open, 2 open: answers 503 at once. The worst of all processes.",
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
    "0 closed, 1 half-open, 2 open: nothing is sent. The worst of all processes.",
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
    "Letters in the inbox: waiting, or taken and being handled.",
    ("lane", "state"),
    among=("waiting", "taken"),
)
INBOX_OLDEST = Family(
    "semel_inbox_oldest_seconds", "gauge", "Age of the oldest letter of a lane; 0 when it is empty.", ("lane",)
)
SOURCE_DELIVERIES = Family(
    "semel_source_deliveries_total",
    "counter",
    "Deliveries of a source: received, and how it was answered; failed: it could not be told. Unmatched is part of it.",
    ("source", "became"),
    among=TAKEN,
)
SOURCE_IN_HAND = Family(
    "semel_source_in_hand", "gauge", "Deliveries of a source that are being handled now.", ("source",)
)
SOURCE_FAILURES = Family(
    "semel_source_failures_total", "counter", "Requests to a source's broker that failed.", ("source",)
)
SOURCE_LOST = Family(
    "semel_source_lost_total",
    "counter",
    "Deliveries that a source's broker has taken back meanwhile, to give them to somebody again.",
    ("source",),
)
SOURCE_BROKEN = Family(
    "semel_source_broken", "gauge", "Processes in which nothing can be taken from this source now.", ("source",)
)
NOTIFICATIONS = Family(
    "semel_notifications_total",
    "counter",
    "What dispatches of notifications came to. Unknown: nobody knows whether it left.",
    ("provider", "answer"),
    among=SENT,
)
PROVIDER_SECONDS = Family(
    "semel_provider_seconds",
    "histogram",
    "How long providers took to answer, or not to.",
    ("provider",),
    bounds=HANDLER_S,
)
OUTBOX_DEPTH = Family(
    "semel_outbox_depth",
    "gauge",
    "Notifications that are not over. Uncertain: evidence, a policy or a person decides. @channel: no provider yet.",
    ("provider", "standing"),
    among=LIVE,
)
OUTBOX_OLDEST = Family(
    "semel_outbox_oldest_seconds",
    "gauge",
    "Age of the oldest notification that is pending or being sent; 0 when there is none.",
    ("provider",),
)
WORKERS = Family("semel_workers", "gauge", "Processes that are alive and count.")
BUILD = Family("semel_build_info", "gauge", "Always 1; the labels say what runs.", ("version", "python"), across="max")

FAMILIES = (
    *(DELIVERIES, DUPLICATES, CONFLICTS, TAKEOVERS, FENCED, LEASE_AGE, HANDLER_SECONDS, FAILED_OPEN),
    *(ANSWERS, ANSWER_SECONDS, OVERLOADED, IN_FLIGHT),
    *(LEDGER_SECONDS, LEDGER_FAILURES, LEDGER_BREAKER, LEDGER_BREAKER_MOVES, BREAKER, BREAKER_MOVES),
    *(INBOX_DEPTH, INBOX_OLDEST),
    *(SOURCE_DELIVERIES, SOURCE_IN_HAND, SOURCE_FAILURES, SOURCE_LOST, SOURCE_BROKEN),
    *(NOTIFICATIONS, PROVIDER_SECONDS, OUTBOX_DEPTH, OUTBOX_OLDEST),
    *(WORKERS, BUILD),
)
OF_OUTCOME = {DUPLICATES.name: "duplicate", CONFLICTS.name: "conflict"}  # read off the deliveries, not counted twice
