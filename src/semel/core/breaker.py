"""The circuit breaker: what keeps failing is left alone for a while, then tried with one call.

             N failures in a row                 time is up
    closed ─────────────────────► open ───────────────────► half-open ── one probe at a time
       ▲                           ▲                            │
       │                           └──── it failed: longer ─────┤
       └───────────────────────────────── it succeeded ─────────┘

A state machine without task or timer of its own: time is looked at when somebody asks. It belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

State: TypeAlias = Literal["closed", "open", "half-open"]

OPEN_MAX_S = 60.0  # a person fixing an outage sees traffic again within a minute
PROBE_S = 30.0  # a probe that has not reported by then has vanished; longer than any ordinary timeout
JITTER = 0.2  # of the time it stays open, so that processes do not all probe at once
_LOOK_AGAIN_S = 0.5  # while a probe is out nobody knows how long it will take
_DOUBLINGS_MAX = 30  # the maximum is reached long before, and 2.0**1024 overflows


class Breaker:
    """Opens after `failures` in a row, for `open_s`, doubled at each probe that fails and at most `open_max_s`.

    Ask `admit` before each call, and tell `succeeded` or `failed` after it. Once a probe is out, whatever is told
    decides: it need not be the probe's, it is what happened last. A call that tells nothing (its caller was cancelled)
    is no evidence; if it was the probe, another one is let through after `probe_s`."""

    def __init__(
        self,
        failures: int,
        open_s: float,
        *,
        clock: Callable[[], float],  # seconds, monotonic
        random: Callable[[], float],  # 0 to 1
        open_max_s: float = OPEN_MAX_S,
        probe_s: float = PROBE_S,
        moved: Callable[[State], None] | None = None,  # told each change of state, when it is noticed
    ) -> None:
        self._failures = failures
        self._open_s = open_s
        self._open_max_s = max(open_max_s, open_s)
        self._probe_s = probe_s
        self._clock = clock
        self._random = random
        self._moved = moved or (lambda state: None)
        self._in_a_row = 0
        self._trips = 0  # since it was last closed
        self._opened_at = 0.0  # when it was last closed, while it is not
        self._open_until: float | None = None  # None: closed
        self._probe_until: float | None = None  # set while it is half-open and a probe was let through

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    def open_for_s(self) -> float:
        """How long it has not been closed; 0 while it is."""
        return 0.0 if self._open_until is None else self._clock() - self._opened_at

    def admit(self) -> bool:
        """May this call be made? In half-open, True makes it the probe."""
        if self._open_until is None:
            return True
        if self.ready_in_s() > 0:
            return False
        self._probe_until = self._clock() + self._probe_s
        self._moved("half-open")
        return True

    def ready_in_s(self) -> float:
        """0 when a call would be admitted now, else when it is worth asking again."""
        if self._open_until is None:
            return 0.0
        now = self._clock()
        if now < self._open_until:
            return self._open_until - now
        if self._probe_until is not None and now < self._probe_until:
            return min(self._probe_until - now, _LOOK_AGAIN_S)
        return 0.0

    def succeeded(self) -> None:
        """A call came through. While open, it is one from before and tells nothing about now."""
        if self._open_until is None:
            self._in_a_row = 0
        elif self._probe_until is not None:
            self._in_a_row = self._trips = 0
            self._open_until = self._probe_until = None
            self._moved("closed")

    def failed(self) -> None:
        """A call did not come through. While open, it is one from before: it does not prolong anything."""
        if self._open_until is None:
            self._in_a_row += 1
            if self._in_a_row >= self._failures:
                self._open()
        elif self._probe_until is not None:
            self._open()

    def trip(self) -> None:
        """What happened says enough: open now. While open, it is one from before."""
        if self._open_until is None or self._probe_until is not None:
            self._open()

    def _open(self) -> None:
        if self._open_until is None:
            self._opened_at = self._clock()
        bound_s = min(self._open_max_s, self._open_s * 2.0 ** min(self._trips, _DOUBLINGS_MAX))
        self._trips += 1
        self._open_until = self._clock() + bound_s * (1 + JITTER * self._random())
        self._probe_until = None
        self._moved("open")


# The retry budget: retries are a share of the work, not a multiple of it.
#
# A destination that fails gets every event several times, just when it can bear it least. So each first try earns a
# part of a retry, each retry costs one, and one that came through gives its cost back: after an outage the backlog,
# which is all retries, drains as quickly as it succeeds. A small reserve fills by itself, so that a quiet destination
# is retried too and nothing waits for ever.

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
