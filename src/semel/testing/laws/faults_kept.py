"""What must hold for each effect when a storm is over: the promises of `values/effect.py`, checked against what the
world outside the ledger saw."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias


class Happened(NamedTuple):
    """One call of a handler, as its resource saw it."""

    effect: str
    event: str
    key: str
    token: int
    attempt: int
    applied: bool = True  # False: the resource refused it, its token was old


class Known(NamedTuple):
    """What the ledger says of one event in the end."""

    state: str  # of the catalog
    token: int | None  # of the run that was settled; handlers return theirs


Kept: TypeAlias = Callable[[Sequence[Happened], Mapping[str, Known]], None]


def exactly_once(calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    assert Counter(call.event for call in calls) == dict.fromkeys(known, 1)


def once_by_key(calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    """Calls may repeat, always with the same key: a downstream that honours it has applied each event once."""
    keys = {(call.event, call.key) for call in calls}
    assert Counter(event for event, _ in keys) == dict.fromkeys(known, 1)
    assert len({key for _, key in keys}) == len(known), "no two events share a key"


def last_token_wins(calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    """What the resource ends with is what the settled run wrote: nothing that was let in came after it."""
    assert {call.event: call.token for call in calls if call.applied} == {
        name: one.token for name, one in known.items()
    }


def at_least_once(calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    assert {call.event for call in calls} == set(known)


def at_most_once(calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    """What is done happened once; what is in doubt happened once or not at all, and is listed."""
    times = Counter(call.event for call in calls)
    assert {event for event, count in times.items() if count > 1} == set()
    assert {event for event, one in known.items() if one.state == "done" and not times[event]} == set()


KEPT: dict[str, Kept] = {
    "transaction": exactly_once,
    "keyed": once_by_key,
    "fenced": last_token_wins,
    "retry": at_least_once,
    "park": at_most_once,
}
ENDINGS = {effect: {"done"} for effect in KEPT} | {"park": {"done", "uncertain"}}


def check_kept(effect: str, calls: Sequence[Happened], known: Mapping[str, Known]) -> None:
    """Every event has ended as its effect may end, and the promise was kept. `calls` are those of this effect."""
    strange = {event: one.state for event, one in known.items() if one.state not in ENDINGS[effect]}
    assert strange == {}, f"{effect}: not every event has ended"
    assert {call.event for call in calls} <= set(known)
    KEPT[effect](calls, known)
