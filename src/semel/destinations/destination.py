"""An HTTP endpoint that events are posted to, with the parts that its routes share: client, limits, breaker, budget."""

from __future__ import annotations

import asyncio
import random as _random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from semel.destinations.outcomes import alive, failure_class, outcome_of
from semel.http_client.client import Answer, Answered, Client, Unsent
from semel.http_client.client import reach as reach_address
from semel.http_client.resolver import server_address
from semel.values.cloudevents import SHAPE, STRUCTURED
from semel.values.errors import ConfigError, LeaseLost, NoKey
from semel.values.event import Event
from semel.values.outbox import checked_by
from semel.values.outcome import NotNow, Reject
from semel.values.retry import backoff_s
from semel.values.secret import Secret

_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", re.ASCII)
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
JSON = "application/json"
_USUAL = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # nothing to unpack, so no bomb
    "User-Agent": "Semel",
}
_OURS = {"idempotency-key", "semel-attempt", "host", "content-length", "transfer-encoding", "connection", "expect"}


def check_headers(name: str, headers: Mapping[str, Secret]) -> dict[str, Secret]:
    """Check the configured headers. Raises ConfigError, which never shows a value: values are secrets."""
    for header, value in headers.items():
        if _NAME.fullmatch(header) is None:
            raise ConfigError(f"destination {name!r}: {header!a} is not a valid header name")
        if header.lower() in _OURS:
            raise ConfigError(f"destination {name!r}: Semel sets the header {header} itself; remove it")
        if _VALUE.fullmatch(value.reveal()) is None:
            raise ConfigError(f"destination {name!r}: the value of {header} contains a line break or control character")
    return dict(headers)


def headers_for(
    key: str, attempt: int, own: Mapping[str, Secret], trace: Mapping[str, str], content_type: str = JSON
) -> dict[str, str]:
    """Headers of one request. Configured headers replace the defaults in any case; nothing replaces the key."""
    revealed = {name: value.reveal() for name, value in own.items()}
    ours = {"Idempotency-Key": key, "Semel-Attempt": str(attempt)}
    layers = (trace, {"Content-Type": content_type}, _USUAL, revealed, ours)
    return dict({name.lower(): (name, value) for layer in layers for name, value in layer.items()}.values())


class RequestBreaker(Protocol):
    """Circuit breaker of a destination, implemented in `semel.core.breaker`."""

    @property
    def state(self) -> Literal["closed", "open", "half-open"]: ...
    def admit(self) -> bool: ...
    def succeeded(self) -> None: ...
    def failed(self) -> None: ...
    def ready_in_s(self) -> float: ...
    def open_for_s(self) -> float: ...


class RequestBudget(Protocol):
    """Retry budget of a destination, implemented in `semel.core.breaker`."""

    def earn(self) -> None: ...
    def spend(self) -> bool: ...
    def give_back(self) -> None: ...
    def ready_in_s(self) -> float: ...


class RequestLimiter:
    """Limits concurrent requests to `most`. Few can wait, and only briefly: a waiting request holds a lease and uses
    the handler's time."""

    def __init__(self, most: int, waiting_max: int) -> None:
        self._free = asyncio.Semaphore(most)
        self._waiting_max = waiting_max
        self._waiting = 0

    async def take(self, wait_s: float) -> bool:
        """Wait for a free slot. False: too many wait already, or the time is over."""
        if not self._free.locked():
            return await self._free.acquire()  # without waiting
        if self._waiting >= self._waiting_max:
            return False
        self._waiting += 1
        try:
            async with asyncio.timeout(wait_s):
                return await self._free.acquire()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1

    def give_back(self) -> None:
        self._free.release()


LIMITER_WAIT_S = 1.0  # how long a request waits for a slot; part of the handler's time
SOON_S = 0.5  # approximate delay of a request that found no slot
SLOW_DOWN_MAX_S = 60.0  # how long one 429 or 503 can delay all events of a destination
RETRY_AFTER_JITTER = 0.1  # later than requested, never earlier, so that the retries spread


