"""The API on a real socket of this machine, and a client that says what it wants in one line."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from semel.core.resend import outbox_of
from semel.ledgers.sqlite import SqliteLedger
from semel.service.api import api
from semel.settings.schema import Token

PATIENCE_S = 20.0  # for things that take milliseconds, on a machine that is busy

ACME, GLOBEX = "acme-secret", "globex-secret"  # full tokens of two tenants
READER, WATCHER = "reader-secret", "watcher-secret"  # of acme, with one scope each
SENDER, ASKER, OPERATOR = "sender-secret", "asker-secret", "operator-secret"  # the same, for notifications


def token(text: str, name: str, tenant: str, *scopes: Any) -> Token:
    digest = f"sha256:{sha256(text.encode()).hexdigest()}"
    return Token(name=name, digest=digest, scopes=list(scopes), tenant=tenant)


TOKENS = [
    token(ACME, "acme", "acme", "claims", "keys", "notify", "notifications", "operate"),
    token(GLOBEX, "globex", "globex", "claims", "keys", "notify", "notifications", "operate"),
    token(READER, "reader", "acme", "keys"),
    token(WATCHER, "watcher", "acme", "metrics"),
    token(SENDER, "sender", "acme", "notify"),
    token(ASKER, "asker", "acme", "notifications"),
    token(OPERATOR, "operator", "acme", "operate"),
]


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def items(self) -> list[dict[str, Any]]:
        assert self.status == 200, self.body
        return list(self.json()["items"])


@dataclass
class Client:
    """One who asks. `token` None: nobody in particular."""

    port: int
    token: str | None = ACME
    connections: Collection[object] = ()  # open ones, as the server knows them

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Reply:
        sent = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        if self.token is not None:
            sent.setdefault("Authorization", f"Bearer {self.token}")
        raw = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, raw, sent)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def claim(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        return self.ask("POST", "/v1/claims", {"items": list(items)}).items

    def settle(self, *items: dict[str, Any]) -> list[dict[str, Any]]:
        return self.ask("POST", "/v1/claims/settle", {"items": list(items)}).items

    def renew(self, *leases: str) -> list[dict[str, Any]]:
        return self.ask("POST", "/v1/claims/renew", {"items": [{"lease": lease} for lease in leases]}).items

    def key(self, key: str) -> Reply:
        return self.ask("GET", f"/v1/keys/{key}")

    def grant(self, key: str = "k", handler: str = "h", **more: Any) -> dict[str, Any]:
        (verdict,) = self.claim({"handler": handler, "key": key, **more})
        assert verdict["verdict"] == "granted", verdict
        return verdict


@contextmanager
def serving(app: ASGIApp, close: Callable[[], Awaitable[None]] | None = None) -> Iterator[Client]:
    """An application on a port of its own, for as long as the block lasts. `close`: what ends with its loop."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", lifespan="off"))

        async def serve() -> None:
            await server.serve([listening])
            if close is not None:
                await close()

        thread = threading.Thread(target=lambda: asyncio.run(serve()))
        thread.start()
        try:
            wait_for(lambda: server.started)
            yield Client(listening.getsockname()[1], connections=server.server_state.connections)
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def api_on(
    folder: Path,
    *,
    tokens: Sequence[Token] = TOKENS,
    clock: Callable[[], int] | None = None,
    line: Callable[[SqliteLedger], Any] = lambda ledger: ledger,
    **limits: Any,
) -> Iterator[Client]:
    """The API over a SQLite file, asked by acme. `line` is what stands between it and the ledger."""
    ledger = SqliteLedger(str(folder / "semel.db"), synchronous="normal", clock=clock)
    try:
        with serving(api(line(ledger), tokens, catalog=ledger, outbox=outbox_of(ledger), **limits)) as client:
            yield client
    finally:
        asyncio.run(ledger.close())


def wait_for(happened: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.01)
