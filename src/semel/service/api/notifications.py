"""/v1/notifications: what is to be said to customers, whether it was, and what a person decides about it.

The tenant of everything is the token's. Whoever asks for another tenant's notification is told that there is none.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import asdict, replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from semel.core.resend import resend
from semel.ports import Notifications, StoredOutbox
from semel.service.api.claim_shapes import KEY_PATTERN
from semel.service.api.errors import Refused, refusal
from semel.service.api.notification_shapes import (
    LIST_DEFAULT,
    LIST_MAX,
    AttemptLine,
    CancelRequest,
    EraseRequest,
    NewNotification,
    NextStep,
    NotificationAdded,
    NotificationDecided,
    NotificationLine,
    NotificationPage,
    NotificationReport,
    NotificationResent,
    NotificationStatus,
    RecipientErased,
    ResendRequest,
    ResolveRequest,
)
from semel.service.api.requests import (
    Credential,
    check_filled_in,
    flag,
    kept,
    may,
    ms_of,
    query,
    read,
    read_key,
    time_text,
    told,
)
from semel.values.delivery_state import LIVE, STATES, ProviderAccess
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import Guard, Notification, matching_note
from semel.values.outbox import (
    MAY_SEND,
    Attempt,
    Decision,
    NotificationQuery,
    NotificationView,
    Status,
    UpcomingStep,
    coming,
)
from semel.values.redaction import Hider, masked_content, masked_recipient, without

# A notification as it is told outside: masked, unless somebody who may see it has asked for it.


def line(shown: NotificationView, revealed: bool) -> NotificationLine:
    return NotificationLine(**_told(shown, revealed, Hider(shown.notification)))


def report(shown: NotificationView, revealed: bool, now_ms: int) -> NotificationReport:
    hider = Hider(shown.notification)
    attempts = [_attempt(one, hider, revealed) for one in shown.attempts]
    return NotificationReport(**_told(shown, revealed, hider), attempts=attempts, next=_next(coming(shown, now_ms)))


def _next(next: UpcomingStep | None) -> NextStep | None:
    if next is None:
        return None
    return NextStep(
        exit=next.exit,
        at=time_text(next.at_ms) if next.at_ms else "",
        under_way=next.under_way,
        policy=next.policy or "",
        policy_at=time_text(next.policy_ms) if next.policy_ms else "",
    )


def _told(shown: NotificationView, revealed: bool, hider: Hider) -> dict[str, Any]:
    one = shown.notification
    return {
        "id": shown.id,
        "state": shown.state,
        "reason": shown.reason if revealed else hider.hidden(shown.reason),
        "key": one.key if revealed else without(one.key, one.recipient),
        "kind": one.kind,
        "recipient": one.recipient if revealed else masked_recipient(one.recipient),
        "channel": one.channel,
        "generation": one.generation,
        "content": masked_content(one),
        "provider": shown.provider,
        "priority": one.priority,
        "not_after": "" if one.not_after is None else time_text(ms_of(one.not_after)),
        "added": time_text(shown.added_ms),
        "changed": time_text(shown.changed_ms),
        "possible_duplicates": shown.possible_duplicates,
        "suppressed_by": shown.suppressed_by,
        "erased": shown.erased,
        "revealed": _all_of(shown) if revealed and not shown.erased else None,
    }


def _all_of(shown: NotificationView) -> dict[str, Any]:
    """What was asked for, in the names of the request."""
    asked = asdict(shown.notification)
    for name in ("tenant", "generation"):
        del asked[name]
    builtins: dict[str, Any] = msgspec.to_builtins(asked)
    return builtins


def _attempt(one: Attempt, hider: Hider, revealed: bool) -> AttemptLine:
    return AttemptLine(
        number=one.number,
        provider=one.provider,
        outcome=one.outcome,
        at=time_text(one.ended_ms) if one.ended_ms else "",
        crossed=time_text(one.crossed_ms) if one.crossed_ms else "",
        evidence=one.evidence if revealed else hider.hidden(one.evidence),
        reference=one.reference if revealed else hider.hidden(one.reference),
        by=one.by,
    )


# Pages of notifications, the newest first.
#
# A page continues behind the last notification of the page before: its time and its id are the cursor. So nothing is
# repeated and nothing is left out, whatever is added meanwhile.

TEXTS = ("recipient", "kind", "key", "provider")
FILTERS = ("state", *TEXTS)
QUERIES = (*FILTERS, "possible_duplicates", "since", "until", "after", "limit", "reveal")
CURSOR_PATTERN = re.compile("[0-9a-f]{12}-[0-9a-f]{32}")  # of `next`: milliseconds and an id
PAGE_MAX_BYTES = 2 * 1024 * 1024  # of contents: what is made of them in memory is several times as large


async def page(
    outbox: Notifications, tenant: str, asked: Mapping[str, str], line: Callable[[NotificationView], NotificationLine]
) -> Response:
    """One page, bounded by rows and by bytes. It is masked and written in a thread: other requests do not wait."""
    sought = sought_in(tenant, asked)
    found = await outbox.find(replace(sought, limit=sought.limit + 1))
    return await asyncio.to_thread(_written, found, sought, line)


def _written(
    found: Sequence[NotificationView], sought: NotificationQuery, line: Callable[[NotificationView], NotificationLine]
) -> Response:
    shown = found[: sought.limit]
    has_more = len(found) > sought.limit or sum(one.size for one in found) > PAGE_MAX_BYTES
    next = f"{shown[-1].added_ms:012x}-{shown[-1].id}" if has_more else None
    return told(NotificationPage([line(one) for one in shown], next))


def sought_in(tenant: str, asked: Mapping[str, str]) -> NotificationQuery:
    """What is asked for, in the words of the outbox."""
    if (state := asked.get("state")) is not None and state not in STATES:
        raise MalformedEvent(f"state: expected one of {', '.join(STATES)}")
    until_ms, after_id = _cursor(asked["after"]) if "after" in asked else (_time(asked, "until"), None)
    return NotificationQuery(
        tenant=tenant,
        **{name: asked[name] for name in FILTERS if name in asked},
        possible_duplicates=flag(asked, "possible_duplicates"),
        since_ms=_time(asked, "since") or 0,
        until_ms=until_ms,
        after_id=after_id,
        limit=_limit(asked),
        bytes_max=PAGE_MAX_BYTES,
    )


def _limit(asked: Mapping[str, str]) -> int:
    text = asked.get("limit", str(LIST_DEFAULT))
    if not (text.isascii() and text.isdecimal() and len(text) <= 6 and 1 <= int(text) <= LIST_MAX):
        raise MalformedEvent(f"limit: expected a whole number, 1 to {LIST_MAX:,}")
    return int(text)


def _cursor(text: str) -> tuple[int, bytes]:
    """`next` of another page: the time and the id of its last notification."""
    if not CURSOR_PATTERN.fullmatch(text):
        raise MalformedEvent("after: expected `next` of another page")
    at, _, id = text.partition("-")
    return int(at, 16), bytes.fromhex(id)


def _time(asked: Mapping[str, str], name: str) -> int | None:
    if name not in asked:
        return None
    try:
        return ms_of(datetime.fromisoformat(asked[name]))
    except (ValueError, TypeError):  # TypeError: it has no zone
        like = "2026-03-19T22:04:48.123Z"
        raise MalformedEvent(f"{name}: expected a time with its zone, as {like} (for + write %2B)") from None


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
        answer = NotificationAdded(added.id, added.status, added.state)
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
        asked = await self._read(request, ResolveRequest)
        return await self._decide(who, Decision(id, asked.resolution, kept(asked.reason), who.name))

    async def cancel(self, request: Request) -> Response:
        who, id = may(request, "operate"), _id(request)
        asked = await self._read(request, CancelRequest)
        return await self._decide(who, Decision(id, "cancelled", kept(asked.reason), who.name))

    async def resend(self, request: Request) -> Response:
        who, id = may(request, "operate"), _id(request)
        asked = await self._read(request, ResendRequest)
        self._check_access((await self._known(id, who.tenant)).notification)
        again = await resend(self.outbox, id, kept(asked.reason), who.name, tenant=who.tenant)
        if again.status == "missing":
            raise _unknown()
        if again.status == "refused":
            return refusal(409, f"it cannot be sent again: {again.reason}", id=again.id, state=again.state)
        answer = NotificationResent(again.id, again.status, again.state, again.generation)
        return told(answer, 201 if again.status == "added" else 200, _where(again.id))

    async def erase(self, request: Request) -> Response:
        who = may(request, "operate")
        asked = await self._read(request, EraseRequest)
        _check_texts(recipient=asked.recipient)
        erased = await self.outbox.erase(who.tenant, asked.recipient, kept(asked.reason), who.name)
        left = 0
        for state in LIVE:
            sought = NotificationQuery(tenant=who.tenant, recipient=asked.recipient, state=state, limit=LEFT_MAX)
            left += len([one for one in await self.outbox.find(sought) if not one.erased])
        return told(RecipientErased(erased, left))

    async def _decide(self, who: Credential, decision: Decision) -> Response:
        await self._known(decision.id, who.tenant)  # the tenant is a part of the id: it stays this one's
        state = await self.outbox.decide(decision)
        if state is None:
            now = await self._known(decision.id, who.tenant)
            if not _said_before(now, decision):
                detail = f"{decision.says.replace('_', ' ')} cannot be said of it now: it is {now.state}"
                return refusal(409, f"{detail}. Nothing was written", id=now.id, state=now.state)
            state = now.state
        return told(NotificationDecided(decision.id.hex(), state))

    async def _read(self, request: Request, shape: type[Asked]) -> Asked:
        return await read(request, shape, self.body_max, self.read_timeout)

    def _check_access(self, notification: Notification) -> None:
        if reason := self.access.refusal(notification):
            raise Refused(403, f"{reason}. Nothing was added")

    async def _known(self, id: bytes, tenant: str) -> NotificationView:
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


def _status(status: Status, shown: NotificationView | None, note: str) -> NotificationStatus:
    """Without the notification, nothing of what was said of it can be shown."""
    hider = None if shown is None else Hider(shown.notification)
    return NotificationStatus(
        status=status.told,
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


def _said_before(now: NotificationView, decision: Decision) -> bool:
    """The answer to the same call may have been lost."""
    said = (decision.says, decision.reason, decision.by)
    return any((one.outcome, one.evidence, one.by) == said for one in now.attempts)