class Destination:
    """One URL. It belongs to one event loop; the first request opens its client, and `close` closes it.

    name: shown in reasons and metrics instead of the URL, which can hold a token. headers: sent with every request.
    allow: private host names, addresses and CIDR ranges that can be called. trace_headers: called for each request,
    for `traceparent`. clock: monotonic seconds. The breaker and the budget belong to this destination alone.
    """

    def __init__(
        self,
        name: str,
        url: str,
        *,
        breaker: RequestBreaker,
        budget: RequestBudget,
        headers: Mapping[str, Secret] | None = None,
        timeout_s: float = 10.0,
        concurrency: int = 16,
        allow: Sequence[str] = (),
        random: Callable[[], float] = _random.random,
        clock: Callable[[], float] = time.monotonic,
        trace_headers: Callable[[], Mapping[str, str]] | None = None,
    ) -> None:
        self.name = name
        self.address = server_address(name, url)
        self._url = url
        self.who = name if name == self.address.host else f"{name} ({self.address.host})"
        self.timeout_s = timeout_s
        self.concurrency = concurrency
        self.allow = tuple(allow)
        self._client = Client(self.address, self.allow, timeout_s)
        self._headers = check_headers(name, headers or {})
        self._breaker = breaker
        self._budget = budget
        self._random = random
        self._clock = clock
        self._trace_headers = trace_headers
        self._limiter = RequestLimiter(concurrency, waiting_max=concurrency)
        self._slow_until = 0.0  # end of the pause that the destination requested
        self._slowed = 0  # such requests in a row
        self._failed_by = ""  # the class of the last failure: "HTTP 503", "not sent", "no answer"

    @property
    def state(self) -> Literal["closed", "open", "half-open"]:
        """State of its breaker."""
        return self._breaker.state

    def ready_in_s(self) -> float:
        """Seconds until the next request makes sense; 0: now."""
        return max(self._slow_until - self._clock(), self._breaker.ready_in_s(), 0.0)

    def breaker_report(self) -> dict[str, str | float]:
        """RequestBreaker state for operators: since when it is open, why, and when the next probe is due."""
        return {
            "breaker": self.state,
            "open_s": self._breaker.open_for_s(),
            "reason": self._failed_by,
            "next_probe_s": round(self._breaker.ready_in_s(), 1),
        }

    def secrets(self) -> list[str]:
        """Texts that must not appear in stored or shown data."""
        return [value.reveal() for value in self._headers.values()]

    async def post(self, body: bytes, key: str, attempt: int, content_type: str = JSON) -> Answer:
        """Send one request. Raises NotNow, without a request, if the destination is not ready or overloaded."""
        trace = self._trace_headers() if self._trace_headers else {}
        headers = headers_for(key, attempt, self._headers, trace, content_type)
        self._refuse_unless_ready()
        limiter = self._limiter
        if not await limiter.take(LIMITER_WAIT_S):
            raise NotNow(self._short_delay_s(), f"{self.who}: {self.concurrency} requests are under way")
        try:
            probing = self._admit(retry=attempt > 1)
            answer = self._record_result(await self._send(body, headers), retry=attempt > 1)
        finally:
            limiter.give_back()
        if probing and isinstance(answer, Unsent):  # the probe concerns the destination, not the event
            raise NotNow(self.ready_in_s(), f"{self.who}: {answer.why}")
        return answer

    async def close(self) -> None:
        """Close the connections. The destination can be used again, also on another loop."""
        self._limiter = RequestLimiter(self.concurrency, waiting_max=self.concurrency)
        await self._client.close()

    # ----------------------------------------------------------------------------------------------- its parts

    def _refuse_unless_ready(self) -> None:
        if (wait_s := self.ready_in_s()) > 0:
            reason = "it asked for fewer requests" if self.state == "closed" else "its breaker is open after failures"
            raise NotNow(wait_s + self._random() * SOON_S, f"{self.who}: {reason}")

    def _admit(self, retry: bool) -> bool:
        """Admit the request, if the state has not changed during the wait. True: it is the breaker's probe."""
        self._refuse_unless_ready()
        if not retry:
            self._budget.earn()
        elif not self._budget.spend():
            wait_s = max(self._budget.ready_in_s(), self._short_delay_s())
            raise NotNow(wait_s, f"{self.who}: too many of its requests are retries")
        probing = self.state != "closed"
        self._breaker.admit()  # it is ready: no other task has run since the check
        return probing

    async def _send(self, body: bytes, headers: Mapping[str, str]) -> Answer:
        try:
            return await self._client.ask(self._url, body, headers)
        except LeaseLost:  # nothing was sent: no information about the destination
            raise
        except BaseException:  # cancelled by the caller's timeout: counts as a timeout
            self._failed_by = "no answer"
            self._breaker.failed()
            raise

    def _record_result(self, answer: Answer, retry: bool) -> Answer:
        """Update the breaker, the pause and the budget. Returns the answer with the delay before a retry."""
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
        """Requested delay with jitter. A 429 always gets a delay, because it does not count as an attempt."""
        after_s = None if answer.after_s is None else answer.after_s * (1 + RETRY_AFTER_JITTER * self._random())
        if answer.status != 429:
            return after_s
        if self._clock() >= self._slow_until:  # else it is one of several concurrent requests
            self._slowed += 1
        if after_s is None:
            after_s = backoff_s(self._slowed, lambda: 0.5 + self._random() / 2, cap_s=SLOW_DOWN_MAX_S)
        return max(after_s, self._short_delay_s())

    def _short_delay_s(self) -> float:
        return SOON_S * (0.5 + self._random())


