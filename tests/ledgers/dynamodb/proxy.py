"""A proxy between the ledger and DynamoDB that understands requests: it loses replies, answers in place of the service,
and counts both, so that a test can prove that its fault has landed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode, urlsplit

Wanted = Callable[[str, bytes], bool]


def operation(name: str) -> Wanted:
    return lambda operation, body: operation == name


@dataclass
class Fault:
    """What happens to the next requests of a kind."""

    wanted: Wanted
    times: int
    answer: bytes | None  # None: the service acts, and its reply is lost
    landed: int = 0


@dataclass
class Proxy:
    upstream: str
    faults: list[Fault] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    port: int = 0

    def lose_reply(self, wanted: Wanted, times: int = 1) -> Fault:
        self.faults.append(Fault(wanted, times, None))
        return self.faults[-1]

    def refuse(self, wanted: Wanted, code: str, times: int = 1, status: int = 400, **more: Any) -> Fault:
        body = json.dumps({"__type": f"com.amazonaws.dynamodb.v20120810#{code}", "message": "injected", **more})
        head = f"HTTP/1.1 {status} Injected\r\nContent-Type: application/x-amz-json-1.0\r\n"
        answer = f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()
        self.faults.append(Fault(wanted, times, answer))
        return self.faults[-1]

    def url(self, ledger_url: str, **options: str) -> str:
        """The same table, by this way."""
        table = ledger_url.partition("?")[0]
        endpoint = f"http://127.0.0.1:{self.port}"
        return f"{table}?{urlencode({'region': 'eu-central-1', 'endpoint': endpoint, 'margin_ms': '0', **options})}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to = urlsplit(self.upstream)
        up_reader, up_writer = await asyncio.open_connection(to.hostname, to.port)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head, body = await _message(reader)
                name = _operation(head)
                self.requests.append(name)
                fault = next((one for one in self.faults if one.landed < one.times and one.wanted(name, body)), None)
                answer = fault.answer if fault is not None else None
                if answer is None:
                    up_writer.write(head + body)
                    answer = b"".join(await _message(up_reader))
                if fault is not None:
                    fault.landed += 1
                    if fault.answer is None:
                        break
                writer.write(answer)
                await writer.drain()
        for one in (writer, up_writer):
            one.close()


@asynccontextmanager
async def proxy_to(upstream: str) -> AsyncIterator[Proxy]:
    proxy = Proxy(upstream)
    server = await asyncio.start_server(proxy._serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()


def _operation(head: bytes) -> str:
    (line,) = [line for line in head.lower().splitlines() if line.startswith(b"x-amz-target:")]
    at = head.lower().index(line)
    return head[at : at + len(line)].rpartition(b".")[2].decode().strip()


async def _message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    (length,) = [line for line in head.lower().splitlines() if line.startswith(b"content-length:")] or [b"x: 0"]
    return head, await reader.readexactly(int(length.partition(b":")[2]))
