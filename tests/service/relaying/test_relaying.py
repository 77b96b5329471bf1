"""The relay inside `semel run`, and `semel relay` alone: from an event, or a call, to the customer's phone, once."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import ROOT, service
from tests.support.servers.process import free_port

from semel import Notification, Semel
from semel.testing.simulator import SimulatorProcess
from semel.testing.simulator.twilio import ACCOUNT, SECRET
from semel.values.outbox import NotificationQuery, NotificationView

APP = "tests.service.relaying.notifying_app:app"
SOON_S = 60.0
TO = "+49170{:07d}"


@pytest.fixture(scope="module")
def provider() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


def settings(simulator: SimulatorProcess, *, more: str = "", timeout_s: float = 5.0, relay: bool = True) -> str:
    return f"""
{more}
[providers.sms]
kind = "twilio"
account = "{ACCOUNT}"
token = "env:TWILIO_TOKEN"
sender = "+4930"
url = "{simulator.url("twilio")}"
allow = ["127.0.0.1"]
timeout = {timeout_s}
settle = 1

[outbox]
relay = {str(relay).lower()}
"""


ENV = {"TWILIO_TOKEN": SECRET}


def until(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    ends = time.monotonic() + SOON_S
    while not holds():
        if time.monotonic() > ends:
            pytest.fail(f"not within {SOON_S:g} s: {otherwise()}")
        time.sleep(0.05)


def in_outbox(folder: Path, ask: Callable[[Semel], Any]) -> Any:
    async def story() -> Any:
        async with Semel(f"sqlite:///{folder}/semel.db") as app:
            return await ask(app)

    return asyncio.run(story())


def add(folder: Path, *numbers: str) -> None:
    said = [Notification(key=one, kind="k", recipient=one, channel="sms", body="Hello") for one in numbers]
    in_outbox(folder, lambda app: app.outbox.add(said))


def shown(folder: Path) -> list[NotificationView]:
    found: list[NotificationView] = in_outbox(folder, lambda app: app.outbox.find(NotificationQuery()))
    return found


def got(simulator: SimulatorProcess, numbers: Sequence[str]) -> list[int]:
    return [len(simulator.phone(number)) for number in numbers]


# ------------------------------------------------------------------------------------------------------- semel run


def test_an_event_and_its_copies_are_one_message(tmp_path: Path, provider: SimulatorProcess) -> None:
    to = TO.format(1)
    body = {"id": "e-1", "type": "interaction.created", "to": to}
    with service(tmp_path, settings(provider), APP, env=ENV) as running:
        for _ in range(3):
            assert running.post("/events", body).status == 200
        until(lambda: got(provider, [to]) == [1], lambda: running.text)
        assert running.post("/events", body).status == 200

        def counted() -> bool:
            page = running.get("/metrics").body.decode()
            return 'semel_notifications_total{answer="accepted",provider="sms"} 1.0' in page

        until(counted, lambda: running.get("/metrics").body.decode())
        page = running.get("/metrics").body.decode()
        assert 'semel_outbox_depth{delivery_state="pending",provider="sms"} 0.0' in page
        assert 'semel_provider_seconds_count{provider="sms"} 1.0' in page
        assert 'semel_outbox_oldest_seconds{provider="sms"} 0.0' in page
        running.terminate()
        assert running.wait() == 0
    assert got(provider, [to]) == [1]
    (one,) = shown(tmp_path)
    assert (one.state, one.notification.recipient, one.provider) == ("accepted", to, "sms")


def test_sends_in_flight_finish_before_the_exit(tmp_path: Path, provider: SimulatorProcess) -> None:
    to = TO.format(2)
    with service(tmp_path, settings(provider, timeout_s=3), APP, env=ENV) as running:
        provider.lie("accept then stall", "twilio")  # no answer comes: in the end that is what is recorded
        add(tmp_path, to)
        until(lambda: got(provider, [to]) == [1], lambda: running.text)
        running.terminate()
        assert running.wait() == 0
    (one,) = shown(tmp_path)
    assert (one.state, "3 s" in one.reason) == ("uncertain", True)


def test_with_relay_false_only_the_command_sends(tmp_path: Path, provider: SimulatorProcess) -> None:
    to = TO.format(3)
    with service(tmp_path, settings(provider, relay=False), APP, env=ENV) as running:
        add(tmp_path, to)
        time.sleep(1.0)
        assert got(provider, [to]) == [0]
        ended = command(tmp_path, "relay", "--once", "--json")
        assert ended.returncode == 0, ended.stderr
        assert json.loads(ended.stdout) == {
            "sent": [{"provider": "sms", "outcome": "accepted", "count": 1}],
            "left": [],
        }
        assert got(provider, [to]) == [1]
        assert running.get("/healthz").status == 200


def test_notifications_without_a_provider_are_logged(tmp_path: Path, provider: SimulatorProcess) -> None:
    mail = Notification(key="k", kind="k", recipient="a@example.com", channel="email", subject="s", body="Hello")
    in_outbox(tmp_path, lambda app: app.outbox.add([mail]))
    with service(tmp_path, settings(provider), APP, env=ENV) as running:
        running.until(
            lambda: '"outbox_unserved","notifications":1,"state":"pending","channel":"email"' in "\n".join(running.log),
            "nothing was said",
        )


def test_only_a_provider_that_accepts_nothing_is_logged(tmp_path: Path, provider: SimulatorProcess) -> None:
    numbers = [TO.format(820 + number) for number in range(5)]
    with service(tmp_path, settings(provider), APP, env={"TWILIO_TOKEN": "changed-long-ago"}) as running:
        add(tmp_path, *numbers)
        said = '"provider_unavailable","provider":"sms"'
        running.until(lambda: said in "\n".join(running.log), "nothing was said")
        log = "\n".join(running.log)
    assert not any(number[1:] in log for number in numbers)
    assert "changed-long-ago" not in log
    assert sum(got(provider, numbers)) == 0


def test_a_repeated_callback_still_reports_delivered(tmp_path: Path, provider: SimulatorProcess) -> None:
    to = TO.format(7)
    port = free_port()
    told_to = f'callback = "http://127.0.0.1:{port}/callbacks/sms"\n'
    door = '[providers.sms.callbacks]\npath = "/callbacks/sms"\n'
    text = settings(provider).replace("[outbox]", f"{told_to}{door}[outbox]")
    provider.callbacks("twilio", "twice")
    try:
        with service(tmp_path, text, APP, "--port", str(port), env=ENV) as running:
            add(tmp_path, to)
            until(lambda: [one.state for one in shown(tmp_path)] == ["delivered"], lambda: running.text)
            page = running.get("/metrics").body.decode()
            assert 'semel_http_answers_total{endpoint="/callbacks/sms",status="200"}' in page
    finally:
        provider.tell_the_truth()
    assert got(provider, [to]) == [1]
    (one,) = in_outbox(tmp_path, lambda app: app.outbox.find(NotificationQuery()))
    whole: NotificationView = in_outbox(tmp_path, lambda app: app.outbox.show(bytes.fromhex(one.id)))
    words = [attempt.outcome for attempt in whole.attempts]
    assert sorted(words) == ["accepted", "accepted", "delivered"], "its answer, and each word of its callbacks once"


# ---------------------------------------------------------------------------------------------------- semel relay


def command(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "semel", *words],
        cwd=folder,
        env={**os.environ, **ENV, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SOON_S,
        check=False,
    )


@contextmanager
def relaying(folder: Path) -> Iterator[subprocess.Popen[str]]:
    log = (folder / "relay.log").open("a")
    with (
        log,
        subprocess.Popen(
            [sys.executable, "-m", "semel", "relay"],
            cwd=folder,
            env={**os.environ, **ENV},
            stdout=log,
            stderr=log,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


def written(folder: Path, text: str) -> None:
    (folder / "semel.toml").write_text(text, "utf-8")


def test_two_relays_share_an_outbox_and_one_is_killed(tmp_path: Path, provider: SimulatorProcess) -> None:
    numbers = [TO.format(100 + number) for number in range(60)]
    written(tmp_path, settings(provider))
    add(tmp_path, *numbers[:30])
    with relaying(tmp_path) as first, relaying(tmp_path):
        until(lambda: sum(got(provider, numbers)) >= 5, lambda: (tmp_path / "relay.log").read_text())
        add(tmp_path, *numbers[30:])
        first.kill()

        def over() -> bool:
            return all(one.state in ("accepted", "uncertain") for one in shown(tmp_path))

        until(over, lambda: (tmp_path / "relay.log").read_text())
    assert max(got(provider, numbers)) == 1
    for one in shown(tmp_path):
        if one.state == "accepted":
            assert got(provider, [one.notification.recipient]) == [1]


def test_a_relay_that_is_stopped_finishes_its_sends(tmp_path: Path, provider: SimulatorProcess) -> None:
    to = TO.format(4)
    written(tmp_path, settings(provider, timeout_s=3))
    provider.lie("accept then stall", "twilio")
    add(tmp_path, to)
    with relaying(tmp_path) as process:
        until(lambda: got(provider, [to]) == [1], lambda: (tmp_path / "relay.log").read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(SOON_S) == 0, (tmp_path / "relay.log").read_text()
    (one,) = shown(tmp_path)
    assert (one.state, "3 s" in one.reason) == ("uncertain", True)


def test_once_that_is_stopped_finishes_its_sends_and_takes_no_more(tmp_path: Path, provider: SimulatorProcess) -> None:
    numbers = [TO.format(800 + number) for number in range(4)]
    written(tmp_path, settings(provider, timeout_s=3).replace("timeout =", "concurrency = 1\ntimeout ="))
    provider.lie("accept then stall", "twilio")
    add(tmp_path, *numbers)
    with subprocess.Popen(
        [sys.executable, "-m", "semel", "relay", "--once", "--json"],
        cwd=tmp_path,
        env={**os.environ, **ENV},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: sum(got(provider, numbers)) == 1, lambda: "nothing was sent")
        process.send_signal(signal.SIGTERM)
        told, _ = process.communicate(timeout=SOON_S)
    assert process.returncode == 128 + signal.SIGTERM
    assert json.loads(told)["sent"] == [{"provider": "sms", "outcome": "unknown", "count": 1}]
    assert sorted(one.state for one in shown(tmp_path)) == ["pending", "pending", "pending", "uncertain"]


def test_notifications_of_a_renamed_provider_are_logged(tmp_path: Path, provider: SimulatorProcess) -> None:
    (lost, sent) = TO.format(810), TO.format(811)
    written(tmp_path, settings(provider))
    provider.lie("accept then drop", "twilio")
    add(tmp_path, lost)
    assert command(tmp_path, "relay", "--once").returncode == 0
    named = Notification(key="k", kind="k", recipient=sent, channel="sms", body="Hello", provider="sms")
    in_outbox(tmp_path, lambda app: app.outbox.add([named]))
    renamed = settings(provider).replace("[providers.sms]", "[providers.other]")
    written(tmp_path, renamed)
    told = command(tmp_path, "relay", "--once").stdout
    assert re.search(r"^1 .*waiting.*\bsms\b", told, re.MULTILINE), told
    assert re.search(r"^1 .*uncertain.*\bsms\b", told, re.MULTILINE), told
    assert got(provider, [sent]) == [0]
    with service(tmp_path, renamed, APP, env=ENV) as running:
        for state in ("pending", "uncertain"):
            said = f'"outbox_unserved","notifications":1,"state":"{state}","provider":"sms"'
            running.until(lambda said=said: said in "\n".join(running.log), said)


BUG = """
from semel import Semel
from semel.providers.twilio import Twilio

