"""The provider of the benchmark: a real socket in its own process that accepts every message immediately.

The simulator of `semel.testing` handles dialects, keys and lies, which makes it too slow for this purpose. The far end
reads only the length and the key of a request, and counts. After a measurement it reports the number of messages and of
different keys. Requests to `/slow` are answered after a delay, as by real providers. It runs until its standard input
is closed.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.request import urlopen

PATIENCE_S = 60.0
SLOW_S = 0.02  # fast for a provider; most take several times as long
COUNT, SLOW = b"GET /count ", b"POST /slow "
KEY, LENGTH, END = b"\r\nIdempotency-Key: ", b"\r\nContent-Length: ", b"\r\n\r\n"
HEAD = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n"


class FarEnd(asyncio.Protocol):
    """One connection of a client that sends one request after the other."""

    def __init__(self, keys: list[bytes]) -> None:
        self._keys = keys  # of all connections, since the last count
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._got += data
        while (end := self._got.find(END)) >= 0:
            head = self._got[: end + 2]
            whole = end + len(END) + int(_field(head, LENGTH) or 0)
            if len(self._got) < whole:
                return
            self._got = self._got[whole:]
            answer = self._answer(head)
            if head.startswith(SLOW):
                asyncio.get_running_loop().call_later(SLOW_S, self._transport.write, answer)
            else:
                self._transport.write(answer)

    def _answer(self, head: bytes) -> bytes:
        if head.startswith(COUNT):
            told = f"{len(self._keys)} {len(set(self._keys))}"
            self._keys.clear()
        else:
            self._keys.append(_field(head, KEY))
            told = f'{{"id":"m{len(self._keys)}"}}'
        return (HEAD.format(len(told)) + told).encode()


def _field(head: bytes, name: bytes) -> bytes:
    at = head.find(name)
    return head[at + len(name) : head.find(b"\r\n", at + len(name))] if at >= 0 else b""


async def main() -> None:
    keys: list[bytes] = []
    server = await asyncio.get_running_loop().create_server(lambda: FarEnd(keys), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    server.close()


# ------------------------------------------------------------------------------------------------------- the client


class Away:
    """Access to a running far end."""

    def __init__(self, pid: int, port: int, path: str = "messages") -> None:
        self.pid = pid
        self.url = f"http://127.0.0.1:{port}/{path}"
        self._port = port
        self._count = f"http://127.0.0.1:{port}/count"

    def slow(self) -> Away:
        """The URL that answers after a delay."""
        return Away(self.pid, self._port, "slow")

    def check(self, messages: int) -> None:
        """Check that the expected number of messages arrived since the last count, each once. Otherwise the measured
        time is meaningless."""
        came, different = self.forget()
        if not came == different == messages:
            told = f"{came:,} messages came, {different:,} different ones, where {messages:,} had to"
            raise AssertionError(f"{told}: its time means nothing")

    def forget(self) -> tuple[int, int]:
        """The number of messages since the last count, and the number of different ones."""
        with urlopen(self._count, timeout=PATIENCE_S) as answer:
            came, different = map(int, answer.read().split())
        return came, different


@contextmanager
def away() -> Iterator[Away]:
    """Ends with the block, or with the process that began it."""
    command = [sys.executable, "-m", "bench.outbox.far_end"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield Away(process.pid, int(process.stdout.readline()))
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(main())
