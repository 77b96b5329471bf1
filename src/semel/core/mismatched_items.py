"""Inbox items that this process cannot run, because a process with other settings or another version accepted them.

During a rolling deployment, or after a mistake in the settings, such an item is not lost: another process can run it,
or this one after the next change. So it is postponed, longer each time, without counting an attempt. It becomes a dead
letter only after a period in which people can notice and correct a deployment:

    first mismatch    5 s    5 s    7 s …  (half of its age)  … 5 min    5 min …          3 days
      │── postponed ───│──────│──────│──────────────────────────│──────────│──────────────── │── dead letter

The time of the first mismatch is part of the reason that the inbox keeps, so that all processes count from the same
moment. A process that matches overwrites the reason, and with it the count.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from semel.ports import Inbox
from semel.values.errors import LedgerUnavailable
from semel.values.inbox import GivenUp, Postponed, Taken
from semel.values.log import log
from semel.values.outcome import Outcome

POSTPONE_MIN_S = 5.0  # another process takes it meanwhile
POSTPONE_MAX_S = 300.0  # once the settings are right, it runs within five minutes
GIVE_UP_S = 3 * 86_400.0  # a deployment that went wrong on a Friday evening is corrected on a Monday
LOG_S = 60.0  # between two lines about one handler

MISMATCHED = "mismatched since"
_SINCE = re.compile(rf"{MISMATCHED} (\S+): ")


class MismatchedItems:
    """Decides how long items wait that cannot run here, and reports them."""

    def __init__(self, inbox: Inbox, now_ms: Callable[[], int]) -> None:
        self._inbox = inbox
        self._now_ms = now_ms
        self._counts: dict[str, int] = {}  # by handler, since its last log line
        self._logged_ms: dict[str, int] = {}

    async def ending(self, taken: Taken, outcome: Outcome) -> Postponed | GivenUp:
        """`outcome`: why the flow left the item alone."""
        now_ms = self._now_ms()
        since_ms = await self._since_ms(taken, now_ms)
        self._report(taken.lane, outcome, now_ms)
        age_s = (now_ms - since_ms) / 1000
        if age_s >= GIVE_UP_S:
            return GivenUp(taken, f"no process could run it for {GIVE_UP_S / 86_400:g} days: {outcome.reason}")
        after_s = min(max(age_s / 2, POSTPONE_MIN_S), POSTPONE_MAX_S)
        since = datetime.fromtimestamp(since_ms / 1000, UTC).isoformat(timespec="milliseconds")
        return Postponed(taken, round(after_s * 1000), f"{MISMATCHED} {since}: {outcome.reason}")

    async def _since_ms(self, taken: Taken, now_ms: int) -> int:
        """When a process first could not run it. Where that cannot be read, the count begins anew: too late is safe."""
        try:
            entries = await self._inbox.history(taken.key.hex())
        except LedgerUnavailable:
            return now_ms
        known = [mismatched_since_ms(entry.reason) for entry in entries if entry.state == "accepted"]
        return min(now_ms, max([at_ms for at_ms in known if at_ms is not None], default=now_ms))

    def _report(self, handler: str, outcome: Outcome, now_ms: int) -> None:
        count = self._counts[handler] = self._counts.get(handler, 0) + 1
        last_ms = self._logged_ms.get(handler)
        if last_ms is None or now_ms - last_ms >= LOG_S * 1000:
            self._logged_ms[handler] = now_ms
            self._counts[handler] = 0
            # a reason may quote the event; of an ignored one, the text before the colon does not
            reason_class = outcome.reason.partition(":")[0] if outcome.status == "ignored" else outcome.status
            log.warning("inbox_item_unmatched", handler=handler, count=count, reason_class=reason_class)


def mismatched_since_ms(reason: str) -> int | None:
    """The time of the first mismatch, from the reason of a postponed item; None for any other reason."""
    found = _SINCE.match(reason)
    try:
        return round(datetime.fromisoformat(found[1]).timestamp() * 1000) if found else None
    except ValueError:
        return None
