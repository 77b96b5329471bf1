"""What the people who run it do: replay, look, restart with other settings, watch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.cli import command
from tests.service.running import Running, event, service

from semel.core.routing import NO_KEY

APP = "tests.service.handlers_app:app"
BOTH = '[[endpoints]]\npath = "/inline"\nmode = "inline"\n[[endpoints]]\npath = "/inbox"\n'


def semel(running: Running, *arguments: str) -> Any:
    with chdir(running.folder):
        ended = command.semel(*arguments, "--json")
    assert ended.code == 0, ended.out + ended.err
    return ended.json


def runs(running: Running, id: str) -> list[str]:
    path = running.folder / "runs.txt"
    return [line for line in path.read_text().splitlines() if line.split()[0] == id] if path.exists() else []


@contextmanager
def downstream(status: int = 200) -> Iterator[tuple[str, list[tuple[dict[str, str], bytes]]]]:
    """A real HTTP server that keeps what it was sent."""
    got: list[tuple[dict[str, str], bytes]] = []

    class Taking(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append(({name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taking)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/", got
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@pytest.mark.parametrize("path", ["/inline", "/inbox"])
def test_a_key_that_cannot_be_computed_is_a_dead_letter_of_its_handler_until_it_can(tmp_path: Path, path: str) -> None:
    body = {"id": "p1", "type": "pair", "data": {}}
    with service(tmp_path, BOTH, APP) as running:
        reply = running.post(path, body)
        assert reply.status == 200
        status = {part["handler"]: part["status"] for part in reply.json["parts"]}
        if path == "/inline":
            assert (status, reply.json["reason"]) == ({"audit": "processed", "crm": "dead"}, NO_KEY)
        else:
            assert status == {"audit": "accepted", "crm": "accepted"}
        running.until(lambda: semel(running, "dead", "list"), "not listed")
        (dead_letter,) = semel(running, "dead", "list")
        assert dead_letter["handler"] == "crm"
        assert dead_letter["reason"].startswith(NO_KEY)
        assert running.post(path, body).json["status"] == "duplicate"
        running.until(lambda: runs(running, "p1") == ["p1 audit"], "the other handler did not run")
        (tmp_path / "mended").touch()
        semel(running, "dead", "replay", "--matching", NO_KEY, "--reason", "the id will do", "--yes")
        running.until(lambda: runs(running, "p1") == ["p1 audit", "p1 crm"], "the replay did not run")
        assert semel(running, "dead", "list") == []
        running.until(lambda: running.post(path, body).json["status"] == "duplicate", "it is not done")


@pytest.mark.parametrize("path", ["/inline", "/inbox"])
@pytest.mark.parametrize("id", [None, "", "x" * 256])
def test_an_event_without_a_usable_id_is_kept_and_not_refused(tmp_path: Path, path: str, id: str | None) -> None:
    body = {"type": "ok", "data": {}} | ({} if id is None else {"id": id})
    with service(tmp_path, BOTH, APP) as running:
        assert running.post(path, body).status == 200
        running.until(lambda: semel(running, "dead", "list"), "not listed")
        (dead_letter,) = semel(running, "dead", "list")
        assert dead_letter["reason"].startswith(NO_KEY)


@pytest.mark.parametrize("path", ["/inline", "/inbox"])
def test_a_dead_event_is_replayed_and_is_not_eaten_by_its_own_key(tmp_path: Path, path: str) -> None:
    with service(tmp_path, BOTH, APP) as running:
        body = {"id": "r1", "type": "refused", "data": {}}
        running.post(path, body)
        running.until(lambda: runs(running, "r1"), "not handled")
        running.until(lambda: semel(running, "dead", "list"), "not listed")
        key = running.post("/inline", body).json["key"]
        assert running.post(path, body).json["reason"] == "dead"
        (tmp_path / "mended").touch()
        semel(running, "dead", "replay", key, "--reason", "the customer exists now")
        running.until(lambda: len(runs(running, "r1")) == 2, "the replay did not run")
        running.until(lambda: running.post(path, body).json.get("reason", "") in ("", "done"), "its record stays dead")
        assert semel(running, "dead", "list") == []
        assert len(runs(running, "r1")) == 2  # and not once more
        history = json.dumps(semel(running, "events", "show", key))
        assert "the customer exists now" in history
        assert "no such customer" in history


def test_a_route_forwards_with_the_key_and_the_trace_it_came_with(tmp_path: Path) -> None:
    with downstream() as (url, got):
        settings = f"""
            [destinations.crm]
            url = "{url}"
            headers = {{ Authorization = "env:CRM_TOKEN" }}
            allow = ["127.0.0.1"]
            [[routes]]
            name = "crm"
            topics = ["interaction.*"]
            forward = "crm"
            effect = "keyed"
            select = "data"
        """
        trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        with service(tmp_path, settings, env={"CRM_TOKEN": "Bearer s3cret"}) as running:
            reply = running.post("/events", event(1, name="Ada"), {"traceparent": trace})
            running.until(lambda: got, "nothing was forwarded")
            headers, body = got[0]
            assert headers["idempotency-key"] == reply.json["key"]
            assert headers["authorization"] == "Bearer s3cret"
            assert headers["traceparent"].split("-")[1] == trace.split("-")[1]
            assert json.loads(body) == {"id": "c-1", "name": "Ada"}
            running.post("/events", event(1, name="Ada"))
            assert len(got) == 1
            assert not any("s3cret" in line for line in running.log)


def test_an_unavailable_destination_does_not_delay_others(tmp_path: Path) -> None:
    with downstream(503) as (down, attempt_log), downstream() as (up, got):
        settings = f"""
            [destinations.down]
            url = "{down}"
            allow = ["127.0.0.1"]
            breaker_open = 60
            [destinations.up]
            url = "{up}"
            allow = ["127.0.0.1"]
            [[routes]]
            name = "to-down"
            topics = ["interaction.*"]
            forward = "down"
            [[routes]]
            name = "to-up"
            topics = ["interaction.*"]
            forward = "up"
        """
        with service(tmp_path, settings) as running:
            for number in range(300):
                assert running.post("/events", event(number)).json["status"] == "accepted"
            running.until(lambda: len(got) == 300, "the other destination waits")
            page = running.get("/metrics").body.decode()
            assert 'semel_destination_breaker_state{destination="down"} 2.0' in page  # open
            assert 'semel_destination_breaker_state{destination="up"} 0.0' in page
            assert len(attempt_log) < 100  # the breaker and the budget spare it
            assert re.search(r'semel_inbox_depth\{lane="to-down",\w+="waiting"\} [1-9]', page)
            assert semel(running, "dead", "list") == []  # waiting for a destination burns no attempts


def test_the_numbers_of_all_workers_are_on_every_page(tmp_path: Path) -> None:
    with service(tmp_path, BOTH, APP, "--workers", "3") as running:
        running.until(lambda: len(running.workers()) == 3, "three workers did not start")
        for number in range(60):
            assert running.post("/inline", {"id": f"m{number}", "type": "ok", "data": {}}).status == 200
        wanted = 'semel_http_answers_total{endpoint="/inline",status="200"} 60.0'
        for _ in range(10):
            assert wanted in running.get("/metrics").body.decode()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ('[server]\nhost = "0.0.0.0"\n', "token"),
        ('ledger = "memory://"\n', "inbox"),
        ('ledger = "sqlite:////nowhere/at/all.db"\n', "/nowhere/at"),
        ('[[routes]]\nname = "a"\ntopics = ["x"]\nfowrard = "http://example.com"\n', '"forward"'),
        ('[[routes]]\nname = "a"\ntopics = ["x"]\nconsole = true\ntimeout = 60\n', "lease"),
    ],
)
def test_it_refuses_to_start_on_what_doctor_calls_an_error(tmp_path: Path, settings: str, named: str) -> None:
    (tmp_path / "semel.toml").write_text(settings)
    for refusing in ("run", "doctor"):
        done = subprocess.run(
            [sys.executable, "-m", "semel", refusing],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode in (1, 2)
        assert named in " ".join((done.stdout + done.stderr).split())
        assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_named_with_the_option_to_change_it(tmp_path: Path) -> None:
    with service(tmp_path, BOTH, APP) as running:
        done = subprocess.run(
            [sys.executable, "-m", "semel", "run", "--port", str(running.port)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert f":{running.port}" in done.stderr
        assert "--port" in done.stderr
