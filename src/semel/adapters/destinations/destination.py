"""A place that events are posted to, with everything that its routes share: client, limits, breaker, retry budget."""

from __future__ import annotations

import random as _random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import msgspec

from semel.adapters.destinations.answers import alive, failure_class
from semel.adapters.destinations.headers import JSON, Hidden, checked, headers_for
from semel.adapters.destinations.limits import Breaker, Budget, Turns
from semel.adapters.wire.answers import Answer, Answered, Unsent
from semel.adapters.wire.client import Client
from semel.adapters.wire.place import place_of
from semel.values.errors import LeaseLost
from semel.values.outcome import NotNow
from semel.values.retry import backoff_s

TURN_S = 1.0  # how long a call waits for its turn; it comes out of the handler's time
SOON_S = 0.5  # when a call that found no turn comes again, about
SLOW_DOWN_MAX_S = 60.0  # how long one 429 or 503 can hold up all events of a destination
RETRY_AFTER_JITTER = 0.1  # later than asked, never earlier, so that not all come back at once


class Destination:
    """One URL. Lives on one event loop; its client opens at the first call and closes with `close`.

    name: for people, in reasons and metrics; never the URL, which can hold a token. headers: sent with every request.
    allow: host names, addresses and CIDR ranges that may be called though they are private. trace_headers: asked for
    each request, for `traceparent`. clock: monotonic seconds. Breaker and budget are its own, not shared."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        breaker: Breaker,
        budget: Budget,
        headers: Mapping[str, Hidden] | None = None,
        timeout_s: float = 10.0,
        concurrency: int = 16,
        allow: Sequence[str] = (),
        random: Callable[[], float] = _random.random,
        clock: Callable[[], float] = time.monotonic,
        trace_headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.place = place_of(name, url)
        self._url = url
        self.who = name if name == self.place.host else f"{name} ({self.place.host})"
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        self.allow = tuple(allow)
        self._client = Client(self.place, self.allow, timeout_s)
        self._headers = checked(name, headers or {})
        self._breaker = breaker
        self._budget = budget
        self._random = random
        self._clock = clock
        self._trace_headers = trace_headers
        self._turns = Turns(concurrency, waiting_max=concurrency)
        self._slow_until = 0.0  # it asked for fewer requests
        self._slowed = 0  # how often in a row
        self._failed_by = ""  # the class of the last failure: "HTTP 503", "not sent", "no answer"

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """Of its breaker."""
        return self._breaker.state

    def ready_in_s(self) -> float:
        """0 when it takes requests now, else when it is worth trying."""
        return max(self._slow_until - self._clock(), self._breaker.ready_in_s(), 0.0)

    def breaker_report(self) -> dict[str, str | float]:
        """The breaker for operators: for how long it is not closed, why, and when the next request probes."""
        return {
            "breaker": self.state,
            "open_s": self._breaker.open_for_s(),
            "reason": self._failed_by,
            "next_probe_s": round(self._breaker.ready_in_s(), 1),
        }

    def secrets(self) -> list[str]:
        """What must not be in anything that is kept or shown."""
        return [value.reveal() for value in self._headers.values()]

    async def post(self, body: bytes, key: str, attempt: int, content_type: str = JSON) -> Answer:
        """One request. Raises NotNow when none was made: because it would be no use, or too much."""
        trace = self._trace_headers() if self._trace_headers else {}
        headers = headers_for(key, attempt, self._headers, trace, content_type)
        self._refuse_unless_ready()
        turns = self._turns
        if not await turns.take(TURN_S):
            raise NotNow(self._soon(), f"{self.who}: {self.concurrency} requests are under way")
        try:
            probing = self._begin(retry=attempt > 1)
            answer = self._learn(await self._send(body, headers), retry=attempt > 1)
        finally:
            turns.give_back()
        if probing and isinstance(answer, Unsent):  # it told about the destination, and nothing about the event
            raise NotNow(self.ready_in_s(), f"{self.who}: {answer.why}")
        return answer

    async def close(self) -> None:
        """Let go of its connections. It can be used again, also on another loop."""
        self._turns = Turns(self.concurrency, waiting_max=self.concurrency)
        await self._client.close()

    # ----------------------------------------------------------------------------------------------- its parts

    def _refuse_unless_ready(self) -> None:
        if (wait_s := self.ready_in_s()) > 0:
            why = "it asked for fewer requests" if self.state == "closed" else "it is left alone after failures"
            raise NotNow(wait_s + self._random() * SOON_S, f"{self.who}: {why}")

    def _begin(self, retry: bool) -> bool:
        """Go, unless things have changed while we waited. True: this request is the breaker's probe."""
        self._refuse_unless_ready()
        if not retry:
            self._budget.earn()
        elif not self._budget.spend():
            wait_s = max(self._budget.ready_in_s(), self._soon())
            raise NotNow(wait_s, f"{self.who}: too many of its requests are retries")
        probing = self.state != "closed"
        self._breaker.admit()  # it is ready, and nobody has come between
        return probing

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            return await self._client.ask(self._url, body, headers)
        except LeaseLost:  # nothing was sent, and it says nothing about the destination
            raise
        except BaseException:  # cancelled: whoever waited lost patience, which says what a timeout says
            self._failed_by = "no answer"
            self._breaker.failed()
            raise

    def _learn(self, answer: Answer, retry: bool) -> Answer:
        """Keep what the next calls should know; the answer, with the time after which it may be asked again."""
        if not alive(answer):
            self._failed_by = failure_class(answer)
            self._breaker.failed()
        else:
            self._breaker.succeeded()
        if not isinstance(answer, Answered):
            return answer
        answer = msgspec.structs.replace(answer, after_s=self._after_s(answer))
        if answer.status in (429, 503) and answer.after_s is not None:
            slow_s = min(answer.after_s, SLOW_DOWN_MAX_S)
            self._slow_until = max(self._slow_until, self._clock() + slow_s)
        elif alive(answer):
            self._slowed = 0
            if retry:
                self._budget.give_back()
        return answer

    def _after_s(self, answer: Answered) -> float | None:
        """What it asked for, or a little later. A 429 always has a time: it burns no attempt that would end it."""
        told_s = None if answer.after_s is None else answer.after_s * (1 + RETRY_AFTER_JITTER * self._random())
        if answer.status != 429:
            return told_s
        if self._clock() >= self._slow_until:  # else it is one of several that were under way together
            self._slowed += 1
        if told_s is None:
            told_s = backoff_s(self._slowed, lambda: 0.5 + self._random() / 2, cap_s=SLOW_DOWN_MAX_S)
        return max(told_s, self._soon())

    def _soon(self) -> float:
        return SOON_S * (0.5 + self._random())
