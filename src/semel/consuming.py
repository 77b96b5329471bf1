"""`app.consume`: one source, from the first delivery to the last answer."""

from __future__ import annotations

import asyncio
import random
from functools import partial
from typing import TYPE_CHECKING, Literal

from semel.core.consumer import Consumer
from semel.core.outage import Outage
from semel.core.unmatched import Unmatched
from semel.ports import Source, Stoppable
from semel.registration import as_ms
from semel.values.errors import ConfigError

if TYPE_CHECKING:
    from semel.app import Semel

WORKERS_MAX = 100


async def consume(app: Semel, source: Source, workers: int, unmatched: Literal["ack", "reject"], drain_s: float) -> int:
    """Until the source has ended. When it is cancelled, what is in hand has `drain_s` to end."""
    _check(app, source, workers, unmatched)
    as_ms("drain", drain_s, 0.0)
    name = str(getattr(source, "queue", "") or type(source).__name__)
    outage = Outage(partial(app.ledger.claim, []), random.random)
    nobody_s = Unmatched(app.topic_of, unmatched, name)
    working = [app.worker(source, outage=outage, unmatched=nobody_s) for _ in range(workers)]
    consumer = Consumer(source, name, working, outage, random.random)
    try:
        return await _drained(consumer, drain_s)
    finally:
        if isinstance(source, Stoppable):
            await source.close()


async def _drained(consumer: Consumer, drain_s: float) -> int:
    running = asyncio.create_task(consumer.run())
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        consumer.stop()
        try:
            await asyncio.wait([running], timeout=drain_s)
        finally:  # time is up, or somebody cancels once more: the rest goes back
            running.cancel()
            await asyncio.wait([running])
        raise


def _check(app: Semel, source: Source, workers: object, unmatched: object) -> None:
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise ConfigError(f"workers={workers!r}: expected a whole number, at least 1 and at most {WORKERS_MAX}")
    if unmatched not in ("ack", "reject"):
        raise ConfigError(f"unmatched={unmatched!r}: expected 'ack' or 'reject'")
    if not app.handlers:
        raise ConfigError(
            "app.consume: there are no handlers, and a source forgets what nobody wants: register one with @app.on "
            "before it is consumed"
        )
    visibility_s = getattr(source, "visibility", None)  # of a queue that shows a message again after this time
    for handler in app.handlers:
        if isinstance(visibility_s, int) and handler.lease_s >= visibility_s:
            raise ConfigError(
                f"handler {handler.name!r}: its lease of {handler.lease_s:g} s outlasts the visibility of its source, "
                f"{visibility_s} s: after a crash an event would be shown that is not free yet. Set visibility above it"
            )
