"""/v1/notifications: create notifications, look them up, and record the decisions of operators.

The tenant of every request is the token's. A notification of another tenant is not found.
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
from starlette.requests import Request
from starlette.responses import Response

from semel.core.resend import resend
from semel.ports import StoredOutbox
from semel.service.api.claim_shapes import KEY_PATTERN
from semel.service.api.errors import Refused, refusal
from semel.service.api.notification_shapes import (
    LIST_DEFAULT,
    LIST_MAX,
    PRINTABLE,
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
from semel.service.api.openapi import Parameter
from semel.service.api.requests import (
    Credential,
    check_filled_in,
    flag,
    json_response,
    may,
    ms_of,
    query,
    read,
    read_key,
    shortened,
    time_text,
)
from semel.values.delivery_state import LIVE, STATES, ProviderAccess
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import TEXT_MAX, Guard, Notification, matching_note
from semel.values.outbox import MAY_SEND, Decision, NotificationQuery, NotificationView, Status, coming
from semel.values.redaction import Hider, masked_content, masked_recipient, without

NO_OUTBOX = "this ledger has no outbox; use sqlite or postgresql (docs/ledgers.md)"
PAGES_AT_A_TIME = 4  # each may hold contents of some MB, and the response made of them
LEFT_MAX = 1_000  # notifications per state that a response counts
PAGE_MAX_BYTES = 2 * 1024 * 1024  # of contents: the response needs several times as much memory
CURSOR_PATTERN = re.compile("[0-9a-f]{12}-[0-9a-f]{32}")  # of `next`: milliseconds and an id

_TEXT = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX, "pattern": PRINTABLE}
_FLAG = {"type": "string", "enum": ["true", "false"]}
_TIME = {"type": "string", "format": "date-time"}
_LIMIT = {"type": "integer", "minimum": 1, "maximum": LIST_MAX, "default": LIST_DEFAULT}

KEY_HEADER = Parameter(
    "Idempotency-Key",
    "header",
    "The key, if it is not in the body: a structured-field string in quotes, or the plain key.",
    _TEXT,
)
STATUS_QUERY = (
    Parameter("recipient", "query", "As in the notification; write + as %2B.", _TEXT),
    Parameter("kind", "query", "With recipient. By default any kind.", _TEXT),
    Parameter("key", "query", "Without recipient and kind.", _TEXT),
)
SHOW_QUERY = (Parameter("reveal", "query", "Show recipient and content.", _FLAG),)
_TEXT_FILTERS = (
    Parameter("recipient", "query", "Only this recipient; write + as %2B.", _TEXT),
    Parameter("kind", "query", "Only this kind.", _TEXT),
    Parameter("key", "query", "Only this key.", _TEXT),
    Parameter("provider", "query", "Only notifications that this provider has, or had last.", _TEXT),
)
LIST_QUERY = (
    Parameter("state", "query", "Only this state.", {"type": "string", "enum": list(STATES)}),
    *_TEXT_FILTERS,
    Parameter("possible_duplicates", "query", "Only notifications that may have been sent twice.", _FLAG),
    Parameter("since", "query", "Added then or later.", _TIME),
    Parameter("until", "query", "Added before.", _TIME),
    Parameter(
        "after", "query", "`next` of the previous page.", {"type": "string", "pattern": f"^{CURSOR_PATTERN.pattern}$"}
    ),
    Parameter("limit", "query", "The maximum number of items.", _LIMIT),
    *SHOW_QUERY,
)

RequestBody = TypeVar("RequestBody")


async def no_outbox(_: Request) -> NoReturn:
    raise Refused(501, NO_OUTBOX)


class NotificationEndpoints(Struct, frozen=True):
    """The handlers of /v1/notifications."""

    outbox: StoredOutbox
    body_max: int
    read_timeout: float
    access: ProviderAccess = ProviderAccess()
    pages: asyncio.Semaphore = msgspec.field(default_factory=lambda: asyncio.Semaphore(PAGES_AT_A_TIME))

    async def create(self, request: Request, credential: Credential) -> Response:
        key_header = _key_header(request)
        new = await self._read(request, NewNotification)
        notification = _notification(new, credential.tenant, _key(new.key, key_header))
        check_filled_in("key", notification.key)
        check_filled_in("kind", notification.kind)
        check_filled_in("recipient", notification.recipient)
        self._check_access(notification)
        (added,) = await self.outbox.add([notification])
        if added.status == "conflict":
            detail = "a notification with this identity and another content exists. The first one is unchanged"
            return refusal(422, detail, id=added.id, state=added.state)
        answer = NotificationAdded(added.id, added.status, added.state)
        return json_response(answer, 201 if added.status == "added" else 200, _location(added.id))

    async def status(self, request: Request, credential: Credential) -> Response:
        parameters = query(request, [parameter.name for parameter in STATUS_QUERY])
        if ("key" in parameters) == ("recipient" in parameters) or ("key" in parameters and "kind" in parameters):
            raise MalformedEvent("look up by recipient, by recipient and kind, or by key")
        _check_texts(**parameters)
        status = await self.outbox.status(credential.tenant, **parameters)
        # Evidence and reference come from the provider: they may name the customer, and quote the message.
        has_evidence = bool(status.evidence or status.reference)
        view = await self.outbox.show(bytes.fromhex(status.id)) if has_evidence else None
        note = matching_note(parameters["recipient"]) if "recipient" in parameters else ""
        return json_response(await asyncio.to_thread(_status, status, view, note))

    async def list(self, request: Request, credential: Credential) -> Response:
        parameters = query(request, [parameter.name for parameter in LIST_QUERY])
        revealed = _revealed(request, parameters)
        texts = [parameter.name for parameter in _TEXT_FILTERS]
        _check_texts(**{name: parameters[name] for name in texts if name in parameters})
        async with self.pages:
            wanted = notification_query(credential.tenant, parameters)
            views = await self.outbox.find(replace(wanted, limit=wanted.limit + 1))
            # Masked and encoded in a thread, so that other requests do not wait.
            return await asyncio.to_thread(page_response, views, wanted, lambda view: line(view, revealed))

    async def show(self, request: Request, credential: Credential) -> Response:
        id = _id(request)
        revealed = _revealed(request, query(request, [parameter.name for parameter in SHOW_QUERY]))
        view = await self._find(id, credential.tenant)
        return json_response(await asyncio.to_thread(report, view, revealed, time.time_ns() // 1_000_000))

    async def resolve(self, request: Request, credential: Credential) -> Response:
        id, decision = _id(request), await self._read(request, ResolveRequest)
        return await self._decide(id, decision.resolution, decision.reason, credential)

    async def cancel(self, request: Request, credential: Credential) -> Response:
        id, decision = _id(request), await self._read(request, CancelRequest)
        return await self._decide(id, "cancelled", decision.reason, credential)

    async def resend(self, request: Request, credential: Credential) -> Response:
        id, wanted = _id(request), await self._read(request, ResendRequest)
        self._check_access((await self._find(id, credential.tenant)).notification)
        again = await resend(self.outbox, id, shortened(wanted.reason), credential.name, tenant=credential.tenant)
        if again.status == "missing":
            raise _unknown()
        if again.status == "refused":
            return refusal(409, f"it cannot be sent again: {again.reason}", id=again.id, state=again.state)
        answer = NotificationResent(again.id, again.status, again.state, again.generation)
        return json_response(answer, 201 if again.status == "added" else 200, _location(again.id))

    async def erase(self, request: Request, credential: Credential) -> Response:
        wanted, tenant = await self._read(request, EraseRequest), credential.tenant
        _check_texts(recipient=wanted.recipient)
        erased = await self.outbox.erase(tenant, wanted.recipient, shortened(wanted.reason), credential.name)
        left = 0
        for state in LIVE:
            live = NotificationQuery(tenant=tenant, recipient=wanted.recipient, state=state, limit=LEFT_MAX)
            left += len([view for view in await self.outbox.find(live) if not view.erased])
        return json_response(RecipientErased(erased, left))

    async def _decide(self, id: bytes, resolution: Any, reason: str, credential: Credential) -> Response:
        decision = Decision(id, resolution, shortened(reason), credential.name)
        await self._find(id, credential.tenant)  # the id contains the tenant, so the tenant cannot change after this
        state = await self.outbox.decide(decision)
        if state is None:
            view = await self._find(id, credential.tenant)
            # The response to an earlier, equal call may have been lost.
            same = (decision.resolution, decision.reason, decision.by)
            if not any((attempt.outcome, attempt.evidence, attempt.by) == same for attempt in view.attempts):
                detail = f"the notification is {view.state}, so it cannot be recorded as {resolution.replace('_', ' ')}"
                return refusal(409, f"{detail}. Nothing was written", id=view.id, state=view.state)
            state = view.state
        return json_response(NotificationDecided(id.hex(), state))

    async def _read(self, request: Request, shape: type[RequestBody]) -> RequestBody:
        return await read(request, shape, self.body_max, self.read_timeout)

    def _check_access(self, notification: Notification) -> None:
        if reason := self.access.refusal(notification):
            raise Refused(403, f"{reason}. Nothing was added")

    async def _find(self, id: bytes, tenant: str) -> NotificationView:
        view = await self.outbox.show(id)
        if view is None or view.notification.tenant != tenant:
            raise _unknown()
        return view


# -------------------------------------------------------------------------------------------------------- requests


def _id(request: Request) -> bytes:
    id = request.path_params["id"]
    if not KEY_PATTERN.fullmatch(id):
        raise Refused(400, "an id is 32 hexadecimal digits, in lower case")
    return bytes.fromhex(id)


def _unknown() -> Refused:
    return Refused(404, "unknown notification")


def _key_header(request: Request) -> str | None:
    """The key in the header, if there is one."""
    values = [value for name, value in request.scope["headers"] if name == b"idempotency-key"]
    if len(values) > 1:
        raise MalformedEvent("Idempotency-Key: repeated; send it once")
    return read_key(values[0]) if values else None


def _key(in_body: str | None, in_header: str | None) -> str:
    """The caller's key. Semel never makes one up: a repeated call could not be recognised."""
    if in_body is None and in_header is None:
        raise MalformedEvent("key: missing, here and in Idempotency-Key; it names the fact of your business")
    if in_body is not None and in_header is not None and in_body != in_header:
        raise MalformedEvent("key: not the same as Idempotency-Key")
    return (in_body if in_body is not None else in_header) or ""