_encode = msgspec.json.Encoder().encode


class ForwardContext(Protocol):
    """The part of a handler's context that a forward uses."""

    @property
    def key(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    def check(self) -> None: ...


class Forward:
    """Handler of a route without code: posts the document unchanged, or its part at `select`, with the key of the
    effect. A CloudEvent is sent in structured mode.

    `park`: the route must not repeat its effect. A request without a response then has an unknown outcome, and the
    engine lists it as uncertain. Otherwise it is retried with the same key.
    """

    def __init__(self, destination: Destination, select: str = "", park: bool = False) -> None:
        self.destination = destination
        self._select = select
        self._park = park

    async def __call__(self, event: Event, ctx: ForwardContext) -> dict[str, Any]:
        """Return the status, and the body if it is small JSON. Raises Retry, Reject, NotNow or OutcomeUnknown."""
        body = self._select_body(event)
        content_type = STRUCTURED if event.shape == SHAPE and not self._select else JSON
        with checked_by(ctx.check):
            answer = await self.destination.post(body, ctx.key, ctx.attempt, content_type)
        return outcome_of(answer, self.destination.who, self._park, self.destination.secrets())

    @property
    def concurrency(self) -> int:
        """Number of events to process at a time: one while the breaker only probes the destination."""
        return self.destination.concurrency if self.destination.state == "closed" else 1

    def ready_in_s(self) -> float:
        """Seconds until the destination accepts events; 0: now."""
        return self.destination.ready_in_s()

    def _select_body(self, event: Event) -> bytes:
        if not self._select:
            return event.raw
        try:
            return _encode(event.field(self._select))
        except NoKey as error:
            raise Reject(f"nothing to send: {error}") from None


async def reach(destination: Destination) -> str | None:
    """Check for `semel doctor` that a destination is reachable. Returns None, or the reason why not."""
    reason = await reach_address(destination.address, destination.allow, destination.timeout_s)
    return None if reason is None else f"{destination.who}: {reason}"