async def send(self, dispatch, request):
    raise KeyError(f"{dispatch.notification.recipient}: {dispatch.notification.body}")

Twilio.send = send
app = Semel("sqlite:///semel.db")
"""


def test_a_bug_in_an_adapter_is_logged_without_customer_data(tmp_path: Path, provider: SimulatorProcess) -> None:
    written(tmp_path, settings(provider))
    (tmp_path / "buggy.py").write_text(BUG, "utf-8")
    add(tmp_path, to := TO.format(830))
    ended = command(tmp_path, "relay", "buggy:app", "--once")
    assert ended.returncode == 0, ended.stderr
    assert "KeyError" in ended.stderr
    assert to[1:] not in ended.stderr + ended.stdout
    assert "Hello" not in ended.stderr + ended.stdout
    (one,) = shown(tmp_path)
    assert (one.state, "KeyError" in one.reason) == ("uncertain", True)
    assert to[1:] not in one.reason


def test_once_reports_the_outcomes_and_the_remaining_notifications(tmp_path: Path, provider: SimulatorProcess) -> None:
    written(tmp_path, settings(provider))
    in_outbox(tmp_path, lambda app: app.outbox.find(NotificationQuery()))  # the file is made
    ended = command(tmp_path, "relay", "--once", "--json")
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"sent": [], "left": []})
    assert len(command(tmp_path, "relay", "--once").stdout.splitlines()) == 1
    mail = Notification(key="k", kind="k", recipient="a@example.com", channel="email", subject="s", body="Hello")
    in_outbox(tmp_path, lambda app: app.outbox.add([mail]))
    add(tmp_path, TO.format(5), TO.format(6))
    provider.lie("accept then drop", "twilio")
    ended = command(tmp_path, "relay", "--once")
    assert ended.returncode == 0, ended.stderr
    lines = [" ".join(line.split()) for line in ended.stdout.splitlines()]
    assert lines[:2] == ["provider accepted unknown", "sms 1 1"]
    uncertain, waiting = sorted(lines[2:])
    assert all(part in uncertain for part in ("1 ", "sms", "`semel notify list --state uncertain`")), uncertain
    assert all(part in waiting for part in ("1 ", "email")), waiting
    assert got(provider, [TO.format(5), TO.format(6)]) == [1, 1]


def test_settings_and_options_that_cannot_work_are_refused_with_exit_code_2(
    tmp_path: Path, provider: SimulatorProcess
) -> None:
    written(tmp_path, "")
    ended = command(tmp_path, "relay", "--once")
    assert (ended.returncode, "[providers." in ended.stderr) == (2, True)
    written(tmp_path, settings(provider))
    ended = command(tmp_path, "relay", "--json")
    assert (ended.returncode, "--json" in ended.stderr, "--once" in ended.stderr) == (2, True, True)
    written(tmp_path, settings(provider) + "identity = 10\n")  # the same call would soon send once more
    ended = command(tmp_path, "relay", "--once")
    assert (ended.returncode, "identity" in ended.stderr, "retention" in ended.stderr) == (2, True, True)
    written(tmp_path, settings(provider, more='ledger = "redis://127.0.0.1:1"'))
    ended = command(tmp_path, "relay", "--once")
    assert (ended.returncode, "outbox" in ended.stderr, "sqlite" in ended.stderr) == (2, True, True)
    written(tmp_path, settings(provider, more='ledger = "sqlite:////nowhere/at/all/semel.db"'))
    ended = command(tmp_path, "relay", "--once")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
