"""Where the simulated providers call back: what they say goes to the outbox as the word of a provider."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

from tests.proof.outbox.parts import BY_NAME, opened
from tests.proof.outbox.stores import open_store

from semel.testing.simulator.http import HttpRequest, SimulatedResponse, read_request, write_response

END_S = 60.0


class Listener:
    """A thread of its own, with a connection of its own to the store."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._server: asyncio.Server | None = None
        self._ledger: Any = None
        self._providers: dict[str, Any] = {}
        self.url = ""

    def __enter__(self) -> Listener:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._begin(), self._loop).result(END_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(END_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        self._loop.close()

    async def _begin(self) -> None:
        self._ledger = open_store(self._store)
        self._server = await asyncio.start_server(self._called, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        self._providers = {name: opened(part, self.url, 1) for name, part in BY_NAME.items()}

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        for provider in self._providers.values():
            await provider.close()
        await self._ledger.close()

    async def _called(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            request = await read_request(reader)
            if request is not None:
                await self._take(request)
                await write_response(writer, SimulatedResponse(200))
        finally:
            with suppress(ConnectionError):
                writer.close()

    async def _take(self, request: HttpRequest) -> None:
        provider = self._providers[request.path.strip("/")]
        witnesses = provider.reports(request.headers, request.body, urlencode(request.query))
        await self._ledger.outbox.apply_reports(witnesses)
