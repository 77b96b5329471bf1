"""What docs/callbacks.md tells a newcomer to try is tried as it stands: a service, a provider that signs, a forger."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest
from tests.service.running import Running, service
from tests.support.servers.process import free_port

from semel import Notification, Semel
from semel.testing.simulator import SimulatorProcess, twilio
from semel.testing.simulator.callbacks import BREVO, HMAC, VONAGE, WHSEC, SigningInput, public_keys, signature
from semel.values.outbox import NotificationView

PAGE = (Path(__file__).parents[3] / "docs" / "callbacks.md").read_text("utf-8")
TRIED = re.compile(r"<!-- tried -->\n```(?:toml|sh)\n(.*?)```", re.DOTALL)
PATH = "/callbacks/sms"
TOKEN = {"TWILIO_TOKEN": twilio.SECRET}
SOON_S = 60.0


def page_with(port: int, simulator: SimulatorProcess) -> list[str]:
    page = PAGE.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace("127.0.0.1:9100", f"127.0.0.1:{simulator.port}")
    return TRIED.findall(page)


def shown(folder: Path, one: Notification) -> NotificationView | None:
    async def story() -> NotificationView | None:
        async with Semel(f"sqlite:///{folder}/semel.db") as app:
            return await app.outbox.show(one.id)

    return asyncio.run(story())


def until(running: Running, one: Notification, state: str) -> NotificationView:
    ends = time.monotonic() + SOON_S
    while (now := shown(running.folder, one)) is None or now.state != state:
        assert time.monotonic() < ends, f"{now}\n{running.text}"
        time.sleep(0.05)
    return now


def send(folder: Path, one: Notification) -> None:
    async def story() -> None:
        async with Semel(f"sqlite:///{folder}/semel.db") as app:
            await app.outbox.add([one])

    asyncio.run(story())


def test_the_callbacks_of_a_newcomer_come_as_the_page_says(tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    port = free_port()
    with SimulatorProcess() as simulator:
        settings, commands = page_with(port, simulator)
        with service(tmp_path, settings, "--port", str(port), env=TOKEN) as running:
            attempt_log = subprocess.run(
                ["sh", "-ec", waiting(commands, f"http://127.0.0.1:{simulator.port}/_simulator/called")],
                cwd=tmp_path,
                env={
                    "HOME": str(tmp_path),
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                },
                capture_output=True,
                text=True,
                timeout=120,
            )
            assert attempt_log.returncode == 0, attempt_log.stderr
            said = ["state     delivered", '"word":"delivered","status":200', '"status":401', "state     delivered"]
            assert re.search(".*".join(said), attempt_log.stdout, re.DOTALL), attempt_log.stdout
            running.until(
                lambda: f'"delivery_unverified","endpoint":"{PATH}"' in running.text, "the log does not say why"
            )
        assert [got.to for got in simulator.phone()] == ["+491701234569"]


def waiting(commands: str, called: str) -> str:
    """As the page says it, on a machine that may be busy: until the second callback was answered."""
    patient = f"for _ in $(seq 300); do curl -s {called} | grep -q delivered && break; sleep 0.2; done"
    assert "sleep 3\n" in commands
    return commands.replace("sleep 3\n", f"{patient}\n")


def callback(one: Notification, reference: str, port: int, *, other: bool) -> tuple[str, bytes, dict[str, str]]:
    """Of good news, as Twilio writes it; `other`: by somebody who does not have its token."""
    form = urlencode({"MessageSid": reference, "MessageStatus": "delivered"}).encode()
    target = f"{PATH}?id={one.id.hex()}"
    proof = signature("twilio", f"http://127.0.0.1:{port}{target}", form, SigningInput(time.time(), other))
    return target, form, {"Content-Type": "application/x-www-form-urlencoded", **proof}


def test_a_forged_callback_moves_nothing_and_the_same_one_signed_does(tmp_path: Path) -> None:
    port = free_port()
    one = Notification(key="o", kind="k", recipient="+491701234560", channel="sms", body="Hello")
    with SimulatorProcess() as simulator:
        settings, _ = page_with(port, simulator)
        with service(tmp_path, settings, "--port", str(port), env=TOKEN) as running:
            send(tmp_path, one)  # the simulator calls nobody back unless it is told to
            before = until(running, one, "accepted")
            (got,) = simulator.phone()
            assert running.post(*callback(one, got.reference, port, other=True)).status == 401
            unsigned = callback(one, got.reference, port, other=True)[:2]
            assert running.post(*unsigned).status == 401
            after = shown(tmp_path, one)
            assert after is not None
            assert (after.state, after.attempts) == ("accepted", before.attempts)
            assert running.post(*callback(one, got.reference, port, other=False)).status == 200
            until(running, one, "delivered")


def test_the_page_tells_the_secrets_of_the_simulator() -> None:
    secrets: dict[str, str] = {"twilio": twilio.SECRET, "resend": WHSEC, "brevo": BREVO, "vonage": VONAGE, "http": HMAC}
    table = PAGE.partition("| kind | secret |\n|---|---|\n")[2].partition("\n\n")[0]
    assert dict(re.findall(r"^\| `([a-z]+)` \| `([^`]+)`", table, re.MULTILINE)) == {**secrets, **public_keys()}
