"""Outboxes with notifications in every state, brought there as a relay brings them."""

from __future__ import annotations

import asyncio
import os
import pty
import subprocess
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from tests.cli.command import Ended, semel, started

from semel.core.resend import needed_outbox
from semel.ports import StoredOutbox
from semel.testing import harness
from semel.values import delivery_state as states
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.notification import Guard, Notification
from semel.values.outbox import Crossed, DeliveryReport, Dispatch, Lane, NotificationView, Record
from semel.wiring import open_ledger

T = TypeVar("T")

NUMBER = "+4917012345678"
MAIL = "anna.schmidt@example.com"
SECRET = "Your code is 4711"
PROVIDER = "twilio"
LEASE_MS = 3_600_000
REASON = ("--reason", "the carrier says so", "--by", "anna")
EVIL = "400: \x1b[31m+4917012345678\x1b[0m is \u202enot valid"


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/semel.db"


def notification(key: str = "order-1", **said: Any) -> Notification:
    wanted: dict[str, Any] = {
        "key": key,
        "kind": "shipping",
        "recipient": NUMBER,
        "channel": "sms",
        "body": SECRET,
        "provider": PROVIDER,
        **said,
    }
    return Notification(**wanted)


def in_box(url: str, work: Callable[[StoredOutbox], Awaitable[T]]) -> T:
    """Something done with the outbox of a ledger, which may be new."""

    async def run() -> T:
        ledger = open_ledger(url)
        try:
            return await work(needed_outbox(ledger))
        finally:
            await ledger.close()

    return asyncio.run(run())


def add(url: str, *notifications: Notification) -> list[str]:
    """Their ids."""
    added = in_box(url, lambda box: box.add(notifications))
    assert {one.status for one in added} == {"added"}
    return [one.id for one in added]


def carry(url: str, one: Notification, answer: Answer | None, **terms: Any) -> str:
    """Added, taken, crossed, and answered; without an answer it is still leaving, or was suppressed."""

    async def work(box: StoredOutbox) -> None:
        await box.add([one])
        (dispatch,) = [taken for taken in await _taken(box) if taken.id == one.id]
        (gate,) = await box.cross([harness.crossing(dispatch)])
        if answer is not None:
            assert isinstance(gate, Crossed)
            assert await box.record([_record(dispatch, answer, **terms)]) == [True]

    in_box(url, work)
    return one.id.hex()


async def _taken(box: StoredOutbox) -> list[Dispatch]:
    return await box.take({PROVIDER: Lane(1_000, PROVIDER)}, LEASE_MS)


def _record(dispatch: Dispatch, answer: Answer, **terms: Any) -> Record:
    """As the relay records it."""
    contract = Contract(name=PROVIDER, channels=("sms", "email"), **terms)
    crossed = states.crossed(dispatch.delivery_state, dispatch.taken_ms)
    after = states.answered(crossed, answer, contract, dispatch.taken_ms, lambda: 0.5)
    match answer:
        case Accepted():
            return Record(dispatch, after, "accepted", answer.evidence, answer.reference)
        case Refused():
            return Record(dispatch, after, "refused", answer.reason)
        case Unknown():
            return Record(dispatch, after, "unknown", answer.reason)


def shown(url: str, id: str) -> NotificationView:
    found = in_box(url, lambda box: box.show(bytes.fromhex(id)))
    assert found is not None
    return found


def state(url: str, id: str) -> str:
    return shown(url, id).state


def apply_reports(url: str, says: str, id: str, evidence: str) -> None:
    word = DeliveryReport(cast(Any, says), bytes.fromhex(id), PROVIDER, evidence=evidence)
    assert in_box(url, lambda box: box.apply_reports([word])) == [says]


def fill(url: str) -> dict[str, str]:
    """One notification in each state: their ids. `pending` and `sending` come last: a take has what is due."""
    guard = Guard(window_s=86_400.0)
    soon = datetime.now(UTC) + timedelta(minutes=5)
    ids = {
        "accepted": carry(url, notification("accepted"), Accepted("SM1", "201")),
        "delivered": carry(url, notification("delivered"), Accepted("SM2", "201")),
        "undelivered": carry(url, notification("undelivered", recipient=MAIL, channel="email"), Accepted("SM3")),
        "failed": carry(url, notification("failed"), Refused(EVIL, final=True)),
        "expired": carry(url, notification("expired", not_after=soon), Refused("429", after_s=3_600)),
        "uncertain": carry(url, notification("uncertain"), Unknown("no answer within 15 s")),
        "passed": carry(url, notification("promo-1", kind="promo", guard=guard), Accepted("SM4")),
        "suppressed": carry(url, notification("suppressed", kind="promo", guard=guard), None),
        "sending": carry(url, notification("sending", tenant="acme", order=NUMBER), None),
    }
    apply_reports(url, "delivered", ids["delivered"], "callback: delivered")
    apply_reports(url, "undelivered", ids["undelivered"], f"bounced: {MAIL} is unknown")
    (ids["cancelled"],) = add(url, notification("cancelled"))
    assert notify(url, "cancel", ids["cancelled"], *REASON).code == 0
    (ids["pending"],) = add(url, notification("pending"))
    return ids


def notify(url: str, *arguments: str, env: dict[str, str] | None = None) -> Ended:
    return semel("notify", *arguments, "--ledger", url, env=env)


def document(url: str, *arguments: str) -> Any:
    ended = notify(url, *arguments, "--json")
    assert ended.code == 0, ended.err
    return ended.json


def at_a_terminal(typed: bytes, url: str, *arguments: str) -> str:
    """What the command says to someone who sits there and types."""
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "wb", buffering=0) as keyboard:
        command = ("notify", *arguments, "--ledger", url)
        process = started(*command, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        os.close(theirs)
        keyboard.write(typed)
        _, err = process.communicate(timeout=60)
    return str(err)
