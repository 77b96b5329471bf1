"""What the log says of outcomes. Whoever answers a delivery calls this; the library alone leaves it to its caller."""

from __future__ import annotations

import logging

from semel.values.outcome import Outcome

log = logging.getLogger("semel")

SAID = ("retry", "dead", "uncertain", "conflict", "malformed")  # what someone may want to look into


def say(outcome: Outcome) -> None:
    """Not its reason: that may hold an exception's words, and those a customer's data. The ledger keeps it."""
    for part in outcome.parts or (outcome,):
        if part.status in SAID:
            which = f"{part.handler or 'event'} {part.key}" if part.key else "a delivery that is no event"
            log.warning("%s: %s", which, part.status)
