"""Round trips between the ledger and the server, counted on the wire."""

from __future__ import annotations

import asyncio
from types import TracebackType
from urllib.parse import urlsplit, urlunsplit


class Relay:
    """A TCP relay on loopback that counts round trips: a request is what the client sends until the server replies."""

    def __init__(self, url: str) -> None:
        self._parts = urlsplit(url)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self.round_trips = 0

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    @property
    def url(self) -> str:
        assert self._server is not None
        port = self._server.sockets[0].getsockname()[1]
        user = self._parts.netloc.rpartition("@")[0]
        return urlunsplit(self._parts._replace(netloc=f"{user}@127.0.0.1:{port}"))

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection(self._parts.hostname, self._parts.port)
        speaking = {"client": False}

        async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_client: bool) -> None:
            try:
                while data := await reader.read(65536):
                    if is_client and not speaking["client"]:
                        self.round_trips += 1
                    speaking["client"] = is_client
                    writer.write(data)
                    await writer.drain()
            finally:
                writer.close()

        for task in (
            asyncio.create_task(pump(client, to_server, True)),
            asyncio.create_task(pump(server, to_client, False)),
        ):
            self._pumps.add(task)
