"""A provider that calls back, who signs it, and the service that hears it: three servers on real sockets."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit
from zlib import crc32

import msgspec
import pytest
from tests.outbox.callbacks import hearing_process
from tests.outbox.callbacks.hearing_process import Plan
from tests.outbox.callbacks.signing import Signed, signed
from tests.service.verification.sns_sender import certificate

import semel
from semel import wiring
from semel.core.resend import needed_outbox
from semel.ports import StoredOutbox
from semel.testing.child_processes import start_child
from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Notification
from semel.values.outbox import NotificationView

ROOT = Path(__file__).parents[3]
SOON_S = 60.0
LOOK_S = 0.05
T = TypeVar("T")


class SmtpReply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Notary:
    """Stands where a provider's own signing does: the simulator calls it, and it calls the service. It can keep what it
    has signed to itself."""

    def __init__(self) -> None:
        self.port = 0
        self.passes_on = True
        self.kept: list[tuple[str, Signed]] = []
        notary = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:  # the standard library's name
                body = self.rfile.read(int(self.headers["Content-Length"]))
                parts = urlsplit(self.path)
                name = parts.path.strip("/")
                callback = signed(name, self.headers["Content-Type"], body, parts.query)
                notary.kept.append((name, callback))
                self.send_response(notary.post(name, callback).status if notary.passes_on else 200)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Nothing: tests are quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    def post(self, name: str, callback: Signed) -> SmtpReply:
        """To the service. Raises OSError or HTTPException when it is not there."""
        query = f"?{callback.query}" if callback.query else ""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=SOON_S)
        try:
            connection.request("POST", f"/callbacks/{name}{query}", callback.body, dict(callback.headers))
            answer = connection.getresponse()
            return SmtpReply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Stage:
    def __init__(self, folder: Path, simulator: SimulatorProcess, ledger: str = "") -> None:
        self.simulator = simulator
        self.notary = Notary()
        self.path = folder / "semel.db"
        self.armed = folder / "armed"
        self._said = folder / "said"
        self._ledger = ledger or f"sqlite:///{self.path}"
        pem = folder / "sns.pem"
        pem.write_bytes(certificate(begins_s=time.time() - 86_400, ends_s=time.time() + 86_400))
        self._plan = Plan(self._ledger, simulator.url("").rstrip("/"), self.notary.url, str(pem), str(self.armed))
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        found_at = [str(Path(semel.__file__).parent.parent), str(ROOT), os.environ.get("PYTHONPATH", "")]
        with self._said.open("ab") as said:
            self.process = start_child(
                [sys.executable, hearing_process.__file__, msgspec.json.encode(self._plan).decode()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, found_at))},
                stdout=subprocess.PIPE,
                stderr=said,
                text=True,
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.strip(), self._said.read_text()[-4000:]
        self.notary.port = int(line)  # it listens already, and answers when it has begun

    def close(self) -> None:
        self.end()
        self.notary.close()

    def end(self) -> None:
        if self.process is not None:
            self.process.kill()
            with self.process:
                self.process.wait(SOON_S)
            self.process = None

    # ------------------------------------------------------------------------------------------------------ the outbox

    def ask(self, question: Callable[[StoredOutbox], Coroutine[Any, Any, T]]) -> T:
        """It is opened for each question: the service beside it may be killed."""

        async def story() -> T:
            ledger = wiring.open_ledger(self._ledger)
            try:
                return await question(needed_outbox(ledger))
            finally:
                await ledger.close()

        return asyncio.run(story())

    def add(self, *notifications: Notification) -> None:
        self.ask(lambda outbox: outbox.add(notifications))

    def shown(self, one: Notification) -> NotificationView:
        shown = self.ask(lambda outbox: outbox.show(one.id))
        assert shown is not None
        return shown

    def until(self, one: Notification, true: Callable[[NotificationView], bool]) -> NotificationView:
        ends = time.monotonic() + SOON_S
        while not true(now := self.shown(one)):
            if time.monotonic() > ends:
                pytest.fail(f"waited {SOON_S:g} s: {now}; it said: {self._said.read_text()[-4000:]}")
            time.sleep(LOOK_S)
        return now

    def called(self, one: Notification, count: int) -> list[int]:
        """What the provider was answered about this message, as soon as it has called so often."""
        ends = time.monotonic() + SOON_S
        while True:
            references = {got.reference for got in self.simulator.phone(one.recipient)}
            answers = [call.status for call in self.simulator.called() if call.reference in references]
            if len(answers) >= count or time.monotonic() > ends:
                return answers
            time.sleep(LOOK_S)

    def kept(self, one: Notification, count: int) -> list[Signed]:
        """The callbacks about this message that the notary has signed."""
        ends = time.monotonic() + SOON_S
        while time.monotonic() < ends:
            mine = [
                callback
                for _, callback in list(self.notary.kept)
                if one.id.hex() in callback.query or one.id.hex().encode() in callback.body
            ]
            if len(mine) >= count:
                return mine
            time.sleep(LOOK_S)
        return []

    def words(self, one: Notification) -> list[str]:
        """What its provider has said of it, as evidence has it."""
        return sorted(line.outcome for line in self.shown(one).attempts if line.evidence.startswith("callback"))


MAILS = ("sendgrid", "ses", "resend", "brevo")


def message(name: str, key: str) -> Notification:
    """Something that this provider can send, to a recipient of its own."""
    number = crc32(f"{name} {key}".encode())
    if name in MAILS:
        to: dict[str, Any] = {"recipient": f"r{number}@example.test", "channel": "email", "subject": "On its way"}
    else:
        to = {"recipient": f"+49{number}", "channel": "sms"}
    return Notification(key=f"{name} {key}", kind="k", body=f"Hello {number}", provider=name, **to)
