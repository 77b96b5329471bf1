"""The fault proxy, over real sockets: each fault does what it says, and is counted."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from semel.testing.proxy import BLACK_HOLE, DEAF, PARTITION, Fault, FaultProxy

SOON_S = 10.0  # for what must happen
SILENCE_S = 0.3  # for what must not


class Answering(socketserver.StreamRequestHandler):
    """Answers each line with the same, in upper case, and remembers it."""

    def handle(self) -> None:
        server = self.server
        assert isinstance(server, Lines)
        with server.peers():
            try:
                for line in self.rfile:
                    server.heard.append(line.decode().strip())
                    self.wfile.write(line.upper())
            except ConnectionError:
                server.hung_up += 1


class Lines(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answering)
        self.heard: list[str] = []
        self.hung_up = 0
        self.open = 0

    @contextmanager
    def peers(self) -> Iterator[None]:
        self.open += 1
        try:
            yield
        finally:
            self.open -= 1


@pytest.fixture
def server() -> Iterator[Lines]:
    with Lines() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def proxy(server: Lines) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", server.server_address[1]) as proxy:
        yield proxy


@contextmanager
def connected(proxy: FaultProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=SOON_S) as client:
        yield client


def ask(client: socket.socket, line: str) -> str:
    client.sendall(f"{line}\n".encode())
    return hear(client)


def hear(client: socket.socket) -> str:
    got = b""
    while not got.endswith(b"\n"):
        piece = client.recv(4096)
        if not piece:
            raise EOFError
        got += piece
    return got.decode().strip()


def is_silent(client: socket.socket) -> bool:
    client.settimeout(SILENCE_S)
    try:
        return client.recv(1) is None
    except TimeoutError:
        return True
    finally:
        client.settimeout(SOON_S)


def wait_for(true: object) -> None:
    assert callable(true)
    ends = time.monotonic() + SOON_S
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_healthy_proxy_carries_everything_both_ways(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client, connected(proxy) as other:
        assert (ask(client, "one"), ask(other, "two")) == ("ONE", "TWO")
        long = "x" * 1_000_000
        writer = threading.Thread(target=client.sendall, args=(f"{long}\n".encode(),))
        writer.start()
        assert hear(client) == long.upper()
        writer.join()
        assert proxy.open == 2
    assert proxy.seen.connections == 2
    assert proxy.seen.request_bytes == proxy.seen.reply_bytes == len("one\ntwo\n") + 1_000_001
    wait_for(lambda: proxy.open == 0 and server.open == 0)


def test_a_url_leads_to_the_proxy_and_keeps_the_rest(proxy: FaultProxy) -> None:
    there = f"127.0.0.1:{proxy.port}"
    assert proxy.url("postgresql://me:p%40ss@db:5432/x?pool=2") == f"postgresql://me:p%40ss@{there}/x?pool=2"
    assert proxy.url("redis://127.0.0.1:6379/0") == f"redis://{there}/0"
    assert proxy.url("http://localhost") == f"http://{there}"


def test_latency_delays_each_way(proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        with proxy.fault(Fault(latency_ms=150)):
            began = time.monotonic()
            assert ask(client, "slow") == "SLOW"
            assert time.monotonic() - began >= 0.3
    assert proxy.seen.delayed == 2


def test_slices_arrive_whole(proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        with proxy.fault(Fault(slice_bytes=3)):
            assert ask(client, "in pieces of three") == "IN PIECES OF THREE"
    assert proxy.seen.pieces == 2 * 7


def test_a_reset_ends_every_connection_and_new_ones_are_welcome(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client, connected(proxy) as other:
        assert (ask(client, "one"), ask(other, "two")) == ("ONE", "TWO")
        assert proxy.reset() == 2
        for end in (client, other):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
        wait_for(lambda: server.hung_up == 2)
    with connected(proxy) as client:
        assert ask(client, "three") == "THREE"
    assert proxy.seen.resets == 2


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 9])
def test_a_reset_after_some_bytes_cuts_a_message_in_two(proxy: FaultProxy, server: Lines, cut: int) -> None:
    with connected(proxy) as client:
        proxy.reset_after(cut)
        with pytest.raises(ConnectionResetError):
            ask(client, "four\n" * 4)
    assert proxy.seen.request_bytes + proxy.seen.reply_bytes == cut
    assert proxy.seen.resets == 1
    assert proxy.disarm() is False


def test_refused_means_that_nobody_listens_and_the_port_is_kept(proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        with proxy.fault(Fault(refuse=True)):
            with pytest.raises(ConnectionRefusedError), connected(proxy):
                pass
            assert ask(client, "still here") == "STILL HERE"
        with connected(proxy) as other:
            assert ask(other, "back") == "BACK"


def test_new_connections_can_be_reset_too(proxy: FaultProxy) -> None:
    with proxy.fault(Fault(reset_new=True)):
        with pytest.raises((ConnectionResetError, BrokenPipeError)), connected(proxy) as client:
            ask(client, "nobody")
    assert proxy.seen.resets == 1


def test_a_black_hole_swallows_both_ways_and_hangs_up_on_nobody(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as before:
        assert ask(before, "before") == "BEFORE"
        with proxy.fault(BLACK_HOLE):
            with connected(proxy) as within:
                for client in (before, within):
                    client.sendall(b"into the hole\n")
                    assert is_silent(client)
            time.sleep(SILENCE_S)
            assert server.open == 2, "a goodbye does not get through either"
        before.sendall(b"TCP has no gaps\n")
        assert is_silent(before), "what was swallowed is gone, and so is its connection"
        wait_for(lambda: server.open == 1)
    assert server.heard == ["before"]
    assert proxy.seen.swallowed == 3
    with connected(proxy) as client:
        assert ask(client, "after") == "AFTER"


def test_a_partition_that_ends_brings_late_what_was_sent_meanwhile(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client:
        with proxy.fault(PARTITION):
            client.sendall(b"late\n")
            assert is_silent(client)
            assert server.heard == []
        assert hear(client) == "LATE"
    assert proxy.seen.held == 1


def test_half_open_the_server_acts_and_its_answers_go_nowhere(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client:
        with proxy.fault(DEAF):
            client.sendall(b"act\n")
            assert is_silent(client)
        wait_for(lambda: server.heard == ["act"])
    assert proxy.seen.swallowed == 1


@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_reply_is_lost_after_the_server_has_acted(proxy: FaultProxy, server: Lines, nth: int) -> None:
    lines = ["one", "two", "three"]
    with connected(proxy) as client:
        proxy.lose("reply", nth)
        for line in lines[: nth - 1]:
            assert ask(client, line) == line.upper()
        with pytest.raises(ConnectionResetError):
            ask(client, lines[nth - 1])
    assert server.heard == lines[:nth]
    assert (proxy.seen.lost_replies, proxy.seen.lost_requests, proxy.seen.resets) == (1, 0, 1)
    with connected(proxy) as client:
        assert ask(client, "only one was to be lost") == "ONLY ONE WAS TO BE LOST"


def test_a_lost_request_does_not_reach_the_server(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client:
        proxy.lose("request")
        with pytest.raises(ConnectionResetError):
            ask(client, "nothing")
    wait_for(lambda: server.open == 0)
    assert server.heard == []
    assert (proxy.seen.lost_replies, proxy.seen.lost_requests) == (0, 1)


def test_what_is_lost_may_leave_silence(proxy: FaultProxy, server: Lines) -> None:
    with connected(proxy) as client:
        proxy.lose("reply", then="silence")
        client.sendall(b"hello\n")
        assert is_silent(client)
        client.sendall(b"anyone?\n")
        assert is_silent(client)
    assert server.heard == ["hello"]
    assert (proxy.seen.lost_replies, proxy.seen.resets) == (1, 0)


def test_what_was_armed_and_never_came_is_told(proxy: FaultProxy) -> None:
    with connected(proxy) as client:
        proxy.lose("reply", 2)
        assert ask(client, "first") == "FIRST"
        assert proxy.disarm() is True
        assert ask(client, "second") == "SECOND"
    assert proxy.seen.lost_replies == 0


def test_after_a_failover_new_connections_lead_elsewhere(proxy: FaultProxy, server: Lines) -> None:
    with Lines() as other, connected(proxy) as before:
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        assert ask(before, "one") == "ONE"
        proxy.leads_to("127.0.0.1", other.server_address[1])
        with connected(proxy) as after:
            assert (ask(before, "two"), ask(after, "three")) == ("TWO", "THREE")
        other.shutdown()
        thread.join()
    assert (server.heard, other.heard) == (["one", "two"], ["three"])


def test_a_server_that_is_not_there_resets_who_asks_for_it() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        with FaultProxy("127.0.0.1", nobody.getsockname()[1]) as proxy:
            with (
                pytest.raises((ConnectionResetError, BrokenPipeError, ConnectionAbortedError)),
                connected(proxy) as client,
            ):
                ask(client, "anyone?")
            assert proxy.seen.unreachable == 1
