"""Open circuit breakers, as a running service reports them.

Breakers are in the memory of the worker processes, and `/readyz` reports those of the worker that answers. A command
requests it once for each worker, and shows all breakers in the answers.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from semel.settings.loading import load
from semel.settings.schema import ServerSettings
from semel.values.errors import ConfigError

ANSWER_S = 2.0  # /readyz takes no longer
REQUESTS_MAX = 8  # more workers are not worth the wait
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


class OpenBreaker(Struct, frozen=True):
    """A breaker that is not closed."""

    of: str  # "the ledger", or "destination NAME"
    state: str
    since: str = ""
    reason: str = ""
    next_probe_s: float = 0.0
    routes: list[str] = []  # that forward there

    def __str__(self) -> str:
        why = f" ({self.reason})" if self.reason else ""
        probe = f"next probe in {self.next_probe_s:g} s" if self.next_probe_s else "the next event probes it"
        return f"{self.of}: breaker {self.state} since {self.since}{why}; {probe}"


class ServiceBreakers(Struct, frozen=True):
    """The open breakers of a service. `answered` is False if no worker answered; then its breakers are unknown."""

    where: str = ""
    answered: bool = False
    breakers: list[OpenBreaker] = []

    def of_route(self, name: str) -> OpenBreaker | None:
        """The breaker that an event of this route waits for."""
        return next((breaker for breaker in self.breakers if not breaker.routes or name in breaker.routes), None)


def open_breakers(ledger: str | None, config: Path | None) -> ServiceBreakers:
    """The breakers of the service with these settings. Without settings (--ledger) no service is known."""
    if ledger is not None:
        return ServiceBreakers()
    try:
        server = load(config, os.environ).server
    except ConfigError:  # the command itself reports it
        return ServiceBreakers()
    answers = asyncio.run(_answers(server))
    found = {breaker.of: breaker for answer in answers for breaker in _breakers(answer)}
    return ServiceBreakers(f"{server.host}:{server.port}", bool(answers), list(found.values()))


async def _answers(server: ServerSettings) -> list[dict[str, Any]]:
    count = min(server.workers, REQUESTS_MAX)
    answers = await asyncio.gather(*(asyncio.to_thread(ready, server) for _ in range(count)))
    return [answer for answer in answers if answer]


def ready(server: ServerSettings) -> dict[str, Any]:
    """The document of /readyz; empty where no service answers."""
    connection = http.client.HTTPConnection(EVERYWHERE.get(server.host, server.host), server.port, timeout=ANSWER_S)
    try:
        connection.request("GET", "/readyz")
        document = json.loads(connection.getresponse().read(65_536))
        return document if isinstance(document, dict) else {}
    except (OSError, http.client.HTTPException, ValueError):
        return {}
    finally:
        connection.close()


def _breakers(answer: dict[str, Any]) -> Iterable[OpenBreaker]:
    ledger = answer.get("ledger")
    if isinstance(ledger, dict) and ledger.get("breaker", "closed") != "closed":
        yield _breaker("the ledger", ledger)
    for destination in answer.get("destinations") or ():
        yield _breaker(f"destination {destination.get('destination')}", destination)


def _breaker(of: str, fields: dict[str, Any]) -> OpenBreaker:
    return OpenBreaker(
        of,
        str(fields.get("breaker", "")),
        str(fields.get("since", "")),
        str(fields.get("reason", "")),
        float(fields.get("next_probe_s") or 0.0),
        [str(route) for route in fields.get("routes") or ()],
    )
