"""Idle connections leave open files for destinations and the ledger."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.service.running import event, service

from semel.service.server import CONNECTIONS_MIN, connections_allowed

FILES = 256
LIMITED = ["sh", "-c", f'ulimit -n {FILES} && exec "$@"', "sh"]


class Sink(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def sink() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def test_more_idle_connections_than_open_files_leave_forwarding_alone(sink: int, tmp_path: Path) -> None:
    settings = f"""
[server]
idle_timeout = 60

[[endpoints]]
mode = "inline"

[destinations.sink]
url = "http://127.0.0.1:{sink}/"
allow = ["127.0.0.1"]

[[routes]]
name = "to-sink"
topics = ["**"]
forward = "sink"
"""
    with service(tmp_path, settings, inside=LIMITED) as running, ExitStack() as idle:
        assert any("connections_limited" in line for line in running.log), running.text
        sender = http.client.HTTPConnection("127.0.0.1", running.port, timeout=30)
        idle.callback(sender.close)
        sender.request("GET", "/healthz")
        sender.getresponse().read()
        for _ in range(FILES + 100):
            idle.enter_context(socket.create_connection(("127.0.0.1", running.port), 20))
        for number in range(20):
            sender.request("POST", "/events", json.dumps(event(number)))
            answer = sender.getresponse()
            told = json.loads(answer.read())
            assert (answer.status, told["status"]) == (200, "processed"), running.text


@pytest.mark.parametrize(
    ("wanted", "files", "reserve", "allowed"),
    [
        (10_000, 1_048_576, 132, 10_000),
        (10_000, 1_024, 132, 892),
        (500, 1_024, 132, 500),
        (10_000, 100, 132, CONNECTIONS_MIN),
        (10_000, -1, 132, 10_000),
    ],
)
def test_connections_leave_a_reserve_of_open_files(wanted: int, files: int, reserve: int, allowed: int) -> None:
    """-1: there is no limit."""
    assert connections_allowed(wanted, files, reserve) == allowed
