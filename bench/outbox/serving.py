"""Status queries over HTTP: GET /v1/notifications/status of a service on the full outbox, with and without a relay."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from urllib.parse import urlencode

import msgspec
from bench.outbox.far_end import Away
from bench.outbox.keeping import Ask, Full
from bench.outbox.plan import Figures
from bench.outbox.sending import CHANNEL, NAME, notification
from bench.service.answers import AnswerReader
from bench.service.processes import ServerProcess, server

from semel.cli.storm_load import run

TOKEN = "bench-token"
PATIENCE_S = 30.0
CONFIGURATION = """
ledger = "{url}"

[providers.{name}]
kind = "http"
url = "{far_end}"
key_header = "Idempotency-Key"
allow = ["127.0.0.1"]

[outbox]
relay = {relay}

[channels]
{channel} = ["{name}"]

[[tokens]]
name = "bench"
digest = "sha256:{digest}"
scopes = ["notifications"]
"""


def asked_over_http(full: Full, away: Away, folder: Path) -> Figures:
    """Sequential queries on one connection, to a service without a relay and to one with a relay."""
    with _service(full.many, away, folder, relay=False) as service:
        quiet = run(_asked(full, service, "http"))
    run(full.pile_up())
    away.forget()
    with _service(full.many, away, folder, relay=True) as service:
        busy = run(_asked(full, service, "http_busy"))
        came, _ = away.forget()
    away.forget()  # what it sent while it ended
    if not came or came >= full.piled_up:
        raise AssertionError(f"{came:,} of {full.piled_up:,} were sent meanwhile: its time means nothing")
    return {**quiet, **busy}


async def _asked(full: Full, service: ServerProcess, name: str) -> Figures:
    async with _asking(service.port) as ask:
        return await full.percentiles(name, ask)


@asynccontextmanager
async def _asking(port: int) -> AsyncIterator[Ask]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = f"Host: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"

    async def ask(number: int) -> str:
        one = notification(number)
        asked = {"recipient": one.recipient, "kind": one.kind} if number % 2 else {"key": one.key}
        path = f"/v1/notifications/status?{urlencode(asked)}"
        writer.write(f"GET {path} HTTP/1.1\r\n{fields}".encode())
        answers, answer = AnswerReader(), None
        async with asyncio.timeout(PATIENCE_S):
            while answer is None:
                answer = answers.feed(await reader.read(64 * 1024) or b"closed\r\n\r\n")
        if answer.status != 200:
            return str(answer)
        told: str = msgspec.json.decode(answer.body)["status"]
        return told

    try:
        yield ask
    finally:
        writer.close()


@contextmanager
def _service(url: str, away: Away, folder: Path, *, relay: bool) -> Iterator[ServerProcess]:
    said = {"url": url, "relay": str(relay).lower(), "name": NAME, "far_end": away.url, "channel": CHANNEL}
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    (folder / "semel.toml").write_text(CONFIGURATION.format(digest=digest, **said))
    with server(["semel", "run", "-c", "semel.toml", "--port", "0"], folder) as running:
        yield running
