"""The round trip to the ledger, and the breaker of a service that runs with these settings."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from typing import TYPE_CHECKING, Any

from semel.core.gate import LIMIT_MAX_S
from semel.settings.checking import Finding
from semel.values.errors import SemelError

if TYPE_CHECKING:
    from semel.ports import Ledger
    from semel.settings.schema import Server

ROUND_TRIPS = 3  # the first one may open a connection: the fastest counts
ANSWER_S = 2.0  # for the running service: /readyz itself takes no longer

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}
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
    state = await asyncio.to_thread(_ledger_state, server)
    if not state or state.get("breaker") in (None, "closed"):
        return []
    what = (
        f"the service on {server.host}:{server.port} refuses deliveries: the breaker of the ledger is "
        f"{state['breaker']} since {state.get('since')} ({state.get('reason')})"
    )
    change = PATIENCE if state.get("reason") in ("slow", "stuck") else "see the service's log for the ledger's error"
    return [Finding("warning", what, change, "running")]


def _ledger_state(server: Server) -> dict[str, Any]:
    connection = http.client.HTTPConnection(EVERYWHERE.get(server.host, server.host), server.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        ready = json.loads(connection.getresponse().read(65_536))
        state = ready.get("ledger") if isinstance(ready, dict) else None
        return state if isinstance(state, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()
