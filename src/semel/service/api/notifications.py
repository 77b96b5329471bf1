"""/v1/notifications: what is to be said to customers, whether it was, and what a person decides about it.

The tenant of everything is the token's. Whoever asks for another tenant's notification is told that there is none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import NoReturn, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.core.outboxes import StoredOutbox
from semel.core.resending import resend
from semel.service.api.asking import check_filled_in, flag, kept, may, query, time_text, told
from semel.service.api.auth import Credential
from semel.service.api.bodies import read
from semel.service.api.idempotency_key import read_key
from semel.service.api.listing import QUERIES, TEXTS, page
from semel.service.api.notification_shapes import (
    Again,
    Cancel,
    Erase,
    Erased,
    Moved,
    NewNotification,
    Resend,
    Resolve,
    StatusReport,
    Taken,
)
from semel.service.api.refusals import Refused, refusal
from semel.service.api.reports import line, report
from semel.service.api.shapes import KEY_PATTERN
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.masking import Hider
from semel.values.notification import Guard, Notification
from semel.values.outbox import MAY_SEND, Decision, Shown, Sought, Status
from semel.values.recipients import matching_note
from semel.values.sending import LIVE, ProviderAccess

NO_OUTBOX = "this ledger keeps no outbox: sqlite and postgresql do (docs/ledgers.md)"
PAGES_AT_A_TIME = 4  # each may hold contents of some MB, and what is made of them
LEFT_MAX = 1_000  # of each state: who has more on their way will ask again

Asked = TypeVar("Asked")


class Sending(Struct, frozen=True):
    """What is behind each path."""

    outbox: StoredOutbox
    body_max: int
    read_timeout: float
    access: ProviderAccess = ProviderAccess()
    pages: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(PAGES_AT_A_TIME))

    def routes(self) -> list[Route]:
        return [
            Route("/notifications", self.all, methods=["GET", "POST"]),  # one, so that Allow names both
            Route("/notifications/status", self.status, methods=["GET"]),
            Route("/notifications/erase", self.erase, methods=["POST"]),
            Route("/notifications/erase", _only_post, methods=["GET"]),  # it is no id
            Route("/notifications/{id}", self.show, methods=["GET"]),
            Route("/notifications/{id}/resolve", self.resolve, methods=["POST"]),
            Route("/notifications/{id}/cancel", self.cancel, methods=["POST"]),
            Route("/notifications/{id}/resend", self.resend, methods=["POST"]),
        ]

    async def all(self, request: Request) -> Response:
        return await (self.create(request) if request.method == "POST" else self.list(request))

    # ------------------------------------------------------------------------------------------------------- create

    async def create(self, request: Request) -> Response:
        tenant = may(request, "notify").tenant
        given = _key_header(request)
        asked = await self._read(request, NewNotification)
        made = _notification(asked, tenant, _key(asked.key, given))
        for name in ("key", "kind", "recipient"):
            check_filled_in(name, getattr(made, name))
        self._check_access(made)
        (added,) = await self.outbox.add([made])
        if added.status == "conflict":
            detail = "this notification is known, and says something else. The first one is untouched"
            return refusal(422, detail, id=added.id, state=added.state)
        answer = Taken(added.id, added.status, added.state)
        return told(answer, 201 if added.status == "added" else 200, _where(added.id))

    # -------------------------------------------------------------------------------------------------------- read

    async def status(self, request: Request) -> Response:
        tenant = may(request, "notifications").tenant
        asked = query(request, ("recipient", "kind", "key"))
        if ("key" in asked) == ("recipient" in asked) or ("key" in asked and "kind" in asked):
            raise MalformedEvent("ask by recipient, by recipient and kind, or by key")
        _check_texts(**asked)
        found = await self.outbox.status(tenant, **asked)
        said = found.evidence or found.reference  # by whoever sent it: it may name the customer, and what was said
        shown = await self.outbox.show(bytes.fromhex(found.id)) if said else None
        note = matching_note(asked["recipient"]) if "recipient" in asked else ""
        return told(await asyncio.to_thread(_status, found, shown, note))

    async def list(self, request: Request) -> Response:
        tenant = may(request, "notifications").tenant
        asked = query(request, QUERIES)
        revealed = _revealed(request, asked)
        _check_texts(**{name: asked[name] for name in TEXTS if name in asked})
        async with self.pages:
            return await page(self.outbox, tenant, asked, lambda shown: line(shown, revealed))

    async def show(self, request: Request) -> Response:
        tenant, id = may(request, "notifications").tenant, _id(request)
        revealed = _revealed(request, query(request, ("reveal",)))
        shown = await self._known(id, tenant)
        return told(await asyncio.to_thread(report, shown, revealed, time.time_ns() // 1_000_000))

    # ------------------------------------------------------------------------------------------------------- decide

    async def resolve(self, request: Request) -> Response:
        who, id = may(request, "operate"), _id(request)
        asked = await self._read(request, Resolve)
        return await self._decide(who, Decision(id, asked.says, kept(asked.reason), who.name))

    async def cancel(self, request: Request) -> Response:
        who, id = may(request, "operate"), _id(request)
        asked = await self._read(request, Cancel)
        return await self._decide(who, Decision(id, "cancelled", kept(asked.reason), who.name))

    async def resend(self, request: Request) -> Response:
        who, id = may(request, "operate"), _id(request)
        asked = await self._read(request, Resend)
        self._check_access((await self._known(id, who.tenant)).notification)
        again = await resend(self.outbox, id, kept(asked.reason), who.name, tenant=who.tenant)
        if again.status == "missing":
            raise _unknown()
        if again.status == "refused":
            return refusal(409, f"it cannot be sent again: {again.reason}", id=again.id, state=again.state)
        answer = Again(again.id, again.status, again.state, again.generation)
        return told(answer, 201 if again.status == "added" else 200, _where(again.id))

    async def erase(self, request: Request) -> Response:
        who = may(request, "operate")
        asked = await self._read(request, Erase)
        _check_texts(recipient=asked.recipient)
        erased = await self.outbox.erase(who.tenant, asked.recipient, kept(asked.reason), who.name)
        left = 0
        for state in LIVE:
            sought = Sought(tenant=who.tenant, recipient=asked.recipient, state=state, limit=LEFT_MAX)
            left += len([one for one in await self.outbox.find(sought) if not one.erased])
        return told(Erased(erased, left))

    async def _decide(self, who: Credential, decision: Decision) -> Response:
        await self._known(decision.id, who.tenant)  # the tenant is a part of the id: it stays this one's
        state = await self.outbox.decide(decision)
        if state is None:
            now = await self._known(decision.id, who.tenant)
            if not _said_before(now, decision):
                detail = f"{decision.says.replace('_', ' ')} cannot be said of it now: it is {now.state}"
                return refusal(409, f"{detail}. Nothing was written", id=now.id, state=now.state)
            state = now.state
        return told(Moved(decision.id.hex(), state))

    async def _read(self, request: Request, shape: type[Asked]) -> Asked:
        return await read(request, shape, self.body_max, self.read_timeout)

    def _check_access(self, notification: Notification) -> None:
        if reason := self.access.refusal(notification):
            raise Refused(403, f"{reason}. Nothing was added")

    async def _known(self, id: bytes, tenant: str) -> Shown:
        shown = await self.outbox.show(id)
        if shown is None or shown.notification.tenant != tenant:
            raise _unknown()
        return shown


async def no_outbox(_: Request) -> NoReturn:
    raise Refused(501, NO_OUTBOX)


def without_outbox() -> list[Route]:
    """Each of its paths says why there is nothing behind it."""
    return [
        Route("/notifications", no_outbox, methods=["GET", "POST"]),
        Route("/notifications/{rest:path}", no_outbox, methods=["GET", "POST"]),
    ]


async def _only_post(_: Request) -> NoReturn:
    raise HTTPException(405, headers={"Allow": "POST"})


# ---------------------------------------------------------------------------------------------------------- asking


def _id(request: Request) -> bytes:
    id = request.path_params["id"]
    if not KEY_PATTERN.fullmatch(id):
        raise Refused(400, "an id is 32 hexadecimal digits, in lower case")
    return bytes.fromhex(id)


def _unknown() -> Refused:
    return Refused(404, "nothing is known of this notification")


def _key_header(request: Request) -> str | None:
    """The caller's key, where it is in the header. Of two, nobody could say which one counts."""
    found = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if len(found) > 1:
        raise MalformedEvent("Idempotency-Key: stands twice")
    return read_key(found[0]) if found else None


