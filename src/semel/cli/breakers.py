"""Open circuit breakers, as a running service reports them.

Breakers live in the memory of the service's processes. `/readyz` reports them, so a command asks the service that its
settings name. Each worker process has its own: the command asks once for each worker and shows what it hears.
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
from semel.settings.schema import Server
from semel.values.errors import ConfigError

ANSWER_S = 2.0  # for the running service: /readyz itself takes no longer
ASKED_MAX = 8  # times; more workers are not worth the wait
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
    """What a service reports. `answered`: somebody did; else nothing is known of its breakers."""

    where: str = ""
    answered: bool = False
    breakers: list[OpenBreaker] = []

    def of_route(self, name: str) -> OpenBreaker | None:
        """The one that an event of this route waits for."""
        return next((one for one in self.breakers if not one.routes or name in one.routes), None)


def open_breakers(ledger: str | None, config: Path | None) -> ServiceBreakers:
    """Of the service that runs with these settings. With a ledger alone no service is known."""
    if ledger is not None:
        return ServiceBreakers()
    try:
        server = load(config, os.environ).server
    except ConfigError:  # the command itself has said so
        return ServiceBreakers()
    answers = asyncio.run(_ask(server))
    found = {one.of: one for answer in answers for one in _breakers(answer)}
    return ServiceBreakers(f"{server.host}:{server.port}", bool(answers), list(found.values()))


async def _ask(server: Server) -> list[dict[str, Any]]:
    many = min(server.workers, ASKED_MAX)
    answers = await asyncio.gather(*(asyncio.to_thread(ready, server) for _ in range(many)))
    return [answer for answer in answers if answer]


def ready(server: Server) -> dict[str, Any]:
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
        yield _one("the ledger", ledger)
    for one in answer.get("destinations") or ():
        yield _one(f"destination {one.get('destination')}", one)


def _one(of: str, said: dict[str, Any]) -> OpenBreaker:
    return OpenBreaker(
        of,
        str(said.get("breaker", "")),
        str(said.get("since", "")),
        str(said.get("reason", "")),
        float(said.get("next_probe_s") or 0.0),
        [str(route) for route in said.get("routes") or ()],
    )
