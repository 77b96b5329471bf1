"""What hostile and careless senders do, and that the service goes on as if nothing had happened."""

from __future__ import annotations

import gzip
import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.service.running import Running, event, service

SETTINGS = """
[server]
read_timeout = 1
idle_timeout = 3
header_max = 8_000
header_count_max = 50

[[endpoints]]
path = "/events"
mode = "inline"

[[routes]]
name = "shown"
topics = ["**"]
console = true
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with service(tmp_path_factory.mktemp("limits"), SETTINGS) as running:
        yield running


def healthy(running: Running, number: int | str) -> bool:
    return bool(running.post("/events", event(number)).json["status"] == "processed")


def resident_mb(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def test_a_gzip_bomb_stays_a_small_body(running: Running) -> None:
    bomb = gzip.compress(b"0" * 200_000_000, 1)
    before = resident_mb(running.pid)
    for headers in ({"Content-Encoding": "gzip"}, {"Content-Encoding": "GZIP, gzip"}, {}):
        assert running.post("/events", bomb[:200_000], headers).status in (400, 415)
    assert resident_mb(running.pid) - before < 50
    assert healthy(running, "after-the-bomb")


def test_both_content_length_and_transfer_encoding_are_refused_and_nothing_is_smuggled(running: Running) -> None:
    hidden = json.dumps(event("smuggled")).encode()
    inner = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (len(hidden), hidden)
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    answer = running.raw(head + inner, timeout=5)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert healthy(running, "smuggled")  # it is new: nothing was claimed for it


@pytest.mark.parametrize(
    "head",
    [
        b"POST /events HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        b"POST /events HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"POST /events HTTP/1.1\r\nContent-Length: 99999999999999999999999999\r\n\r\n",
        b"POST /events HTTP/1.1\r\nContent-Length: 0x10\r\n\r\n",
        b"POST /events HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS where none is spoken
        b"GARBAGE\r\n\r\n",
    ],
)
def test_broken_requests_are_400_and_the_connection_ends(running: Running, head: bytes) -> None:
    answer = running.raw(head, timeout=10)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert healthy(running, f"after-{head[:80]!r}")


@pytest.mark.parametrize(
    "headers",
    [
        b"".join(b"X-%d: y\r\n" % n for n in range(60)),  # too many
        b"X: " + b"y" * 9_000 + b"\r\n",  # too large
    ],
)
def test_too_many_or_too_large_headers_are_431(running: Running, headers: bytes) -> None:
    answer = running.raw(b"POST /events HTTP/1.1\r\nHost: x\r\n" + headers + b"\r\n", timeout=10)
    assert answer.startswith(b"HTTP/1.1 431 ")
    assert healthy(running, f"after-{len(headers)}")


def test_a_header_that_never_ends_is_cut_off(running: Running) -> None:
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nX: "
    with socket.create_connection(("127.0.0.1", running.port), 20) as endless:
        endless.sendall(head)
        with pytest.raises(ConnectionError):
            endless.sendall(b"y" * 64_000_000)
    assert healthy(running, "after-endless")


def test_a_sender_that_never_ends_its_body_is_cut_off(running: Running) -> None:
    body = json.dumps(event("too-slow")).encode()
    with socket.create_connection(("127.0.0.1", running.port), 20) as slow:
        slow.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body))
        begun = time.monotonic()
        closed = False
        for byte in body:
            try:
                slow.sendall(bytes([byte]))
                slow.settimeout(0.2)
                if slow.recv(1000) == b"" or time.monotonic() - begun > 15:
                    closed = True
            except TimeoutError:
                continue
            except OSError:
                closed = True
            if closed:
                break
    assert closed
    assert time.monotonic() - begun < 15
    assert healthy(running, "too-slow")  # nothing was claimed for half an event


def test_a_sender_that_never_ends_its_headers_is_cut_off(running: Running) -> None:
    begun = time.monotonic()
    assert running.raw(b"POST /events HTTP/1.1\r\nX: y", timeout=15) == b""
    assert time.monotonic() - begun < 15
    assert healthy(running, "after-slow-headers")


def test_five_thousand_idle_connections_leave_it_healthy_and_are_closed(running: Running) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = min(5_000, hard - 500)
    idle: list[socket.socket] = []
    try:
        idle.extend(socket.create_connection(("127.0.0.1", running.port), 20) for _ in range(count))
        assert all(healthy(running, f"beside-idle-{number}") for number in range(10))
        idle[0].settimeout(20)
        assert idle[0].recv(1) == b""  # closed by the other side
        assert idle[-1].recv(1) == b""
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert count == 5_000, "this machine does not allow as many files"
    assert healthy(running, "after-idle")
