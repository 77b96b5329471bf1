"""The round trip to the ledger, and the breaker of a service that runs with these settings."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from semel.cli.operating.breakers import ready
from semel.core.gate import LIMIT_MAX_S
from semel.settings.checking import Finding
from semel.values.errors import SemelError

if TYPE_CHECKING:
    from semel.ports import Ledger
    from semel.settings.schema import Server

ROUND_TRIPS = 3  # the first one may open a connection: the fastest counts

PATIENCE = "raise ledger_patience in [server] above the round trip, or move the ledger nearer"


async def measure(ledger: Ledger, patience_s: float) -> tuple[list[tuple[str, str]], list[Finding]]:
    """The fastest of a few empty claims, as a fact and as findings."""
    fastest_s = float("inf")
    try:
        for _ in range(ROUND_TRIPS):
            begun = time.perf_counter()
            await ledger.claim([])
            fastest_s = min(fastest_s, time.perf_counter() - begun)
    except (SemelError, OSError):
        return [], []  # the diagnosis of the store reports it
    facts = [("round trip", f"{fastest_s * 1000:.1f} ms")]
    if fastest_s <= max(patience_s, LIMIT_MAX_S):
        return facts, []
    what = f"a round trip to the ledger takes {fastest_s:.1f} s: the service would answer 503 most of the time"
    return facts, [Finding("warning", what, PATIENCE, "store")]


async def breaker(server: Server) -> list[Finding]:
    """What a running service reports about its breaker. Nothing if none answers."""
    ledger = (await asyncio.to_thread(ready, server)).get("ledger")
    state: dict[str, Any] = ledger if isinstance(ledger, dict) else {}
    if not state or state.get("breaker") in (None, "closed"):
        return []
    what = (
        f"the service on {server.host}:{server.port} refuses deliveries: the breaker of the ledger is "
        f"{state['breaker']} since {state.get('since')} ({state.get('reason')})"
    )
    change = PATIENCE if state.get("reason") in ("slow", "stuck") else "see the service's log for the ledger's error"
    return [Finding("warning", what, change, "running")]
