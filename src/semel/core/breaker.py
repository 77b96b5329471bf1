"""A circuit breaker, and a budget for retries.

             N failures in a row                 time is up
    closed ─────────────────────► open ───────────────────► half-open ── one probe at a time
       ▲                           ▲                            │
       │                           └──── it failed: longer ─────┤
       └───────────────────────────────── it succeeded ─────────┘

The breaker has no task and no timer: it reads the clock when it is called. It belongs to one event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

State: TypeAlias = Literal["closed", "open", "half-open"]

OPEN_MAX_S = 60.0  # after an outage is fixed, traffic resumes within a minute
PROBE_S = 30.0  # a probe without a result by then has vanished; longer than any ordinary timeout
JITTER = 0.2  # share of the open time, so that processes do not all probe at once
_RECHECK_S = 0.5  # while a probe is in flight: its duration is unknown
_DOUBLINGS_MAX = 30  # the maximum is reached long before, and 2.0**1024 overflows


class Breaker:
    """Opens after `failures` in a row, for `open_s`, doubled at each probe that fails and at most `open_max_s`.

    Call `admit` before each call, and `succeeded` or `failed` after it. While a probe is in flight, the next result
    decides, also if it is the result of another call. A call without a result (its caller was cancelled) is no
    evidence; if it was the probe, another one is admitted after `probe_s`."""

    def __init__(
        self,
        failures: int,
        open_s: float,
        *,
        clock: Callable[[], float],  # seconds, monotonic
        random: Callable[[], float],  # 0 to 1
        open_max_s: float = OPEN_MAX_S,
        probe_s: float = PROBE_S,
        moved: Callable[[State], None] | None = None,  # called at each change of state, when it is noticed
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
        self._opened_at = 0.0  # when it left the closed state
        self._open_until: float | None = None  # None: closed
        self._probe_until: float | None = None  # set while a probe is in flight

    @property
    def state(self) -> State:
        if self._open_until is None:
            return "closed"
        return "open" if self._clock() < self._open_until else "half-open"

    def open_for_s(self) -> float:
        """Seconds since it left the closed state; 0 while it is closed."""
        return 0.0 if self._open_until is None else self._clock() - self._opened_at

    def admit(self) -> bool:
        """Return whether this call may be made. In half-open, an admitted call is the probe."""
        if self._open_until is None:
            return True
        if self.ready_in_s() > 0:
            return False
        self._probe_until = self._clock() + self._probe_s
        self._moved("half-open")
        return True

    def ready_in_s(self) -> float:
        """0 if a call would be admitted now, else the seconds until it is worth trying."""
        if self._open_until is None:
            return 0.0
        now = self._clock()
        if now < self._open_until:
            return self._open_until - now
        if self._probe_until is not None and now < self._probe_until:
            return min(self._probe_until - now, _RECHECK_S)
        return 0.0

    def succeeded(self) -> None:
        """Record a success. While open it is ignored: the call began before."""
        if self._open_until is None:
            self._in_a_row = 0
        elif self._probe_until is not None:
            self._in_a_row = self._trips = 0
            self._open_until = self._probe_until = None
            self._moved("closed")

    def failed(self) -> None:
        """Record a failure. While open it is ignored: the call began before."""
        if self._open_until is None:
            self._in_a_row += 1
            if self._in_a_row >= self._failures:
                self._open()
        elif self._probe_until is not None:
            self._open()

    def trip(self) -> None:
        """Open at once, after a failure that needs no repetition. While open it is ignored."""
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


RESERVE = 10.0  # retries that are possible without any traffic
RESERVE_PER_S = 1.0  # how fast the reserve is refilled
CAP = 100.0  # a day of successful traffic must not allow a storm of retries


class RetryBudget:
    """Limits retries to a share of the traffic, because a failing destination must not get a multiple of it.

    Each first attempt earns `ratio` of a retry, and each retry costs one. A successful retry is refunded: after an
    outage the backlog consists of retries, and drains as fast as they succeed. A small reserve refills with time, so
    that a destination with little traffic is retried too."""

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
        """Record a first attempt."""
        self._add(self._ratio)

    def spend(self) -> bool:
        """Take one retry from the budget. Returns False if there is none."""
        self._fill()
        if self._retries < 1:
            return False
        self._retries -= 1
        return True

    def give_back(self) -> None:
        """Refund a retry that succeeded, or that was not made."""
        self._add(1)

    def ready_in_s(self) -> float:
        """0 if a retry may be made now, else the seconds until the reserve has one."""
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
