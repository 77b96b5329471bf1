"""A second signal: what is being sent is not waited for, and is called by its name at once; the rest is left as it was.

A terminal that is closed is a signal like any other, unless nohup says that it is none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.service.relaying.test_relaying import ENV, SOON_S, TO, add, got, settings, shown, until, written

from semel.core.provider_calls import CUT_OFF
from semel.testing.simulator import SimulatorProcess

DRAIN_S = 3_600  # nobody waits for that
COMMANDS = [("relay",), ("relay", "--once"), ("run", "--port", "0"), ("run", "--port", "0", "--workers", "2")]


@pytest.fixture(scope="module")
def provider() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as simulator:
        yield simulator


@contextmanager
def sending(folder: Path, provider: SimulatorProcess, command: tuple[str, ...], *to: str) -> Iterator[Running]:
    """A process that is sending the first of these, to a provider that has it and does not answer."""
    more = f"[server]\ndrain = {DRAIN_S}\n"
    text = settings(provider, more=more, timeout_s=600).replace("timeout =", "concurrency = 1\ntimeout =")
    written(folder, text)
    add(folder, *to)
    provider.lie("accept then stall", "twilio")
    with Running(folder, command) as process:
        until(lambda: sum(got(provider, to)) == 1, process.said)
        yield process


class Running:
    def __init__(self, folder: Path, command: tuple[str, ...], inside: tuple[str, ...] = ()) -> None:
        self._log = (folder / "log").open("w+")
        inherited = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        self.process = subprocess.Popen(
            [*inside, sys.executable, "-m", "semel", *command],
            cwd=folder,
            env={**os.environ, **ENV},
            stdout=self._log,
            stderr=self._log,
        )
        signal.signal(signal.SIGHUP, inherited)

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(SOON_S)
        self._log.close()

    def said(self) -> str:
        return Path(self._log.name).read_text()

    def tell(self, sign: signal.Signals, until_said: str = "drain_started") -> None:
        self.process.send_signal(sign)
        until(lambda: until_said in self.said(), self.said)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_second_signal_ends_sends_in_flight_and_records_them(
    tmp_path: Path, provider: SimulatorProcess, command: tuple[str, ...]
) -> None:
    many = 1 if "--workers" in command else 3  # each of them has room for one
    numbers = [TO.format(900 + 10 * COMMANDS.index(command) + number) for number in range(many)]
    with sending(tmp_path, provider, command, *numbers) as running:
        running.tell(signal.SIGTERM)
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(SOON_S) == 128 + signal.SIGTERM, running.said()
        assert "relay_sends_cut_off" in running.said()
    found = sorted((one.state, one.reason) for one in shown(tmp_path))
    cut = ("uncertain", CUT_OFF)
    assert found == [*[("pending", "")] * (many - 1), cut]
    assert sum(got(provider, numbers)) == 1


@pytest.mark.parametrize("command", [("relay",), ("run", "--port", "0")], ids=" ".join)
def test_a_terminal_that_is_closed_lets_it_end(
    tmp_path: Path, provider: SimulatorProcess, command: tuple[str, ...]
) -> None:
    written(tmp_path, settings(provider))
    with Running(tmp_path, command) as running:
        until(lambda: "relay_started" in running.said() or "Semel" in running.said(), running.said)
        add(tmp_path, to := TO.format(950 + len(command)))
        until(lambda: got(provider, [to]) == [1], running.said)
        running.tell(signal.SIGHUP)
        assert running.process.wait(SOON_S) == 0, running.said()


def test_with_nohup_a_terminal_that_is_closed_does_not_end_the_relay(
    tmp_path: Path, provider: SimulatorProcess
) -> None:
    written(tmp_path, settings(provider))
    with Running(tmp_path, ("relay",), inside=("nohup",)) as running:
        until(lambda: "relay_started" in running.said(), running.said)
        running.process.send_signal(signal.SIGHUP)
        time.sleep(0.2)  # it would have landed
        add(tmp_path, to := TO.format(960))
        until(lambda: got(provider, [to]) == [1], running.said)
        running.tell(signal.SIGTERM)
        assert running.process.wait(SOON_S) == 0, running.said()


HANGS = """
import asyncio, logging
from semel.service.server import Ending

async def main():
    ending = Ending(3600.0)
    print("begun", flush=True)
    await ending.told()
    await ending.end(lambda within_s: asyncio.shield(asyncio.Event().wait()))

logging.basicConfig(level=logging.INFO)
asyncio.run(main())
"""


def test_a_process_that_cannot_be_stopped_has_a_deadline() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HANGS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGTERM)
        assert "drain_started" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait(SOON_S) == 128 + signal.SIGINT
        assert "drain_timed_out" in process.stderr.read()
