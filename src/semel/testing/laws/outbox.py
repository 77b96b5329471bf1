"""Laws of an outbox's `add` and `take`: what is one notification, and who carries it next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest

from semel.ports import Ledger
from semel.testing.bystanders import OutboxBystanders, watch
from semel.testing.harness import Harness
from semel.testing.laws.binding import Binding
from semel.testing.sender import Sender, keys_of, notification, provider, released
from semel.values.errors import ConfigError
from semel.values.notification import Guard
from semel.values.outbox import Lane
from semel.values.sending import Accepted


class OutboxBinding(Binding):
    def watch_bystanders(
        self, harness: Harness, open_ledger: Callable[[], Ledger], request: pytest.FixtureRequest
    ) -> Iterator[None]:
        purges = request.function.__qualname__.startswith("PurgeLaws.")  # they purge what is finished, of every tenant
        return watch(OutboxBystanders(harness, finished=not purges), partial(Sender, open_ledger))

    @pytest.fixture
    def ledger(self, harness: Harness) -> Iterator[Sender]:
        with Sender(harness.open) as sender:
            yield sender

    @pytest.fixture
    def other(self, harness: Harness) -> Iterator[Sender]:
        """Another relay on the same store."""
        with Sender(harness.open) as sender:
            yield sender


class AddLaws(OutboxBinding):
    def test_what_is_added_can_be_taken_as_it_was_said(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        said = notification(
            harness,
            body={"text": "é – 漢字 \U0001f4de", "n": 1},
            subject="s",
            sender="+490",
            template="t",
            data={"b": None, "a": [1]},
            not_after=datetime(2100, 1, 1, tzinfo=UTC),
            priority=2,
            order="customer-1",
            guard=Guard(window_s=60, key="g"),
            policy="resend",
            generation=3,
        )
        (added,) = ledger.add(said)
        assert (added.id, added.status) == (said.id.hex(), "added")
        dispatch = other.take_one(harness)
        assert (dispatch.id, dispatch.notification, dispatch.content) == (said.id, said, said.content)
        assert dispatch.standing.state == "pending"
        assert (dispatch.standing.policy, dispatch.standing.not_after_ms) == ("resend", 4_102_444_800_000)
        assert dispatch.token > 0

    @pytest.mark.parametrize("listed", [False, True])
    def test_what_is_no_list_of_notifications_is_refused_with_what_to_write(
        self, harness: Harness, ledger: Sender, listed: bool
    ) -> None:
        """One alone is what everybody writes first."""
        wrong: Any = [notification(harness), "order-2"] if listed else notification(harness)
        with pytest.raises(ConfigError, match=r"expected a list.*: await app\.outbox\.add\(\[Notification\("):
            ledger.run(ledger.outbox.add(wrong))
        assert ledger.take(harness) == []

    def test_it_is_known_when_it_was_added(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness))
        harness.advance(harness.unit_ms)
        first = ledger.take_one(harness)
        assert harness.is_near(first.added_ms, first.taken_ms - harness.unit_ms)
        ledger.record(released(first))
        assert ledger.take_one(harness).added_ms == first.added_ms

    def test_what_is_added_outlives_whoever_added_it(self, harness: Harness, other: Sender) -> None:
        with Sender(harness.open) as short_lived:
            short_lived.add(notification(harness))
        assert keys_of(other.take(harness)) == ["order-1"]

    def test_the_same_call_twice_is_one_notification_and_says_so(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        said = notification(harness)
        assert [one.status for one in ledger.add(said, said)] == ["added", "known"]
        assert [(one.status, one.state) for one in other.add(said)] == [("known", "pending")]
        dispatch = ledger.take_one(harness)
        ledger.send(harness, dispatch, Accepted())
        assert [(one.status, one.state) for one in other.add(said)] == [("known", "accepted")]
        assert other.take(harness) == []

    def test_the_same_key_with_another_content_is_a_conflict(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        first = notification(harness)
        ledger.add(first)
        assert [one.status for one in other.add(notification(harness, body="Something else"))] == ["conflict"]
        assert ledger.take_one(harness).content == first.content

    def test_a_new_generation_is_another_notification(self, harness: Harness, ledger: Sender) -> None:
        statuses = [one.status for one in ledger.add(notification(harness), notification(harness, generation=2))]
        assert statuses == ["added", "added"]
        assert len(ledger.take(harness)) == 2

    def test_a_large_batch_is_answered_in_order(self, harness: Harness, ledger: Sender) -> None:
        for size in harness.batches:
            batch = [notification(harness, f"batch-{size}-{number % (size - size // 3)}") for number in range(size)]
            statuses = [one.status for one in ledger.add(*batch)]
            assert statuses == ["added"] * (size - size // 3) + ["known"] * (size // 3)


class TakeLaws(OutboxBinding):
    def test_what_is_taken_is_in_nobody_elses_hands(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(*[notification(harness, f"n-{number}") for number in range(5)])
        assert len(ledger.take(harness, room=3)) == 3
        assert len(other.take(harness)) == 2
        assert ledger.take(harness) == other.take(harness) == []

    def test_a_lapsed_lease_is_taken_again_with_a_higher_token_and_says_so(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        assert not first.vanished
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert second.vanished
        assert second.token > first.token

    def test_what_was_crossed_and_left_behind_is_known_to_have_crossed(
        self, harness: Harness, ledger: Sender, other: Sender
    ) -> None:
        ledger.add(notification(harness))
        first = ledger.take_one(harness)
        ledger.cross(first, request=b"the bytes")
        harness.advance(harness.lease_ms)
        second = other.take_one(harness)
        assert second.vanished
        assert (second.standing.state, second.standing.attempts) == ("sending", 1)
        assert second.request == b"the bytes"

    def test_lanes_that_were_not_asked_for_are_left_alone(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness), notification(harness, "two", provider=provider(harness, "two")))
        assert keys_of(ledger.take(harness)) == ["order-1"]
        assert keys_of(ledger.take(harness, "two")) == ["two"]

    def test_what_names_no_provider_has_the_lane_of_its_channel(self, harness: Harness, ledger: Sender) -> None:
        ledger.add(notification(harness, provider="", channel="voice"))
        assert ledger.take(harness) == []
        lanes = {"@voice": Lane(1_000, provider(harness))}
        found = [one for one in ledger.run(ledger.outbox.take(lanes, harness.lease_ms)) if _is_ours(harness, one)]
        assert keys_of(found) == ["order-1"]
        assert found[0].standing.provider == ""

    def test_priority_comes_first_and_then_who_is_longest_due(self, harness: Harness, ledger: Sender) -> None:
        for number, priority in enumerate([5, 9, 0, 5]):
            ledger.add(notification(harness, f"n-{number}", priority=priority))
            harness.advance(harness.unit_ms)
        assert [keys_of(ledger.take(harness, room=1)) for _ in range(4)] == [["n-2"], ["n-0"], ["n-3"], ["n-1"]]

    def test_what_waits_for_its_time_is_not_due_before(self, harness: Harness, ledger: Sender, other: Sender) -> None:
        ledger.add(notification(harness))
        dispatch = ledger.take_one(harness)
        later_ms = dispatch.taken_ms + 5 * harness.unit_ms
        assert ledger.record(released(dispatch, due_ms=later_ms, reason="not now")) == [True]
        assert other.take(harness) == []
        harness.advance(5 * harness.unit_ms)
        again = other.take_one(harness)
        assert (again.vanished, again.standing.reason) == (False, "not now")


def _is_ours(harness: Harness, dispatch: object) -> bool:
    return bool(getattr(dispatch, "notification").tenant == harness.namespace)  # noqa: B009 - a store may be shared
