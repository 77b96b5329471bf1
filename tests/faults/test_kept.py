"""The checks of a storm see what is lost, what is doubled and what is left."""

from __future__ import annotations

import pytest

from semel.testing.laws.faults import KEPT, EventRecord, Happened, check_kept

DONE = EventRecord("done", 1)


def call(effect: str, event: str = "a", *, key: str = "", token: int = 1, applied: bool = True) -> Happened:
    return Happened(effect, event, key or f"key of {event}", token, 1, applied)


def fails(effect: str, calls: list[Happened], known: dict[str, EventRecord]) -> bool:
    try:
        check_kept(effect, calls, known)
    except AssertionError:
        return True
    return False


@pytest.mark.parametrize("effect", KEPT)
def test_once_each_is_right_for_every_effect(effect: str) -> None:
    assert not fails(effect, [call(effect, "a"), call(effect, "b")], {"a": DONE, "b": DONE})


@pytest.mark.parametrize("effect", KEPT)
def test_what_is_done_and_never_happened_is_lost(effect: str) -> None:
    assert fails(effect, [call(effect, "a")], {"a": DONE, "b": DONE})


@pytest.mark.parametrize("effect", KEPT)
def test_what_nobody_delivered_has_no_effect(effect: str) -> None:
    assert fails(effect, [call(effect, "a"), call(effect, "b")], {"a": DONE})


@pytest.mark.parametrize("state", ["leased", "waiting", "dead", "accepted"])
@pytest.mark.parametrize("effect", KEPT)
def test_what_has_not_ended_is_seen(effect: str, state: str) -> None:
    assert fails(effect, [call(effect)], {"a": EventRecord(state, 1)})


@pytest.mark.parametrize(
    ("effect", "wrong"), [("transaction", True), ("keyed", False), ("retry", False), ("park", True)]
)
def test_a_second_call_is_a_double_where_it_was_not_declared(effect: str, wrong: bool) -> None:
    assert fails(effect, [call(effect), call(effect)], {"a": DONE}) is wrong


def test_a_second_key_doubles_and_a_shared_key_loses() -> None:
    assert fails("keyed", [call("keyed"), call("keyed", key="another")], {"a": DONE})
    assert fails("keyed", [call("keyed", "a", key="x"), call("keyed", "b", key="x")], {"a": DONE, "b": DONE})


def test_the_resource_must_end_with_what_was_settled() -> None:
    known = {"a": EventRecord("done", 2)}
    assert not fails("fenced", [call("fenced", token=1), call("fenced", token=2)], known)
    assert not fails("fenced", [call("fenced", token=2), call("fenced", token=1, applied=False)], known)
    assert fails("fenced", [call("fenced", token=2), call("fenced", token=3)], known)
    assert fails("fenced", [call("fenced", token=1)], known)


def test_only_park_may_end_in_doubt_and_then_it_happened_once_or_not_at_all() -> None:
    doubt = {"a": EventRecord("uncertain", None)}
    assert not fails("park", [], doubt)
    assert not fails("park", [call("park")], doubt)
    assert fails("park", [call("park"), call("park")], doubt)
    assert fails("retry", [call("retry")], doubt)