def _notification(new: NewNotification, tenant: str, key: str) -> Notification:
    fields = {**asdict(new), "key": key, "tenant": tenant, "priority": int(new.priority)}
    fields["guard"] = None if new.guard is None else Guard(**asdict(new.guard))
    try:
        notification = Notification(**fields)
        notification.content  # noqa: B018 - a content that cannot be stored is refused here
    except ConfigError as error:
        raise MalformedEvent(str(error)) from None
    return notification


def _check_texts(recipient: str = "?", kind: str = "?", key: str = "?", provider: str = "?") -> None:
    """Refuse values that no notification can have. Otherwise the answer to a misspelled look-up would be "never"."""
    try:
        Notification(recipient=recipient, kind=kind, key=key, provider=provider, channel="event", body="?")
    except ConfigError as error:
        raise MalformedEvent(str(error)) from None


def _revealed(request: Request, parameters: Mapping[str, str]) -> bool:
    """Whether recipients and contents are shown unmasked. That needs the scope `operate`."""
    revealed = flag(parameters, "reveal")
    if revealed:
        may(request, "operate")
    return revealed


def notification_query(tenant: str, parameters: Mapping[str, str]) -> NotificationQuery:
    """The query of one page. A page continues after the last notification of the previous page: its time and its id are
    the cursor. So no notification is repeated or left out while others are added."""
    if (state := parameters.get("state")) is not None and state not in STATES:
        raise MalformedEvent(f"state: expected one of {', '.join(STATES)}")
    after_id: bytes | None = None
    if (cursor := parameters.get("after")) is None:
        until_ms = _time(parameters, "until")
    else:
        if not CURSOR_PATTERN.fullmatch(cursor):
            raise MalformedEvent("after: expected `next` of another page")
        at, _, id = cursor.partition("-")
        until_ms, after_id = int(at, 16), bytes.fromhex(id)
    limit = parameters.get("limit", str(LIST_DEFAULT))
    if not (limit.isascii() and limit.isdecimal() and len(limit) <= 6 and 1 <= int(limit) <= LIST_MAX):
        raise MalformedEvent(f"limit: expected a whole number, 1 to {LIST_MAX:,}")
    filters = ["state", *(parameter.name for parameter in _TEXT_FILTERS)]
    return NotificationQuery(
        tenant=tenant,
        **{name: parameters[name] for name in filters if name in parameters},
        possible_duplicates=flag(parameters, "possible_duplicates"),
        since_ms=_time(parameters, "since") or 0,
        until_ms=until_ms,
        after_id=after_id,
        limit=int(limit),
        bytes_max=PAGE_MAX_BYTES,
    )


