"""What goes wrong for a while, in the log: a line when it begins, one now and then while it lasts, one at its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from semel.core.breaker import State
from semel.values.errors import LedgerUnavailable, SemelError
from semel.values.log import log

AGAIN_S = 30.0  # often enough for whoever looks now, and a day of it is no flood
JUST_NOW_S = 1.0  # a failure as old as this may be why a breaker opens; one from before is not


class Trouble:
    """One thing that can fail, and does so again and again until somebody puts it right."""

    def __init__(
        self, begins: str, over: str = "", clock: Callable[[], float] = time.monotonic, **fields: object
    ) -> None:
        """`begins` and `over` are names of log events; `fields` are those of both."""
        self._begins, self._over, self._fields = begins, over, fields
        self._clock = clock
        self._since: float | None = None  # None: all is well
        self._said = self._last = 0.0

    def is_there(self, why: str) -> None:
        """It failed. After a long silence it is a new trouble: not everything that fails is told when it succeeds."""
        now = self._clock()
        if self._since is None or now - self._last > 2 * AGAIN_S:
            self._since = self._said = now
            log.error(self._begins, **self._fields, error=why)
        elif now - self._said >= AGAIN_S:
            self._said = now
            log.error(self._begins, **self._fields, lasts_s=round(now - self._since), error=why)
        self._last = now

    def is_over(self) -> None:
        """It went well."""
        if self._since is not None:
            if self._over:
                log.warning(self._over, **self._fields, after_s=round(self._clock() - self._since))
            self._since = None


class StoreHealth:
    """How the round trips to a store go. What its breaker does is said with why; where there is none, each failure."""

    def __init__(
        self,
        trouble: Trouble,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
        advice: str = "",
    ) -> None:
        """`quiet`: a single failure is not worth a line, since a breaker tells us, by `moved`, or others say it.
        `advice`: what to do about a store that is slow."""
        self._advice = f". {advice}" if advice else ""
        self._trouble = trouble
        self._refusals = Trouble("ledger_refused", clock=clock)
        self._quiet = quiet
        self._clock = clock
        self._under_way: dict[object, tuple[str, float]] = {}  # in the order of their beginnings
        self._failed: tuple[float, str] = (0.0, "")  # when, and why
        self._took: tuple[float, str] = (0.0, "")  # how long the last answer took, and to what

    @contextmanager
    def asking(self, what: str) -> Iterator[None]:
        """Around one round trip."""
        question, begun = object(), self._clock()
        self._under_way[question] = what, begun
        try:
            yield
        except LedgerUnavailable as error:
            self._failed = self._clock(), str(error)
            if not self._quiet:
                self._trouble.is_there(str(error))
            raise
        else:
            self._took = self._clock() - begun, what
            if not self._quiet:
                self._trouble.is_over()
        finally:
            del self._under_way[question]

    @contextmanager
    def as_unavailable(self) -> Iterator[None]:
        """What a store refuses while a service runs (its table is gone, the URL does not fit a handler any more) ends
        as if it were out of reach: nothing is decided, and whoever sent it comes again. It is no reason for a breaker
        to open: the store answers, and may be well for every other handler."""
        try:
            yield
        except SemelError as error:
            if isinstance(error, LedgerUnavailable):
                raise
            self._refusals.is_there(str(error))
            raise LedgerUnavailable(str(error)) from error

    def moved(self, state: State) -> None:
        """Its breaker did. It opens anew with each probe that fails, which is the same trouble still."""
        if state == "open":
            self._trouble.is_there(self._why())
        elif state == "closed":
            self._trouble.is_over()

    def _why(self) -> str:
        """The words of the last failure; else it is slow, and then which round trip is."""
        now = self._clock()
        failed_at, words = self._failed
        if words and now - failed_at < JUST_NOW_S:
            return words
        seconds, what = self._took
        asked, begun = next(iter(self._under_way.values()), ("", now))
        if now - begun > seconds:
            return f"no answer to {_a(asked)} for {now - begun:.2f} s{self._advice}"
        return f"slow: {_a(what)} took {seconds:.2f} s{self._advice}"


def _a(what: str) -> str:
    return f"{'an' if what[:1] in 'aeiou' else 'a'} {what}"