def _key(inside: str | None, header: str | None) -> str:
    """No key is ever made up: a call without one could not be told from the next."""
    if inside is None and header is None:
        raise MalformedEvent("key: is missing, here and in Idempotency-Key; it names the fact of your business")
    if inside is not None and header is not None and inside != header:
        raise MalformedEvent("key: is not the one in Idempotency-Key")
    return (inside if inside is not None else header) or ""


def _notification(asked: NewNotification, tenant: str, key: str) -> Notification:
    given = asdict(asked)
    given["guard"] = None if asked.guard is None else Guard(**asdict(asked.guard))
    given["priority"] = int(asked.priority)
    try:
        made = Notification(**{**given, "key": key, "tenant": tenant})
        made.content  # noqa: B018 - what cannot be written is refused here
    except ConfigError as error:
        raise MalformedEvent(str(error)) from None
    return made


def _check_texts(recipient: str = "?", kind: str = "?", key: str = "?", provider: str = "?") -> None:
    """Nothing was ever sent to what no notification may have: that must not be answered with "never"."""
    try:
        Notification(recipient=recipient, kind=kind, key=key, provider=provider, channel="event", body="?")
    except ConfigError as error:
        raise MalformedEvent(str(error)) from None


def _revealed(request: Request, asked: Mapping[str, str]) -> bool:
    """Whether recipients and contents are told in the clear. Who may decide about them may see them."""
    revealed = flag(asked, "reveal")
    if revealed:
        may(request, "operate")
    return revealed


# ------------------------------------------------------------------------------------------------------- answering


def _status(status: Status, shown: Shown | None, note: str) -> StatusReport:
    """Without the notification, nothing of what was said of it can be shown."""
    hider = None if shown is None else Hider(shown.notification)
    return StatusReport(
        told=status.told,
        may_send=status.told in MAY_SEND,
        id=status.id,
        state=status.state,
        at=time_text(status.at_ms) if status.at_ms else "",
        provider=status.provider,
        reference="" if hider is None else hider.hidden(status.reference),
        evidence="" if hider is None else hider.hidden(status.evidence),
        unsent=status.unsent,
        note=note,
    )


def _where(id: str) -> dict[str, str]:
    return {"Location": f"/v1/notifications/{id}"}


def _said_before(now: Shown, decision: Decision) -> bool:
    """The answer to the same call may have been lost."""
    said = (decision.says, decision.reason, decision.by)
    return any((one.outcome, one.evidence, one.by) == said for one in now.attempts)
