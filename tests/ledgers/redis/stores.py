"""Harnesses on a server that tests share: each has a prefix, so that it sees nothing of the others."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

from semel.ledgers.redis import RedisLedger
from semel.testing.harness import FakeClock, Harness


def with_options(url: str, **options: str) -> str:
    given = "&".join(f"{name}={value}" for name, value in options.items())
    return f"{url}{'&' if '?' in url else '?'}{given}"


def harness_on(url: str, timed: bool = True, **options: str) -> Harness:
    """`timed`: on a clock that tests move; else on the server's own."""
    place = with_options(url, prefix=f"t{uuid4().hex[:12]}", timeout="30", **options)
    clock = FakeClock() if timed else None
    return Harness(
        open=lambda: RedisLedger.from_url(place, clock=clock),
        clock=clock,
        remote=partial(RedisLedger.from_url, place),
        unit_ms=1000 if timed else 50,
    )
