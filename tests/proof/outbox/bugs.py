"""Bugs on purpose, each written around what is right. The proof has to see every one of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import urandom
from typing import Any

from msgspec.structs import replace

from semel.ports import Outbox, Provider
from semel.values.delivery_state import Answer, Refused, Unknown
from semel.values.notification import Notification
from semel.values.outbox import Absent, Crossed, Crossing, CrossingVerdict, Dispatch, Lane, LookedUp

NO_CROSSING = "bytes leave, and nobody wrote before that they would"
CALLED_REFUSED = "no answer is taken for a refusal"
OTHER_KEYS = "each attempt has a key of its own"
FALLS_BACK = "after an unknown outcome the next provider is tried"
OLD_KEYS = "a key is sent again when it may be forgotten"
ALONE = "each relay counts the rate by itself"
DISORDER = "what is due is taken, whatever its order"
NO_GUARD = "nobody asks the guard"
LOOKS_AWAY = "a look-up that finds nothing out is taken for a proof"


def outbox(bug: str, right: Outbox) -> Outbox:
    if bug == NO_CROSSING:
        return _NoCrossing(right)
    return _Alone(right) if bug == ALONE else right


def provider(bug: str, right: Provider) -> Provider:
    return _Mistaken(bug, right) if bug in (CALLED_REFUSED, OTHER_KEYS, FALLS_BACK, LOOKS_AWAY) else right


def options(bug: str, name: str) -> dict[str, Any]:
    return {"key_window": 800.0} if bug == OLD_KEYS and name == "brevo" else {}


def added(bug: str, right: Sequence[Notification]) -> Sequence[Notification]:
    """What the outbox is told; the proof knows what it should have been told."""
    if bug == DISORDER:
        return [replace(one, order="") for one in right]
    return [replace(one, guard=None) for one in right] if bug == NO_GUARD else right


class _Around:
    """All of an outbox, as it is."""

    def __init__(self, right: Any) -> None:
        self._right = right

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)


class _NoCrossing(_Around):
    async def cross(self, crossings: Sequence[Crossing]) -> list[CrossingVerdict]:
        return [Crossed() for _ in crossings]


class _Alone(_Around):
    async def take(self, lanes: Mapping[str, Lane], lease_ms: int) -> list[Dispatch]:
        unlimited = {name: replace(lane, per_second=0.0) for name, lane in lanes.items()}
        taken: list[Dispatch] = await self._right.take(unlimited, lease_ms)
        return taken


class _Mistaken(_Around):
    def __init__(self, bug: str, right: Provider) -> None:
        super().__init__(right)
        self._bug = bug

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        if self._bug == OTHER_KEYS:
            dispatch = replace(dispatch, id=urandom(16))
        answer: Answer = await self._right.send(dispatch, request)
        if isinstance(answer, Unknown) and self._bug == CALLED_REFUSED:  # it may have been sent
            return Refused(answer.reason)
        if isinstance(answer, Unknown) and self._bug == FALLS_BACK:
            return Refused(answer.reason, final=True)
        return answer

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        said: LookedUp = Absent() if self._bug == LOOKS_AWAY else await self._right.look_up(dispatch)
        return said
