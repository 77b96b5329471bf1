"""Where retries wait: queues of the broker, one for each of some delays, from which a message goes back by itself.

    orders ──retry(90)──▶ orders.retry.120s ──after 120 s──▶ orders

A queue is ended from its front only, so that one for all delays would let an hour block a second; hence one for each
delay, and a delay is rounded up to the next. They are made when they are first needed, and never deleted: nobody can
delete a queue only if it is empty and nothing is on its way to it. A longer delay than the longest goes round again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

MINUTE_S, HOUR_S = 60, 3600
DELAYS_S = (
    *(1, 2, 3, 5, 10, 15, 20, 30, 45),
    *(minutes * MINUTE_S for minutes in (1, 2, 3, 5, 10, 15, 20, 30, 45)),
    *(hours * HOUR_S for hours in (1, 2, 3, 4, 6, 8, 12, 24)),
)
SUFFIX_MAX_BYTES = 16  # of the longest name: ".retry.86400s"

QUORUM: Mapping[str, Any] = {"x-queue-type": "quorum"}
AT_LEAST_ONCE: Mapping[
    str, Any
] = {  # what leaves a queue by itself is confirmed by the next one before it is forgotten
    **QUORUM,
    "x-dead-letter-exchange": "",
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
DELIVERY_LIMIT = 100  # of queues that we declare: for what kills every consumer before the ledger can count it


def next_wait(after_s: float) -> tuple[int, float]:
    """The delay to wait first, in whole seconds, and what is left after it. 0: not at all."""
    if after_s <= 0:
        return 0, 0.0
    at = bisect_left(DELAYS_S, after_s)
    return (DELAYS_S[at], 0.0) if at < len(DELAYS_S) else (DELAYS_S[-1], after_s - DELAYS_S[-1])


def wait_queue(queue: str, delay_s: int) -> str:
    return f"{queue}.retry.{delay_s}s"


def wait_arguments(queue: str, delay_s: int) -> dict[str, Any]:
    return {**AT_LEAST_ONCE, "x-dead-letter-routing-key": queue, "x-message-ttl": delay_s * 1000}


def queue_arguments(dead_letters: str) -> dict[str, Any]:
    """Of a queue that we declare: what the broker gives up on becomes a dead letter too."""
    return {**AT_LEAST_ONCE, "x-dead-letter-routing-key": dead_letters, "x-delivery-limit": DELIVERY_LIMIT}
