"""Puts adapters together: the only module that names them. Drivers are imported when their URL is used."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.adapters.envelopes import decode
from semel.core.breaker import PROBE_S, Breaker, State
from semel.core.retry_budget import RetryBudget
from semel.ports import Catalog, Ledger, Verifier
from semel.values.errors import ConfigError

if TYPE_CHECKING:
    from semel.adapters.destinations import Destination

__all__ = ["decode", "destination", "forward", "open_ledger", "reach", "unwrap_sns", "verifier"]

log = logging.getLogger("semel")

SCHEMES = ("sqlite:///file.db", "memory://")


class Hidden(Protocol):
    """A text that does not show itself: a secret."""

    def reveal(self) -> str: ...


class StoredLedger(Ledger, Catalog, Protocol):
    """A ledger that can also be read by people."""


def open_ledger(url: str, observe: Callable[[str], None] | None = None) -> StoredLedger:
    """The ledger that a URL names."""
    if not isinstance(url, str):
        raise ConfigError(f"ledger {url!r}: expected a URL, one of {', '.join(SCHEMES)}")
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme == "memory" and url.partition("?")[0] == "memory://":
        from semel.adapters.ledgers.memory import MemoryLedger

        _check_options(url, options, ())
        return MemoryLedger()
    if parts.scheme == "sqlite":
        from semel.adapters.ledgers.sqlite import SqliteLedger

        _check_options(url, options, ("synchronous",))
        path = _sqlite_path(url, parts.netloc, parts.path)
        return SqliteLedger(path, synchronous=options.get("synchronous", "full"), observe=observe)
    raise ConfigError(f"ledger {url!r}: expected one of {', '.join(SCHEMES)}")


def _sqlite_path(url: str, host: str, path: str) -> str:
    if path == "/:memory:":
        raise ConfigError(f"ledger {url!r}: for a ledger in memory use memory://")
    if host or not url.startswith("sqlite:///") or len(path) < 2 or path.endswith("/"):
        raise ConfigError(f"ledger {url!r}: expected sqlite:///relative.db or sqlite:////absolute/path.db")
    return unquote(path[1:])


def _check_options(url: str, options: dict[str, str], known: tuple[str, ...]) -> None:
    for name in options:
        if name not in known:
            raise ConfigError(f"ledger {url!r}: unknown option {name!r}; known are: {', '.join(known) or 'none'}")


# ------------------------------------------------------------------------------------------------------- verifying


def verifier(
    scheme: str, *, secrets: Sequence[str], header: str = "", username: str = "", topics: Sequence[str] = ()
) -> Verifier:
    """The verifier of a scheme."""
    from semel.adapters.verifiers import verifier as choose

    if scheme != "sns":
        return choose(scheme, secrets=secrets, header=header, username=username, topics=topics)
    from semel.service.fetching import fetch_certificate

    return choose(scheme, secrets=secrets, topics=topics, fetch=fetch_certificate)


def unwrap_sns(body: bytes) -> bytes | None:
    """The event in a verified message of SNS; None where it is about the subscription. Raises MalformedEvent."""
    from semel.adapters.verifiers.sns_message import unwrap

    message = unwrap(body)
    if message.type == "Notification":
        return message.message
    log.warning(
        "SNS sent a %s for %s: open this address to confirm it: %s", message.type, message.topic, message.subscribe_url
    )
    return None


# ------------------------------------------------------------------------------------------------------ forwarding


def destination(
    name: str,
    url: str,
    *,
    headers: Mapping[str, Hidden],
    timeout_s: float,
    concurrency: int,
    allow: Sequence[str],
    breaker_failures: int,
    breaker_open_s: float,
    retry_budget: float,
    trace_headers: Callable[[], Mapping[str, str]] | None = None,
    moved: Callable[[State], None] | None = None,
) -> Destination:
    """A place that routes forward to. `moved` is told the states of its breaker."""
    from semel.adapters.destinations import Destination

    clock = time.monotonic
    return Destination(
        name,
        url,
        breaker=Breaker(
            breaker_failures,
            breaker_open_s,
            clock=clock,
            random=random.random,
            probe_s=max(PROBE_S, 2 * timeout_s),
            moved=moved,
        ),
        budget=RetryBudget(retry_budget, clock=clock),
        headers=headers,
        timeout_s=timeout_s,
        concurrency=concurrency,
        allow=allow,
        trace_headers=trace_headers,
    )


def forward(destination: Destination, select: str, *, park: bool) -> Callable[..., Any]:
    """The handler of a route to it."""
    from semel.adapters.destinations import Forward

    return Forward(destination, select, park)


async def reach(destination: Destination) -> str | None:
    """Why a destination cannot be reached; None when it can."""
    from semel.adapters.destinations import reach as look

    return await look(destination)
