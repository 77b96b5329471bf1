"""A small service that forwards each event once: what a storm is checked with, before it checks Semel.

It keeps what it has done in a journal, so that it can be killed and started again. With a fault it cheats: "lose"
answers every 20th event without forwarding it, "double" forwards every 20th twice.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, web

EVERY = 20


class Service:
    def __init__(self, sink: str, journal: Path, fault: str) -> None:
        self._sink = sink
        self._journal = journal
        self._fault = fault
        self._done = set(journal.read_text().splitlines()) if journal.exists() else set()
        self._under_way: set[str] = set()
        self._new = 0
        self._session: ClientSession | None = None

    async def take(self, request: web.Request) -> web.Response:
        name = identity(json.loads(await request.read()))
        if name in self._done:
            return web.json_response({"status": "duplicate"})
        if name in self._under_way:
            return web.json_response({"title": "busy", "status": 503}, status=503, headers={"Retry-After": "0"})
        self._under_way.add(name)
        try:
            self._new += 1
            cheats = self._new % EVERY == 0
            if not (cheats and self._fault == "lose"):
                await self._forward(await request.read(), name)
            if cheats and self._fault == "double":
                await self._forward(await request.read(), f"{name} once more")
            with self._journal.open("a") as file:
                file.write(f"{name}\n")
            self._done.add(name)
        finally:
            self._under_way.discard(name)
        return web.json_response({"status": "processed"})

    async def _forward(self, body: bytes, key: str) -> None:
        self._session = self._session or ClientSession()
        async with self._session.post(self._sink, data=body, headers={"Idempotency-Key": key}) as answer:
            answer.raise_for_status()


def identity(event: dict[str, Any]) -> str:
    detail = event.get("detail", event)
    if "topicName" in detail:
        body = detail["eventBody"]
        return f"{detail['topicName']} {body['participantId']} {body['sessionId']} {body['eventTime']}"
    return str(event["id"])


async def main(port: int, sink: str, journal: Path, fault: str) -> None:
    app = web.Application()
    app.router.add_post("/events", Service(sink, journal, fault).take)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port, backlog=512, reuse_address=True)
    await site.start()
    print(f"http://127.0.0.1:{runner.addresses[0][1]}/events", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4]))
