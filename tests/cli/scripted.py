"""Servers that say exactly what a test wants them to say, over real sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeAlias

Talk: TypeAlias = Callable[[socket.socket], None]
Answer: TypeAlias = Callable[[int, bytes], bytes | None]
"""What to say to the request of this number (from 0) with this body; None: nothing, ever."""


@contextmanager
def listening(talk: Talk) -> Iterator[str]:
    """`talk` has each connection to itself, in a thread."""
    over = threading.Event()
    accepted: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):
            while not over.is_set():
                connection, _ = server.accept()
                accepted.append(connection)
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

    def serve(connection: socket.socket) -> None:
        with suppress(OSError), connection:
            talk(connection)

    with socket.create_server(("127.0.0.1", 0), backlog=256) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)
            thread.join(10)
            for connection in accepted:
                connection.close()


@contextmanager
def scripted(answer: Answer, heads: list[bytes] | None = None) -> Iterator[str]:
    """Reads whole requests, keeps their heads, and says what `answer` says."""
    lock = threading.Lock()
    numbers = iter(range(1_000_000))

    def talk(connection: socket.socket) -> None:
        rest = b""
        while True:
            request = read_request(connection, rest)
            if request is None:
                return
            head, body, rest = request
            with lock:
                if heads is not None:
                    heads.append(head)
                said = answer(next(numbers), body)
            if said is None:
                connection.recv(1)  # until the other side hangs up
                return
            connection.sendall(said)

    with listening(talk) as url:
        yield url


def answering(said: bytes) -> Answer:
    return lambda number, body: said


def read_request(connection: socket.socket, read: bytes = b"") -> tuple[bytes, bytes, bytes] | None:
    """The head and the body of the next request, and what came behind it."""
    while b"\r\n\r\n" not in read:
        more = connection.recv(65536)
        if not more:
            return None
        read += more
    head, _, rest = read.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")), 0)
    while len(rest) < length:
        more = connection.recv(65536)
        if not more:
            return None
        rest += more
    return head, rest[:length], rest[length:]