def _time(parameters: Mapping[str, str], name: str) -> int | None:
    if name not in parameters:
        return None
    try:
        return ms_of(datetime.fromisoformat(parameters[name]))
    except (ValueError, TypeError):  # TypeError: it has no zone
        example = "2026-03-19T22:04:48.123Z"
        raise MalformedEvent(f"{name}: expected a time with its zone, as {example} (write + as %2B)") from None


# ------------------------------------------------------------------------------------------------------- responses


def _location(id: str) -> dict[str, str]:
    return {"Location": f"/v1/notifications/{id}"}


def page_response(
    views: Sequence[NotificationView],
    wanted: NotificationQuery,
    line: Callable[[NotificationView], NotificationLine],
) -> Response:
    """One page, bounded by rows and by bytes. `views` has one row more than the page if there are more."""
    shown = views[: wanted.limit]
    has_more = len(views) > wanted.limit or sum(view.size for view in views) > PAGE_MAX_BYTES
    next = f"{shown[-1].added_ms:012x}-{shown[-1].id}" if has_more else None
    return json_response(NotificationPage([line(view) for view in shown], next))


def line(view: NotificationView, revealed: bool) -> NotificationLine:
    return NotificationLine(**_fields(view, revealed, Hider(view.notification)))


def report(view: NotificationView, revealed: bool, now_ms: int) -> NotificationReport:
    hider = Hider(view.notification)
    attempts = [
        AttemptLine(
            number=attempt.number,
            provider=attempt.provider,
            outcome=attempt.outcome,
            at=_maybe_time(attempt.ended_ms),
            crossed=_maybe_time(attempt.crossed_ms),
            evidence=attempt.evidence if revealed else hider.hidden(attempt.evidence),
            reference=attempt.reference if revealed else hider.hidden(attempt.reference),
            by=attempt.by,
        )
        for attempt in view.attempts
    ]
    step = coming(view, now_ms)
    next = (
        None
        if step is None
        else NextStep(
            exit=step.exit,
            at=_maybe_time(step.at_ms),
            under_way=step.under_way,
            policy=step.policy or "",
            policy_at=_maybe_time(step.policy_ms),
        )
    )
    return NotificationReport(**_fields(view, revealed, hider), attempts=attempts, next=next)


