"""`app.asgi()` inside other applications, and alone."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from tests.service.running import event

from semel import ConfigError, Semel

ROOT = Path(__file__).parent.parent.parent


@contextmanager
def served(application: Any) -> Iterator[str]:
    """In a thread, on a free port."""
    server = uvicorn.Server(uvicorn.Config(application, port=0, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        deadline = time.monotonic() + 20
        while not server.started:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def post(url: str, body: Any, headers: dict[str, str] | None = None) -> tuple[int, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def test_the_fastapi_example_takes_an_event_once(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "examples.fastapi_app:api", "--port", "0", "--app-dir", str(ROOT)],
        cwd=tmp_path,
        env={**os.environ, "LEDGER": "sqlite:///semel.db"},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        url = next(line.split("running on ")[1].split()[0] for line in process.stderr if "running on " in line)
        assert post(f"{url}/semel/events", event(1))[1]["status"] == "accepted"
        assert post(f"{url}/semel/events", event(1))[1]["status"] == "duplicate"
        deadline = time.monotonic() + 20
        counted: Any = None
        while counted != {"dead": 0, "done": 1}:
            assert time.monotonic() < deadline, counted
            with urllib.request.urlopen(f"{url}/tickets", timeout=20) as answer:
                counted = json.loads(answer.read())
        assert post(f"{url}/events", event(1))[0] in (404, 405)  # it is below its mount only
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_it_is_mounted_in_starlette_verified_and_inline() -> None:
    app = Semel("memory://")
    app.on("**", name="echo")(lambda event, ctx: {"got": event.id})
    inner = app.asgi("/hook", verify="header", secrets=["letmein"])
    with served(Starlette(routes=[Mount("/deep/down", inner)])) as url:
        path = f"{url}/deep/down/hook"
        assert post(path, event(1))[0] == 401
        assert post(path, event(1), {"X-Api-Key": "letmein"})[1]["result"] == {"got": "e-1"}
        assert post(path, event(1), {"X-Api-Key": "letmein"})[1]["status"] == "duplicate"
        assert post(f"{url}/deep/down/other", event(1))[0] == 404


def test_alone_it_handles_its_inbox_and_resumes_after_a_restart(tmp_path: Path) -> None:
    ran: list[str] = []

    def make(broken: bool) -> Semel:
        app = Semel(f"sqlite:///{tmp_path}/semel.db")

        @app.on("**", name="noted", max_attempts=50)
        async def noted(event: Any, ctx: Any) -> None:
            if broken:
                raise RuntimeError("not yet")
            ran.append(event.id)

        return app

    with served(make(broken=True).asgi(mode="inbox")) as url:
        for number in range(5):
            assert post(f"{url}/events", event(number))[1]["status"] == "accepted"
    assert ran == []
    with served(make(broken=False).asgi(mode="inbox")):
        deadline = time.monotonic() + 60
        while len(ran) < 5:
            assert time.monotonic() < deadline, ran
            time.sleep(0.05)
    assert sorted(ran) == [f"e-{number}" for number in range(5)]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"mode": "inbox"}, "mode='inbox'"),
        ({"mode": "later"}, "mode='later'.*'inbox'.*'inline'"),
        ({"path": "events"}, "path 'events'.*/"),
        ({"verify": "genesys"}, "secret"),
        ({"verify": "guess", "secrets": ["x"]}, "guess"),
        ({"verify": "header", "secrets": ["env:SECRET"]}, "secrets="),
    ],
)
def test_an_option_that_cannot_work_is_refused_at_once_and_named(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        Semel("memory://").asgi(**options)


def test_a_path_that_is_not_there_names_the_one_that_is() -> None:
    app = Semel("memory://")
    mounted = Starlette(routes=[Mount("/hooks", app.asgi(path="/genesys", mode="inline"))])
    with served(mounted) as url:
        status, problem = post(f"{url}/hooks/events", event(1))
    assert status == 404
    assert "/genesys" in problem["detail"]
    assert "/events" not in problem["detail"]
    assert "openapi" not in problem["detail"]


@pytest.mark.parametrize("sent", [b"", b'{"id":'], ids=["no body", "half a body"])
def test_a_body_that_does_not_arrive_in_time_is_answered_408(sent: bytes) -> None:
    """The server around a mounted application may have no time limit of its own."""
    application = Semel("memory://").asgi()

    async def run() -> list[dict[str, Any]]:
        application._start_on_this_loop()._read_timeout_s = 0.05
        pieces = [{"type": "http.request", "body": sent, "more_body": True}] if sent else []
        responses: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            if not pieces:
                await asyncio.Event().wait()
            return pieces.pop()

        async def send(message: dict[str, Any]) -> None:
            responses.append(message)

        scope = {"type": "http", "method": "POST", "path": "/events", "headers": [(b"content-length", b"40")]}
        async with asyncio.timeout(20):
            await application(scope, receive, send)
        return responses

    assert asyncio.run(run())[0]["status"] == 408
