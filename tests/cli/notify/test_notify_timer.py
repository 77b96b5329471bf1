"""Where `semel relay --once` from a timer is all that runs, customers are forgotten in time too."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.command import semel
from tests.cli.notify.outboxes import NUMBER

from semel.testing.simulator import SimulatorProcess, twilio

SAID = ("--key", "k", "--kind", "shipping", "--to", NUMBER, "--channel", "sms", "--body", "On its way")


def test_relay_once_purges_notifications_past_their_retention(tmp_path: Path) -> None:
    settings = tmp_path / "semel.toml"

    def told(*arguments: str) -> str:
        ended = semel(*arguments, "-c", str(settings), env={"SMS_TOKEN": twilio.SECRET})
        assert ended.code == 0, ended.err
        return ended.out

    with SimulatorProcess() as simulator:
        settings.write_text(
            f'''
            ledger = "sqlite:///{tmp_path}/semel.db"
            [outbox]
            retention = 0.001
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
        told("notify", "send", *SAID)
        told("relay", "--once")
        told("relay", "--once")
        assert [got.to for got in simulator.phone()] == [NUMBER]
    shown = json.loads(told("notify", "show", "--key", "k", "--json"))
    assert (shown["state"], shown["erased"]) == ("accepted", True)
