"""The part of HTTP/1.1 that provider clients use, on asyncio streams: requests with a length, and kept connections."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

import msgspec

HEAD_MAX_BYTES = 64 * 1024
BODY_MAX_BYTES = 1024 * 1024


class HttpRequest(NamedTuple):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]  # names in lower case
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def form(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(self.body.decode()).items()}


class SimulatedResponse(NamedTuple):
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = {}


def as_json(status: int, document: Any, **headers: str) -> SimulatedResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return SimulatedResponse(status, msgspec.json.encode(document), {"Content-Type": "application/json", **named})


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | None:
    """Returns None if the connection is closed, or if its bytes are not HTTP."""
    try:
        first = await reader.readexactly(1)
        if not first.isalpha():
            return None  # such as TLS, which never sends an empty line
        head = first + await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
        return None
    lines = head.decode("latin-1").split("\r\n")
    method, target, _ = lines[0].split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:]) if name}
    length = int(headers.get("content-length", "0"))
    if length > BODY_MAX_BYTES:
        return None
    try:
        body = await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    parts = urlsplit(target)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    return HttpRequest(method, parts.path, query, headers, body)


async def write_response(writer: asyncio.StreamWriter, response: SimulatedResponse) -> None:
    headers = {"Content-Length": str(len(response.body)), **response.headers}
    head = f"HTTP/1.1 {response.status} -\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(head.encode("latin-1") + b"\r\n" + response.body)
    await writer.drain()