def _fields(view: NotificationView, revealed: bool, hider: Hider) -> dict[str, Any]:
    """The fields of a notification: masked, unless they are revealed to an operator."""
    notification = view.notification
    return {
        "id": view.id,
        "state": view.state,
        "reason": view.reason if revealed else hider.hidden(view.reason),
        "key": notification.key if revealed else without(notification.key, notification.recipient),
        "kind": notification.kind,
        "recipient": notification.recipient if revealed else masked_recipient(notification.recipient),
        "channel": notification.channel,
        "generation": notification.generation,
        "content": masked_content(notification),
        "provider": view.provider,
        "priority": notification.priority,
        "not_after": "" if notification.not_after is None else time_text(ms_of(notification.not_after)),
        "added": time_text(view.added_ms),
        "changed": time_text(view.changed_ms),
        "possible_duplicates": view.possible_duplicates,
        "suppressed_by": view.suppressed_by,
        "erased": view.erased,
        "revealed": _request_fields(notification) if revealed and not view.erased else None,
    }


def _request_fields(notification: Notification) -> dict[str, Any]:
    """The notification in the fields of the request that created it."""
    fields = asdict(notification)
    del fields["tenant"], fields["generation"]
    builtins: dict[str, Any] = msgspec.to_builtins(fields)
    return builtins


def _status(status: Status, view: NotificationView | None, note: str) -> NotificationStatus:
    """Without the notification nothing can be masked, so evidence and reference stay empty."""
    hider = None if view is None else Hider(view.notification)
    return NotificationStatus(
        status=status.answer,
        may_send=status.answer in MAY_SEND,
        id=status.id,
        state=status.state,
        at=_maybe_time(status.at_ms),
        provider=status.provider,
        reference="" if hider is None else hider.hidden(status.reference),
        evidence="" if hider is None else hider.hidden(status.evidence),
        unsent=status.unsent,
        note=note,
    )


def _maybe_time(ms: int | None) -> str:
    return time_text(ms) if ms else ""
