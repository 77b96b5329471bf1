"""`semel dead show`: the event, each attempt, every decision; and nothing foreign reaches the terminal as it is."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import semel, started
from tests.cli.ledgers import url_of
from tests.wording import lacks

from semel.ledgers.sqlite import SqliteLedger
from semel.testing.harness import FakeClock
from semel.values.claim import Claim, DeadLetter, Granted, Settlement
from semel.values.outcome import Ending, Reject, Retry

KEY = "0123456789abcdef" * 2
EVENT = (
    b'{"version":"0","id":"d-1","detail-type":"v2.detail.events.conversation.{id}.customer.end",'
    b'"source":"aws.partner/genesys.com/cloud/org-7/bus","account":"1","time":"2026-03-19T22:00:00Z","region":"r",'
    b'"resources":[],"detail":{"topicName":"v2.detail.events.conversation.c-9.customer.end",'
    b'"eventBody":{"eventTime":1773957600000,"conversationId":"c-9","participantId":"p-1","total":12.50}}}'
)
VANISHES = "vanishes"


class Life:
    """One key whose attempts come to what a test wants."""

    def __init__(self, folder: Path) -> None:
        self.url = url_of(folder)
        self._clock = FakeClock()
        self._path = str(folder / "semel.db")
        self._claim = Claim(bytes.fromhex(KEY), "to-crm", "customer.end c-9", 1_000, 400 * 86_400_000, tenant="acme")

    def attempts(self, *endings: Ending | str, event: bytes = EVENT) -> Life:
        asyncio.run(self._live(endings, event))
        return self

    async def _live(self, endings: tuple[Ending | str, ...], event: bytes) -> None:
        ledger = SqliteLedger(self._path, synchronous="normal", clock=self._clock)
        for ending in endings:
            (verdict,) = await ledger.claim([self._claim])
            assert isinstance(verdict, Granted)
            self._clock.now_ms += 60_000  # a vanished one's lease is over by then
            if isinstance(ending, str):
                continue
            dead_letter = DeadLetter(event, verdict.attempt) if isinstance(ending, Reject) else None
            assert await ledger.settle([Settlement(verdict.lease, ending, dead_letter)]) == [True]
        await ledger.close()

    def show(self, *options: str) -> Any:
        ended = semel("dead", "show", KEY, *options, "--ledger", self.url)
        assert ended.code == 0, ended.err
        return ended


def again(reason: str) -> Retry:
    return Retry(after=0, reason=reason)


def test_each_attempt_is_shown_with_its_time_and_its_error(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(again("the CRM answered 503"), VANISHES, again("timed out"), Reject("no customer"))
    out = life.show().out
    told = out[out.index("\nattempts\n") :].splitlines()[2:6]
    assert lacks(told[0], "attempt 1 2025-06-15 15:07:40 UTC CRM 503") == []
    assert lacks(told[1], "attempt 2 process ledger") == []
    assert lacks(told[2], "attempt 3 2025-06-15 15:09:40 UTC timed out") == []
    assert lacks(told[3], "attempt 4 2025-06-15 15:10:40 UTC no customer") == []
    attempt_log = life.show("--json").json["attempt_log"]
    assert [(one["attempt"], one["reason"]) for one in attempt_log] == [
        (1, "the CRM answered 503"),
        (3, "timed out"),
        (4, "no customer"),
    ]
    assert attempt_log[0]["at"] == "2025-06-15T15:07:40.000Z"


def test_dropped_attempts_are_not_shown_as_crashed(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(*[again(f"failure {n}") for n in range(1, 31)], VANISHES, VANISHES, Reject("enough"))
    out = life.show().out
    assert "attempt 1, " in out
    (not_kept,) = [line for line in out.splitlines() if re.match("attempts 2 to 1[0-9]: ", line)]
    (vanished,) = [line for line in out.splitlines() if line.startswith("attempts 31 to 32: ")]
    assert "process" not in not_kept
    assert "process" in vanished
    assert "attempt 33, " in out


def test_the_event_is_shown_with_its_fields_and_indented(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(Reject("unknown customer"))
    out = life.show().out
    facts = life.show("--json").json["decoded"]
    assert facts["type"] == "v2.detail.events.conversation.{id}.customer.end"
    assert (facts["subject"], facts["time"], facts["tenant"]) == ("c-9", "2026-03-19T22:00:00Z", "acme")
    assert facts["origin"]
    assert facts["shape"]
    for value in facts.values():
        assert value in out
    assert '"conversationId": "c-9",\n' in out
    assert "\nattempts\n" not in out, "of a single one the reason tells"


def test_raw_is_the_event_byte_for_byte(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(Reject("no"))
    process = started("dead", "show", KEY[:8], "--raw", "--ledger", life.url, stdout=subprocess.PIPE)
    assert process.communicate(timeout=60)[0] == EVENT.decode()
    assert process.returncode == 0


def test_raw_does_not_write_to_a_terminal(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(Reject("no"), event=b'{"id":"1","type":"\x1b[2J"}')
    ours, theirs = pty.openpty()
    try:
        process = started("dead", "show", KEY, "--raw", "--ledger", life.url, stdout=theirs, stderr=subprocess.PIPE)
        _, err = process.communicate(timeout=60)
        os.set_blocking(ours, False)
        with pytest.raises(BlockingIOError):
            os.read(ours, 100)
    finally:
        os.close(ours)
        os.close(theirs)
    assert process.returncode == 2
    assert "terminal" in err


def test_raw_is_refused_for_an_event_that_is_not_stored(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(again("later"))
    ended = semel("events", "show", KEY, "--raw", "--ledger", life.url)
    assert ended.code == 2
    assert lacks(ended.err, f"{KEY} not stored") == []


@pytest.mark.parametrize(
    "event",
    [b"not json", b'{"any":"thing"}', b"\xff\xfe", b"[" * 100_000, b'{"id":"1","type":"t","createdTime":1e300}'],
)
def test_an_event_that_cannot_be_decoded_is_shown_nevertheless(event: bytes, tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(Reject("no event"), event=event)
    assert "no event" in life.show().out
    assert life.show("--json").json["state"] == "dead"


def test_the_audit_trail_has_operator_time_and_reason(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(again("503"), Reject("unknown customer"))
    ended = semel("dead", "replay", KEY, "--reason", "the CRM is fixed", "--by", "anna", "--ledger", life.url)
    assert ended.code == 0
    out = life.show().out
    assert "generation 1: replayed" in out
    assert "    attempt 1, 2025-06-15 15:07:40 UTC: 503\n" in out
    assert lacks(out, "anna fixed") == []
    (first,) = [entry for entry in life.show("--json").json["history"] if entry["state"] == "replayed"]
    assert lacks(first["decision"], "anna UTC fixed") == []
    assert [one["reason"] for one in first["attempt_log"]] == ["503", "unknown customer"]


HOSTILE = "\x1b]0;owned\x07\x1b[2J\r[bold red]\u202e[/]\x9b31m\n$(reboot) [link=file:///etc/passwd]x[/link]\x00\u2028"


def test_control_characters_are_escaped_everywhere(tmp_path: Path) -> None:
    """Escape sequences, markup, line ends and writing that turns around, in a reason, an attempt and a body."""
    event = json.dumps({"id": "1", "type": HOSTILE, "data": HOSTILE}, ensure_ascii=False).encode()
    life = Life(tmp_path).attempts(again(HOSTILE), Reject(HOSTILE), event=event)
    shown = [
        life.show().out,
        *(semel("dead", "list", *wide, "--ledger", life.url).out for wide in ((), ("--wide",))),
        semel("dead", "replay", "--all", "--dry-run", "--ledger", life.url).out,
        life.show("--json").out,
        semel("dead", "list", "--json", "--ledger", life.url).out,
    ]
    for out in shown:
        assert "owned" in out
        assert [char for char in out if not char.isprintable() and char != "\n"] == []
    assert "[bold red]" in shown[0], "markup is a text like any other"
    assert life.show("--json").json["reason"].startswith("\x1b]0;owned"), "and a program gets it as it is"


def test_a_key_with_control_characters_is_shown_as_text(tmp_path: Path) -> None:
    life = Life(tmp_path).attempts(Reject("no"))
    for typed in ("\x1b[2J", "012", "xyz0123", KEY + "00", "", "0123 4567", "../../etc"):
        for command in (("show",), ("replay", "--reason", "x", "--yes"), ("discard", "--reason", "x", "--yes")):
            ended = semel("dead", *command, typed, "--ledger", life.url)
            assert ended.code == 2
            assert lacks(ended.err, "32 hexadecimal") == []
            assert "\x1b" not in ended.err
    upper = semel("dead", "show", f" {KEY[:12].upper()}… ", "--ledger", life.url)
    assert upper.code == 0, "as it is copied from a list"
