"""Laws of an outbox about the rest of it: what is done to one notification changes no other, also of the same tenant.

`OutboxBystanders` plants notifications of another tenant around every law. These laws have theirs in the same tenant,
with the same recipient and provider, where a condition that is missing or too wide reaches most.
"""

from __future__ import annotations

import pytest

from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import decide, people, shown
from semel.testing.sender import Sender, keys_of, notification
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, Shown, Suppressed
from semel.values.sending import Accepted, Refused, Resolution, Unknown


def ways(sender: Sender, said: Notification) -> list[str]:
    """The answer to every way of asking about it."""
    ask = people(sender).status
    asked = (
        ask(said.tenant, recipient=said.recipient, kind=said.kind),
        ask(said.tenant, recipient=said.recipient),
        ask(said.tenant, key=said.key),
    )
    return [sender.run(one).told for one in asked]


def uncertain_ones(harness: Harness, ledger: Sender) -> list[Notification]:
    many = [notification(harness, f"uncertain-{number}") for number in range(3)]
    ledger.add(*many)
    for dispatch in ledger.take(harness):
        ledger.send(harness, dispatch, Unknown("timeout"))
    return many


class BystanderLaws(OutboxBinding):
    @pytest.mark.parametrize("says", ["sent", "not_sent", "given_up"])
    def test_a_decision_changes_no_other_notification(self, harness: Harness, ledger: Sender, says: Resolution) -> None:
        uncertain = uncertain_ones(harness, ledger)
        waiting = notification(harness, "waiting")
        ledger.add(waiting)
        decided, *others = uncertain
        before = [shown(ledger, one) for one in (*others, waiting)]
        assert decide(ledger, decided, says) is not None
        assert [shown(ledger, one) for one in (*others, waiting)] == before
        due = ["uncertain-0", "waiting"] if says == "not_sent" else ["waiting"]
        assert sorted(keys_of(ledger.take(harness))) == due, "what is uncertain is not sent again"

    def test_a_suppressed_one_ends_no_other(self, harness: Harness, ledger: Sender) -> None:
        uncertain = uncertain_ones(harness, ledger)
        guarded = [notification(harness, f"guarded-{n}", guard=Guard(window_s=3600)) for n in range(2)]
        free = notification(harness, "free")
        ledger.add(guarded[0])
        ledger.send(harness, ledger.take_one(harness), Accepted())
        ledger.add(guarded[1], free)
        taken = {one.notification.key: one for one in ledger.take(harness)}
        waiting = notification(harness, "waiting")
        ledger.add(waiting)
        others = [*uncertain, waiting, guarded[0]]
        before: list[Shown] = [shown(ledger, one) for one in others]
        assert ledger.cross(taken["guarded-1"], taken["free"]) == [Suppressed(guarded[0].id), Crossed()]
        assert [shown(ledger, one) for one in others] == before
        assert ledger.answer(harness, taken["free"], Accepted("r-1")), "its dispatch is still there"
        assert keys_of(ledger.take(harness)) == ["waiting"]

    def test_every_way_of_asking_gives_one_answer(self, harness: Harness, ledger: Sender) -> None:
        """Of what was given up: whether it may have been sent is known by whether it had left."""
        left = notification(harness, "left", recipient="+4915100000001")
        ledger.add(left)
        ledger.send(harness, ledger.take_one(harness), Unknown("timeout"))
        untried = notification(harness, "untried", recipient="+4915100000002")
        refused = notification(harness, "refused", recipient="+4915100000003")
        ledger.add(untried, refused)
        (dispatch,) = [one for one in ledger.take(harness) if one.notification.key == "refused"]
        ledger.send(harness, dispatch, Refused("no such number", final=True))
        harness.advance(10 * harness.lease_ms)
        for said in (left, untried):
            assert decide(ledger, said, "given_up") == "failed"
        assert ways(ledger, left) == ["unknown"] * 3
        assert ways(ledger, untried) == ["not_sent"] * 3
        assert ways(ledger, refused) == ["not_sent"] * 3
