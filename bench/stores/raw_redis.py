"""The floor on Redis: two phases, packed by hand, one pipeline for each phase of a batch.

    claim    SET key token NX PX lease          settle    SET key done XX PX retention

It has no token checks, results, conflicts, attempts or takeovers, and compares answers as bytes. One variant uses
asyncio, as a program with handlers does. The other uses a blocking socket, which is the minimum.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

CLAIM = b"*6\r\n$3\r\nSET\r\n$16\r\n%%b\r\n$%d\r\n%b\r\n$2\r\nNX\r\n$2\r\nPX\r\n$5\r\n25000\r\n"  # a lease
SETTLE = b"*6\r\n$3\r\nSET\r\n$16\r\n%%b\r\n$%d\r\n%b\r\n$2\r\nXX\r\n$2\r\nPX\r\n$10\r\n3283200000\r\n"  # 38 days
OK = b"+OK\r\n"


class Phases:
    """Both commands around a key, with as many bytes for its value as are wanted: a token is 8, Semel's record 250."""

    def __init__(self, value_bytes: int) -> None:
        token, done = b"0" * value_bytes, b"1" * value_bytes
        self.claim = CLAIM % (value_bytes, token)
        self.settle = SETTLE % (value_bytes, done)


class RawRedis(asyncio.Protocol):
    """One connection; the caller knows the length of the response."""

    def __init__(self) -> None:
        self._got = bytearray()
        self._expected = 0
        self._answer: asyncio.Future[bytes] | None = None
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(cls, host: str, port: int) -> RawRedis:
        _, connection = await asyncio.get_running_loop().create_connection(cls, host, port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._answer is not None and len(self._got) >= self._expected:
            answer, self._answer = self._answer, None
            answer.set_result(bytes(self._got))
            self._got.clear()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(exc or ConnectionResetError("the server hung up"))

    async def two_phases(self, phases: Phases, batches: Sequence[Sequence[bytes]]) -> None:
        for keys in batches:
            granted = await self._ask(pack(phases.claim, keys), len(keys))
            settled = await self._ask(pack(phases.settle, keys), len(keys))
            check(granted, settled, len(keys))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _ask(self, commands: bytes, number: int) -> asyncio.Future[bytes]:
        assert self._transport is not None, "not connected"
        self._expected = number * len(OK)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(commands)
        return self._answer


def two_phases_blocking(connection: socket.socket, phases: Phases, batches: Sequence[Sequence[bytes]]) -> None:
    for keys in batches:
        granted = _ask_blocking(connection, pack(phases.claim, keys), len(keys))
        settled = _ask_blocking(connection, pack(phases.settle, keys), len(keys))
        check(granted, settled, len(keys))


def _ask_blocking(connection: socket.socket, commands: bytes, number: int) -> bytes:
    connection.sendall(commands)
    got = connection.recv(65_536)
    while len(got) < number * len(OK):
        if not (more := connection.recv(65_536)):
            raise ConnectionResetError("the server hung up")
        got += more
    return got


def pack(command: bytes, keys: Sequence[bytes]) -> bytes:
    return b"".join([command % key for key in keys])


def check(granted: bytes, settled: bytes, number: int) -> None:
    if not granted == settled == OK * number:
        raise AssertionError("the floor lost a key: its time means nothing")
