"""docs/notify.md matches the commands."""

from __future__ import annotations

from typing import get_args

from tests.cli.command import ROOT, semel

from semel.cli import describe
from semel.cli.notification_decisions import AGREES, DECIDABLE
from semel.values.delivery_state import STATES, DeliveryState, decided
from semel.values.outbox import SentStatus

PAGE = (ROOT / "docs" / "notify.md").read_text("utf-8")


def test_every_state_and_answer_is_described_and_in_the_page() -> None:
    assert set(describe.MEANING) == set(STATES) <= set(describe.STYLES)
    assert set(describe.ANSWERS) == set(get_args(SentStatus))
    assert [state for state, told in describe.MEANING.items() if f"| `{state}` | {told} |" not in PAGE] == []
    assert [answer for answer in describe.ANSWERS if f"| `{answer}` |" not in PAGE] == []


def test_the_page_names_every_command() -> None:
    listed = semel("notify", "--help").out
    for command in ("send", "list", "show", "status", "resolve", "resend", "cancel", "erase"):
        assert f"│ {command} " in listed
        assert f"$ semel notify {command}" in PAGE


def test_the_decidable_states_are_those_of_the_outbox() -> None:
    """The command knows beforehand what it may ask for, so it must not know it differently."""
    for says, states in DECIDABLE.items():
        taken = [state for state in STATES if decided(DeliveryState(state=state), says, "", True, 0) is not None]  # type: ignore[arg-type]
        assert set(taken) == set(states)
        assert not set(AGREES[says]) & set(states), "what can still be decided is not over"


def test_the_window_of_a_guard_is_written_in_words() -> None:
    told = {86_400: "24 hours", 7 * 86_400: "7 days", 5_400: "90 minutes", 90: "90 seconds", 0.5: "0.5 seconds"}
    assert {seconds: describe.window(seconds) for seconds in told} == told
