"""What is heard, without a server: an outbox, a provider's door, and messages that have come as far as a test wants."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from semel.ports import Provider, StoredOutbox
from semel.providers.registry import provider
from semel.service.endpoints import ServedEndpoint
from semel.service.provider_callbacks import ProviderCallbacks
from semel.service.responses import HttpResponse
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Contract, Refused, State
from semel.values.notification import Notification
from semel.values.outbox import Crossing, DeliveryReport, Dispatch, Lane, Record

LEASE_MS = 600_000
WORDS = {"queued": "accepted", "done": "delivered", "lost": "undelivered", "no": "refused"}


def endpoint(name: str, *, by_reference: bool = False) -> Provider:
    """One whose callbacks are {"id": …, "ref": …, "status": …}."""
    named = {} if by_reference else {"report_id": "id"}
    options = {"url": "https://example.com/", "report_reference": "ref", "report_words": WORDS, **named}
    return provider("http", name, options)


def message(key: str, name: str) -> Notification:
    return Notification(key=f"{name} {key}", kind="k", recipient="+491", channel="sms", body="Hello", provider=name)


def said(status: str, one: Notification | None = None, reference: str = "") -> bytes:
    return msgspec.json.encode({"id": one.id.hex() if one is not None else "", "ref": reference, "status": status})


def status_and_body(answer: HttpResponse) -> tuple[int, Any]:
    return answer.status, msgspec.json.decode(answer.body)


class Counted:
    """An outbox that is asked through here, so that its round trips can be counted."""

    def __init__(self, outbox: StoredOutbox) -> None:
        self._outbox = outbox
        self.batches: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outbox, name)

    async def apply_reports(self, reports: Sequence[DeliveryReport]) -> list[State | None]:
        self.batches.append(len(reports))
        return await self._outbox.apply_reports(reports)


async def crossed(outbox: StoredOutbox, *notifications: Notification) -> list[Dispatch]:
    """They are leaving."""
    await outbox.add(notifications)
    taken = await crossed_again(outbox, *{one.provider for one in notifications})
    assert len(taken) == len(notifications)
    return taken


async def crossed_again(outbox: StoredOutbox, *names: str) -> list[Dispatch]:
    """What is due at these providers is leaving."""
    taken = await outbox.take({name: Lane(2_000, name) for name in names}, LEASE_MS)
    crossings = [Crossing(one, states.crossed(one.delivery_state, one.taken_ms), b"request") for one in taken]
    gates = await outbox.cross(crossings)
    assert [type(gate).__name__ for gate in gates] == ["Crossed"] * len(taken)
    return taken


async def accepted(outbox: StoredOutbox, dispatch: Dispatch, reference: str = "") -> None:
    contract = Contract(name=dispatch.notification.provider, channels=("sms",))
    leaving = states.crossed(dispatch.delivery_state, dispatch.taken_ms)
    after = states.answered(leaving, Accepted(reference), contract, dispatch.taken_ms, lambda: 0.0)
    assert await outbox.record([Record(dispatch, after, "accepted", "201", reference)]) == [True]


async def refused(outbox: StoredOutbox, dispatch: Dispatch, following: str) -> None:
    """For good: the next provider is to send it."""
    contract = Contract(name=dispatch.notification.provider, channels=("sms",))
    leaving = replace(states.crossed(dispatch.delivery_state, dispatch.taken_ms), others=(following,))
    after = states.answered(leaving, Refused("no", final=True), contract, dispatch.taken_ms, lambda: 0.0)
    assert await outbox.record([Record(dispatch, after, "refused", "no")]) == [True]


async def state(outbox: StoredOutbox, one: Notification) -> str:
    shown = await outbox.show(one.id)
    assert shown is not None
    return shown.state


async def hear(hearing: ProviderCallbacks, hears: Provider, body: bytes, **more: Any) -> tuple[int, Mapping[str, Any]]:
    endpoint = ServedEndpoint("/callbacks", callback_provider=hears, **more)
    return status_and_body(await hearing.handle(endpoint, {}, body, ""))


async def all_of_it(outbox: StoredOutbox, name: str) -> None:
    """One path through everything, for each store."""
    hearing, mine, theirs = ProviderCallbacks(outbox), endpoint(name), endpoint(f"{name} beside it")
    one, two = message("one", name), message("two", name)
    first, _ = sorted(await crossed(outbox, one, two), key=lambda dispatch: dispatch.id != one.id)

    assert await hear(hearing, theirs, said("done", one)) == (200, {"status": "recorded", "reports": 1, "unmatched": 1})
    assert await state(outbox, one) == "sending", "another provider has said it"
    assert await hear(hearing, mine, said("queued", one, "r-1")) == (200, {"status": "recorded", "reports": 1})
    assert await state(outbox, one) == "accepted", "while it is being sent"
    await asyncio.gather(*[hear(hearing, mine, said("done", one, "r-1")) for _ in range(20)])
    assert await state(outbox, one) == "delivered"
    for late in ("queued", "lost", "no"):
        assert (await hear(hearing, mine, said(late, one, "r-1")))[0] == 200
    shown = await outbox.show(one.id)
    assert shown is not None
    assert shown.state == "delivered"
    words = [line.outcome for line in shown.attempts if line.evidence.startswith("callback")]
    assert sorted(words) == ["accepted", "delivered", "refused", "undelivered"], "each of them once"

    assert await hear(hearing, mine, said("no", two)) == (200, {"status": "recorded", "reports": 1})
    assert await state(outbox, two) == "failed", "it was refused, and the answer was lost"
    assert await hear(hearing, mine, said("done", message("nobody's", name))) == (
        200,
        {"status": "recorded", "reports": 1, "unmatched": 1},
    )
    assert first.id == one.id
