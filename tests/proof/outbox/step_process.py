"""A relay that dies at one step of its way, for one notification: its provider's lane holds nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import apsw
from msgspec import Struct
from msgspec.structs import replace
from tests.proof.outbox.stores import SQLITE, open_store

from semel.core.relay import Relay
from semel.http_client import client
from semel.ports import Provider
from semel.providers.registry import provider
from semel.testing.crash import crash_at, stop_at
from semel.testing.simulator import telnyx, twilio, vonage
from semel.values.outbox import Dispatch, LookedUp, Record, check_first_byte
from semel.values.secret import Secret

KINDS: Mapping[str, Mapping[str, Any]] = {
    "twilio": {"account": twilio.ACCOUNT, "token": Secret(twilio.SECRET), "sender": "+490", "settle": 0.3},
    "telnyx": {"api_key": Secret(telnyx.SECRET), "sender": "+490"},
    "vonage": {"api_key": vonage.KEY, "api_secret": Secret(vonage.SECRET), "sender": "s", "policy_after": 0.3},
}

Observe = Callable[[str], None]
FIRST_BYTE = "first_byte"


class Asked(Struct, frozen=True):
    """One provider of a relay."""

    name: str
    kind: str
    options: Mapping[str, Any] = {}


class Plan(Struct, frozen=True):
    store: str
    simulator: str
    asked: tuple[Asked, ...]
    step: str = ""
    hit: int = 1
    marker: str = ""
    stops: bool = False  # there, until it is told to go on; else it dies
    timeout_s: float = 30.0  # nothing waits for it unless it is told to
    margin_s: float = 15.0
    bug: bool = False  # records are written under whichever token is the current one


async def work(plan: Plan) -> None:
    at = stop_at if plan.stops else crash_at
    observe: Observe = at(plan.step, plan.hit, marker=Path(plan.marker)) if plan.step else lambda step: None
    providers: dict[str, Provider] = {}
    for one in plan.asked:
        place = {"url": f"{plan.simulator}/{one.kind}", "allow": ["127.0.0.1"], "timeout": plan.timeout_s}
        options = {**place, **KINDS[one.kind], **one.options}
        providers[one.name] = _Announced(provider(one.kind, one.name, options), observe)
    if plan.step == FIRST_BYTE:
        _announce_first_byte(observe)
    right = open_store(plan.store).outbox
    outbox = _Announcing(_Tokenless(right, plan.store) if plan.bug else right, observe)
    await Relay(outbox, providers, {}, observe=observe, random=lambda: 0.1, margin_s=plan.margin_s).run()


def _announce_first_byte(observe: Observe) -> None:
    """The moment between an open connection and the first byte of the message."""

    def announced() -> None:
        observe(FIRST_BYTE)
        check_first_byte()

    client.check_first_byte = announced  # type: ignore[attr-defined]


class _Announcing:
    """An outbox, whose records are steps too."""

    def __init__(self, outbox: Any, observe: Observe) -> None:
        self._outbox = outbox
        self._observe = observe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def record(self, records: Sequence[Record]) -> list[bool]:
        for one in records:
            self._observe(f"before recording {one.outcome}")
        held: list[bool] = await self._outbox.record(records)
        for one in records:
            self._observe(f"after recording {one.outcome}")
        return held


class _Tokenless:
    """A planted bug: whoever has something to say is believed, also when somebody else has it in hand."""

    def __init__(self, right: Any, store: str) -> None:
        self._right = right
        self._path = store.removeprefix(SQLITE)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    async def record(self, records: Sequence[Record]) -> list[bool]:
        connection = apsw.Connection(self._path)
        current = dict(connection.execute("select id, token from semel_dispatch"))
        connection.close()
        tokens = [current.get(one.dispatch.id, one.dispatch.token) for one in records]
        forced = [
            replace(one, dispatch=replace(one.dispatch, token=token))
            for one, token in zip(records, tokens, strict=True)
        ]
        held: list[bool] = await self._right.record(forced)
        return held


class _Announced:
    """A provider, whose look-ups are steps too."""

    def __init__(self, right: Any, observe: Observe) -> None:
        self._right = right
        self._observe = observe

    def __getattr__(self, name: str) -> Any:
        return getattr(self._right, name)

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        self._observe("before look-up")
        said: LookedUp = await self._right.look_up(dispatch)
        self._observe("after look-up")
        return said
