"""Laws of what waits: behind others of its order key, and for the rate of its provider."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

from semel.testing.clerk import altered
from semel.testing.harness import Harness
from semel.testing.laws.outbox import OutboxBinding
from semel.testing.laws.outbox_people import decide, shown
from semel.testing.sender import Sender, keys_of, notification, provider, released
from semel.values.outbox import Dispatch, Lane
from semel.values.sending import Accepted, Unknown

MANY = 700  # more than a store looks at in one go


class OrderLaws(OutboxBinding):
    def test_of_one_order_key_only_the_oldest_is_taken(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(
            *[notification(harness, f"n-{number}", order="customer", priority=9 - number) for number in range(3)]
        )
        ledger.add(notification(harness, "free", priority=9))
        first, free = sorted(ledger.take(harness), key=lambda one: one.notification.key, reverse=True)
        assert keys_of([first, free]) == ["n-0", "free"]
        assert other.take(harness) == [], "it is in somebody's hands"
        ledger.record(released(first, due_ms=first.taken_ms + harness.unit_ms))
        assert other.take(harness) == [], "it waits, and so do those behind it"
        harness.advance(harness.unit_ms)
        first = other.take_one(harness)
        other.send(harness, first, Accepted())
        assert keys_of(ledger.take(harness)) == ["n-1"]

    def test_the_order_of_one_tenant_is_nobody_elses(self, harness: Harness, ledger: Sender) -> None:
        one = notification(harness, order="customer")
        ledger.add(one, altered(one, tenant=f"{harness.namespace} 2"))
        assert len(ledger.take(harness)) == 2

    def test_thousands_behind_one_keep_nobody_else_waiting(self, harness: Harness, ledger: Sender) -> None:
        self.queue(harness, ledger)
        ledger.add(notification(harness, "free"))
        assert keys_of(ledger.take(harness, room=1)) == ["free"]
        assert ledger.take(harness, room=1) == []

    def test_who_stood_behind_one_comes_forward_when_that_is_over(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        head = self.queue(harness, ledger)
        assert ledger.take(harness, room=1) == other.take(harness, room=1) == [], "they are looked at, and stay"
        assert shown(ledger, notification(harness, "n-0", order="o")).due_ms > 0, "it waits for its turn, not for ever"
        assert decide(other, head.notification, "sent") == "accepted"
        for number in range(3):
            (next_one,) = other.take(harness)
            assert next_one.notification.key == f"n-{number}"
            assert ledger.take(harness) == []
            other.send(harness, next_one, Accepted())
        third, fourth = (notification(harness, f"n-{number}", order="o") for number in (3, 4))
        assert decide(ledger, third, "cancelled") == decide(ledger, fourth, "cancelled") == "cancelled"
        assert keys_of(ledger.take(harness)) == ["n-5"]

    def test_who_leaves_the_middle_of_a_queue_lets_nobody_pass(self, harness: Harness, ledger: Sender) -> None:
        head = self.queue(harness, ledger)
        assert ledger.take(harness, room=1) == []
        assert decide(ledger, notification(harness, "n-1", order="o"), "cancelled") == "cancelled"
        assert ledger.take(harness) == []
        decide(ledger, head.notification, "given_up")
        ledger.send(harness, ledger.take_one(harness), Accepted())
        assert keys_of(ledger.take(harness)) == ["n-2"]

    def queue(self, harness: Harness, ledger: Sender) -> Dispatch:
        """Many behind one of which nobody knows what came of it."""
        ledger.add(notification(harness, "head", order="o"))
        head = ledger.take_one(harness)
        ledger.send(harness, head, Unknown("timeout"))
        ledger.add(*[notification(harness, f"n-{number}", order="o") for number in range(MANY)])
        return head


class RateLaws(OutboxBinding):
    def test_a_rate_holds_over_all_relays_and_counts_nothing_against_anybody(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        per_second = 4.0
        ledger.add(*[notification(harness, f"n-{number}") for number in range(20)])
        began_ms = None
        slots: list[int] = []
        for turn in range(40):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, room=3, per_second=per_second):
                began_ms = began_ms or dispatch.taken_ms
                slots.append(max(dispatch.slot_ms, dispatch.taken_ms))
                assert (dispatch.standing.attempts, dispatch.standing.claims, dispatch.vanished) == (0, 0, False)
                relay.send(harness, dispatch, Accepted())
            if len(slots) == 20:
                break
            harness.advance(500)
        assert len(slots) == 20
        seconds = Counter(slot - slots[0] for slot in slots)
        assert max(seconds.values()) == 1, "evenly"
        assert max(slots) - min(slots) >= 19 * 1000 / per_second - 20

    def test_a_rate_is_for_each_tenant(self, harness: Harness, ledger: Sender) -> None:
        busy = [notification(harness, f"n-{number}") for number in range(30)]
        ledger.add(*busy, altered(busy[0], tenant=f"{harness.namespace} 2"))
        taken: list[str] = []
        for _ in range(8):
            taken += [one.notification.tenant for one in ledger.take(harness, room=5, per_second=1.0)]
        assert f"{harness.namespace} 2" in taken, "who has too much keeps nobody else waiting"

    def test_whoever_waits_for_the_rate_is_not_overtaken(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        """Also by what is added while it waits, though somebody takes all the time."""
        ledger.add(*[notification(harness, f"early {number}") for number in range(8)])
        order: list[str] = []
        for turn in range(60):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, room=2 + turn % 3, per_second=4.0):
                order.append(dispatch.notification.key)
                relay.send(harness, dispatch, Accepted())
            if turn < 8:
                ledger.add(notification(harness, f"late {turn}"))
            if len(order) == 16:
                break
            harness.advance(125)
        assert order == [*[f"early {number}" for number in range(8)], *[f"late {number}" for number in range(8)]]

    def test_who_waits_for_the_rate_is_not_overtaken_by_those_behind_it_in_order(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        ledger.add(*[notification(harness, f"n-{number}", order="o", priority=9 - number) for number in range(6)])
        ledger.add(*[notification(harness, f"free {number}") for number in range(6)])
        order: list[str] = []
        for turn in range(60):
            relay = (ledger, other)[turn % 2]
            for dispatch in relay.take(harness, per_second=4.0):
                order.append(dispatch.notification.key)
                relay.send(harness, dispatch, Accepted())
            if len(order) == 12:
                break
            harness.advance(125)
        assert [key for key in order if key.startswith("n-")] == [f"n-{number}" for number in range(6)]
        assert len(order) == 12, "nobody waits for ever"

    def test_what_is_urgent_goes_before_all_that_waits_for_the_rate(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(30)])
        while ledger.take(harness, per_second=4.0):
            pass
        ledger.add(notification(harness, "urgent", priority=0))
        harness.advance(1_000)
        assert keys_of(ledger.take(harness, per_second=4.0))[0] == "urgent"

    def test_lanes_and_relays_that_share_a_provider_share_its_limit(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        """One knows a channel that leads there, another has less room, or takes more often: the limit is one."""
        whose = provider(harness)
        ledger.add(*[notification(harness, f"n-{number}") for number in range(15)])
        ledger.add(
            *[notification(harness, f"other {number}", provider=provider(harness, "way")) for number in range(15)]
        )
        slots: list[int] = []
        for turn in range(80):
            lanes = {provider(harness, "way"): Lane(50, whose, 10.0)}
            if turn % 3:
                lanes[whose] = Lane(2, whose, 10.0)
            relay = (ledger, other)[turn % 2]
            taken = relay.run(relay.outbox.take(lanes, 100 * harness.lease_ms))
            slots += [max(dispatch.slot_ms, dispatch.taken_ms) for dispatch in taken]
            if len(slots) == 30:
                break
            harness.advance(100)
        assert len(slots) == 30
        apart = [later - sooner for sooner, later in pairwise(sorted(slots))]
        assert min(apart) >= 99, "ten in a second, and no more"

    def test_who_waits_for_the_rate_is_as_it_was(self, harness: Harness, ledger: Sender) -> None:
        said = [notification(harness, f"n-{number}") for number in range(10)]
        ledger.add(*said)
        before = [shown(ledger, one) for one in said]
        taken = ledger.take(harness, per_second=2.0)
        assert 0 < len(taken) < 10
        waiting = {one.id: one for one in before if one.id not in {each.id.hex() for each in taken}}
        for id, one in waiting.items():
            assert shown(ledger, one.notification) == one, id
