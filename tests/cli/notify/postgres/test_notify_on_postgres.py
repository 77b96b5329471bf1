"""`semel notify` over PostgreSQL: what it asks of an outbox, this one answers as SQLite's does."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from tests.cli.notify.outboxes import REASON, add, document, in_box, notification

from semel.ports import StoredOutbox
from semel.testing import harness
from semel.values import delivery_state as states
from semel.values.delivery_state import Answer, Contract, Refused, Unknown
from semel.values.outbox import Lane, Record

LEASE_MS = 3_600_000


@pytest.fixture
def own() -> str:
    """The name of a provider, and of a kind, that nobody else here uses."""
    return f"own-{uuid4().hex[:12]}"


def relay(url: str, name: str, answer: Answer, **terms: Any) -> list[str]:
    async def work(box: StoredOutbox) -> list[str]:
        contract = Contract(name=name, channels=("sms",), **terms)
        taken = await box.take({name: Lane(1_000, name)}, LEASE_MS)
        await box.cross([harness.crossing(one) for one in taken])
        afters = [
            states.answered(
                states.crossed(one.delivery_state, one.taken_ms), answer, contract, one.taken_ms, lambda: 0.5
            )
            for one in taken
        ]
        outcome: Any = "refused" if isinstance(answer, Refused) else "unknown"
        records = [Record(one, after, outcome, "said so") for one, after in zip(taken, afters, strict=True)]
        assert all(await box.record(records))
        return [one.id.hex() for one in taken]

    return in_box(url, work)


def test_a_doubt_tells_which_way_out_comes_next_and_when(url: str, own: str) -> None:
    (id,) = add(url, notification("a", kind=own, provider=own, policy="give_up"))
    assert document(url, "show", id)["next"]["exit"] == "send"
    assert relay(url, own, Unknown("reset"), looks_up=True, settle_s=3_600.0) == [id]
    found = document(url, "show", id)
    next = found["next"]
    assert (next["exit"], next["at"], next["policy"], next["under_way"]) == ("look_up", found["due"], "give_up", False)
    assert next["at"] < next["policy_at"]


def test_many_are_sent_again_once_and_what_waits_is_found_by_its_provider(url: str, own: str) -> None:
    add(url, *(notification(f"n-{number}", kind=own, provider=own) for number in range(30)))
    assert len(relay(url, own, Refused("503", final=True))) == 30
    again = ("resend", "--provider", own, "--matching", "503", "--yes", *REASON)
    assert document(url, *again)["decided"] == 30
    report = document(url, *again)
    assert (report["chosen"], report["decided"], report["already_decided"]) == (30, 0, 30)
    assert len(document(url, "list", "--state", "pending", "--provider", own)) == 30
    assert len(document(url, "list", "--provider", own)) == 60
    assert document(url, "cancel", "--provider", own, "--yes", *REASON)["decided"] == 30
    assert document(url, "list", "--state", "pending", "--kind", own) == []
