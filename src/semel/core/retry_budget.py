"""The retry budget: retries are a share of the work, not a multiple of it.

A destination that fails gets every event several times, just when it can bear it least. So each first try earns a part
of a retry, each retry costs one, and one that came through gives its cost back: after an outage the backlog, which is
all retries, drains as quickly as it succeeds. A small reserve fills by itself, so that a quiet destination is retried
too and nothing waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable

RESERVE = 10.0  # retries that may be made whatever the traffic
RESERVE_PER_S = 1.0  # how quickly the reserve fills again
CAP = 100.0  # a day of good traffic must not pay for a storm


class RetryBudget:
    """A bucket of retries. `ratio` is how many each first try earns."""

    def __init__(
        self,
        ratio: float,
        *,
        clock: Callable[[], float],  # seconds, monotonic
        reserve: float = RESERVE,
        reserve_per_s: float = RESERVE_PER_S,
        cap: float = CAP,
    ) -> None:
        self._ratio = ratio
        self._clock = clock
        self._reserve = reserve
        self._per_s = reserve_per_s
        self._cap = max(cap, reserve)
        self._retries = reserve
        self._filled_at = clock()

    def earn(self) -> None:
        """A first try is made."""
        self._add(self._ratio)

    def spend(self) -> bool:
        """May a retry be made now? True has cost one."""
        self._fill()
        if self._retries < 1:
            return False
        self._retries -= 1
        return True

    def give_back(self) -> None:
        """The retry came through, or was not made after all."""
        self._add(1)

    def ready_in_s(self) -> float:
        """0 when a retry may be made now, else when the reserve alone will have one."""
        self._fill()
        return max(0.0, (1 - self._retries) / self._per_s)

    def _add(self, retries: float) -> None:
        self._fill()
        self._retries = min(self._cap, self._retries + retries)

    def _fill(self) -> None:
        now = self._clock()
        if self._retries < self._reserve:
            self._retries = min(self._reserve, self._retries + (now - self._filled_at) * self._per_s)
        self._filled_at = now
