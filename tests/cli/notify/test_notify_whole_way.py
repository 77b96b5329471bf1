"""From the command line to a customer's phone: send, relay, a provider that lies, a person who decides, relay again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import Ended, semel
from tests.cli.notify.outboxes import NUMBER, REASON

from semel.testing.simulator import SimulatorProcess, twilio

SAID = ("send", "--kind", "shipping", "--to", NUMBER, "--channel", "sms", "--body", "On its way")


@pytest.fixture(scope="module")
def simulator() -> Iterator[SimulatorProcess]:
    with SimulatorProcess() as process:
        yield process


class Office:
    """A folder with settings, and a provider behind them."""

    def __init__(self, folder: Path, simulator: SimulatorProcess) -> None:
        self.simulator = simulator
        self._settings = folder / "semel.toml"
        self._settings.write_text(
            f'''
            ledger = "sqlite:///{folder}/semel.db"
            [providers.sms]
            kind = "twilio"
            account = "{twilio.ACCOUNT}"
            token = "env:SMS_TOKEN"
            sender = "+490"
            url = "{simulator.url("twilio")}"
            allow = ["127.0.0.1"]
            ''',
            "utf-8",
        )

    def semel(self, *arguments: str) -> Ended:
        return semel(*arguments, "-c", str(self._settings), env={"SMS_TOKEN": twilio.SECRET})

    def told(self, *arguments: str) -> Any:
        ended = self.semel("notify", *arguments, "--json")
        assert ended.code == 0, ended.err
        return ended.json

    def relay(self) -> None:
        ended = self.semel("relay", "--once")
        assert ended.code == 0, ended.err

    def got(self, to: str) -> int:
        return len(self.simulator.phone(to))


@pytest.fixture
def office(tmp_path: Path, simulator: SimulatorProcess) -> Office:
    opened = Office(tmp_path, simulator)
    opened.relay()  # which makes the outbox
    return opened


def test_a_message_is_sent_once_however_often_it_is_added(office: Office) -> None:
    for _ in range(3):
        office.told(*SAID, "--key", "o-1")
        office.relay()
    assert office.got(NUMBER) == 1
    assert office.told("status", "--to", NUMBER)["status"] == "sent"
    (attempt,) = office.told("show", "--key", "o-1")["attempts"]
    assert (attempt["number"], attempt["outcome"]) == (1, "accepted")


@pytest.mark.parametrize(("word", "count"), [("--sent", 1), ("--give-up", 1), ("--not-sent", 2)])
def test_an_uncertain_message_is_resolved_by_an_operator(word: str, count: int, office: Office) -> None:
    """The provider took it and said nothing. Whoever says that it was not sent, though it was, doubles it."""
    to = f"+4917000000{len(word):02}"
    office.simulator.lie("accept then drop", "twilio", times=1)
    office.told(*SAID, "--key", "o-2", "--to", to)
    office.relay()
    assert office.got(to) == 1, "the lie landed"
    found = office.told("show", "--key", "o-2")
    assert found["state"] == "uncertain"
    assert office.told("status", "--key", "o-2")["status"] == "unknown"
    assert office.semel("notify", "resolve", found["id"], word, *REASON).code == 0
    office.relay()
    assert office.got(to) == count
    outcomes = [one["outcome"] for one in office.told("show", found["id"])["attempts"]]
    assert outcomes[:2] == ["unknown", word[2:].replace("-", "_").replace("give_up", "given_up")]


def test_a_deliberate_second_message_arrives_once(office: Office) -> None:
    to = "+491700000099"
    id = office.told(*SAID, "--key", "o-3", "--to", to)["id"]
    office.relay()
    for _ in range(2):
        office.told("resend", id, *REASON, "--yes")
        office.relay()
    assert office.got(to) == 2
    assert office.told("show", "--key", "o-3")["generation"] == 2
