"""Claim, settle and renew for handlers that run in other processes, under the rules of the engine.

The rules of `core/effect_policy.py` apply here to the run of a client. Before the run, a key in doubt is parked, and a
key without attempts left is dead. After the run, a retry of the last attempt becomes a reject.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from starlette.requests import Request
from starlette.responses import Response

from semel.ports import Catalog, Ledger, Telemetry
from semel.service.api.claim_shapes import (
    ATTEMPTS_MAX,
    KEY_PATTERN,
    LEASE_MAX_S,
    LEASE_MIN_S,
    POSITION_MAX,
    BusyVerdict,
    ClaimBatch,
    ClaimItem,
    ConflictVerdict,
    DeadVerdict,
    GrantedVerdict,
    KeyLine,
    KeyReport,
    Name,
    Parts,
    RenewAnswer,
    RenewAnswerBatch,
    RenewBatch,
    SettleAnswer,
    SettleAnswerBatch,
    SettleBatch,
    SettleDone,
    SettledVerdict,
    SettleItem,
    SettleReject,
    SettleRelease,
    SettleRetry,
    SettleUncertain,
    StaleVerdict,
    VerdictBatch,
    VerdictItem,
)
from semel.service.api.errors import Refused
from semel.service.api.requests import Credential, json_response, read, shortened, time_text
from semel.values.claim import (
    Busy,
    Claim,
    Conflict,
    DeadLetter,
    Granted,
    Lease,
    Order,
    Settled,
    Settlement,
    Stale,
    Verdict,
)
from semel.values.errors import LedgerUnavailable, MalformedEvent, NoKey
from semel.values.event import DecodeOptions, instant_us
from semel.values.key import DIGEST_BYTES, Namespace, content_digest
from semel.values.keys import checked
from semel.values.outcome import (
    NOTHING,
    RESULT_MAX_BYTES,
    RETRY_MAX_S,
    Done,
    Ending,
    Final,
    Reject,
    Release,
    Retry,
    Uncertain,
)
from semel.values.retry import backoff_s
from semel.values.strict_json import canonical

# A client gets its lease as one opaque text.
#
# The text contains everything that a `Lease` is rebuilt from, except the tenant, which comes from the credential. So it
# is neither secret nor signed: a forged text reaches only keys of the client's own tenant, which the client may claim
# anyway, and only with their current token.

TOKEN_MAX = 2**63 - 1  # stores count in 64 bits


class Ticket(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The content of the text. Claim and settlement are both made from it, so they cannot differ."""

    version: Literal[1]
    handler: Name
    key: Parts
    lease_ms: Annotated[int, Meta(ge=int(LEASE_MIN_S * 1000), le=int(LEASE_MAX_S * 1000))]
    retention_ms: Annotated[int, Meta(ge=1000, le=int(RETRY_MAX_S * 1000))]
    fingerprint: Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)] | None
    subject: Parts | None
    position: Annotated[int, Meta(ge=-POSITION_MAX, le=POSITION_MAX)]
    park: bool
    max_attempts: Annotated[int, Meta(ge=1, le=ATTEMPTS_MAX)] | None
    # Of the grant; 0 before it. No lease has token 0, so a text with 0 is refused.
    token: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0
    attempt: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0

    def claim(self, tenant: str) -> Claim:
        """The claim that an in-process handler of this name would make: workers of all languages share keys."""
        namespace = Namespace(tenant, self.handler)
        parts = _checked_parts("key", self.key)
        return Claim(
            digest=namespace.digest(parts),
            handler=_checked_parts("handler", [self.handler])[0],
            text="|".join(filter(None, parts)),
            lease_ms=self.lease_ms,
            retention_ms=self.retention_ms,
            tenant=tenant,
            fingerprint=self.fingerprint,
            order=self._order(namespace),
            doubt_first=self.park,
        )

    def lease(self, tenant: str) -> Lease:
        return Lease(self.claim(tenant), self.token)

    def granted(self, granted: Granted) -> str:
        """The text of a lease that was granted to this claim."""
        return _text(msgspec.structs.replace(self, token=granted.lease.token, attempt=granted.attempt))

    @property
    def expires_in(self) -> float:
        return self.lease_ms / 1000

    def _order(self, namespace: Namespace) -> Order | None:
        if self.subject is None:
            return None
        position = instant_us(self.position)
        assert position is not None
        return Order(namespace.digest(("subject", *_checked_parts("order.subject", self.subject))), position)


def ticket_for(item: ClaimItem) -> Ticket:
    """The ticket of a claim that is not granted yet."""
    return Ticket(
        version=1,
        handler=item.handler,
        key=_listed(item.key),
        lease_ms=round(item.lease * 1000),
        retention_ms=round(item.retention * 1000),
        fingerprint=None if item.payload is None else content_digest(canonical(item.payload)),
        subject=None if item.order is None else _listed(item.order.subject),
        position=0 if item.order is None else int(item.order.position),
        park=item.park,
        max_attempts=None if item.max_attempts is None else int(item.max_attempts),
    )


def read_ticket(text: str) -> Ticket:
    """Decode the text of a client. Raises MalformedEvent. Each ticket has one spelling."""
    try:
        packed = a2b_base64(text.translate(_TO_PLAIN) + "=" * (-len(text) % 4), strict_mode=True)
        ticket = _unpack(packed)
        if _text(ticket) == text:
            return ticket
    except (NotBase64, ValueError, msgspec.MsgspecError, RecursionError):
        pass  # one answer for all errors
    raise MalformedEvent("lease: not a lease that was granted; send it back exactly as it was received")


_TO_PLAIN = str.maketrans("-_", "+/")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Ticket).decode


def _text(ticket: Ticket) -> str:
    return urlsafe_b64encode(_pack(ticket)).rstrip(b"=").decode()


def _listed(key: str | list[str]) -> list[str]:
    return [key] if isinstance(key, str) else key


def _checked_parts(field: str, parts: list[str]) -> tuple[str, ...]:
    try:
        return checked(tuple(parts))
    except NoKey as error:
        raise NoKey(f"{field}: {error}") from None


# The handler belongs to the client: a replay frees the key, and the client claims it again.
FOREIGN = DecodeOptions(foreign=True)

LARGE_ITEMS = 50  # a larger batch keeps an embedded store busy for longer than one commit takes
_AT_ONCE = nullcontext()

_encode = msgspec.json.Encoder().encode

Item = TypeVar("Item")
Made = TypeVar("Made")


class JudgedClaim(Struct, frozen=True):
    """One claim of a batch, with the verdict of the ledger."""

    item: ClaimItem
    ticket: Ticket
    key: str
    verdict: Verdict


class Claims:
    """Gives leases of one ledger to clients, and settles and renews them."""

    def __init__(self, ledger: Ledger, telemetry: Telemetry | None = None) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._large_turn = asyncio.Lock()

    def _turn(self, batch: Sequence[object]) -> AbstractAsyncContextManager[None]:
        """Large batches go to the store one after the other, so a small request waits for one of them at most."""
        return self._large_turn if len(batch) > LARGE_ITEMS else _AT_ONCE

    async def claim(self, tenant: str, batch: ClaimBatch) -> VerdictBatch:
        """One round trip for the batch, and a second one only if a granted claim must not run."""
        tickets = _each(batch.items, ticket_for)
        claims = _each(tickets, lambda ticket: ticket.claim(tenant))
        async with self._turn(claims):
            verdicts = await self._ledger.claim(claims)
        judged = [
            JudgedClaim(item, ticket, claim.digest.hex(), verdict)
            for item, ticket, claim, verdict in zip(batch.items, tickets, claims, verdicts, strict=True)
        ]
        ended = await self._settle_before_run(judged)
        return VerdictBatch([ended.get(index) or self._verdict(claim) for index, claim in enumerate(judged)])

    async def settle(self, tenant: str, batch: SettleBatch) -> SettleAnswerBatch:
        tickets = _each(batch.items, lambda item: read_ticket(item.lease))
        leases = _each(tickets, lambda ticket: ticket.lease(tenant))
        settlements = [
            _settlement(lease, _ending(item, ticket), ticket.attempt, _event(item))
            for item, ticket, lease in zip(batch.items, tickets, leases, strict=True)
        ]
        async with self._turn(settlements):
            held = await self._ledger.settle(settlements)
        answers = [
            _settled(item, settlement.outcome) if was_held else SettleAnswer(False)
            for item, settlement, was_held in zip(batch.items, settlements, held, strict=True)
        ]
        if self._telemetry is not None:
            for settlement, was_held in zip(settlements, held, strict=True):
                if not was_held:
                    self._telemetry.refused(settlement.lease.claim.handler)
        return SettleAnswerBatch(answers)

    async def renew(self, tenant: str, batch: RenewBatch) -> RenewAnswerBatch:
        tickets = _each(batch.items, lambda item: read_ticket(item.lease))
        leases = _each(tickets, lambda ticket: ticket.lease(tenant))
        async with self._turn(leases):
            held = await self._ledger.renew(leases)
        return RenewAnswerBatch(
            [
                RenewAnswer(True, ticket.expires_in) if was_held else RenewAnswer(False)
                for ticket, was_held in zip(tickets, held, strict=True)
            ]
        )

    async def take_back(self, tenant: str, verdicts: VerdictBatch) -> None:
        """Release the leases of a client that disconnected before the response. If that fails, they expire."""
        granted = [verdict for verdict in verdicts.items if isinstance(verdict, GrantedVerdict)]
        leases = [read_ticket(verdict.lease).lease(tenant) for verdict in granted]
        try:
            await self._ledger.settle([Settlement(lease, Release()) for lease in leases])
        except LedgerUnavailable:
            return

    async def _settle_before_run(self, judged: Sequence[JudgedClaim]) -> dict[int, VerdictItem]:
        """Settle claims that were granted and must not run. Returns their verdicts by index. The other claims keep
        their leases, even if this fails."""
        settlements: dict[int, Settlement] = {}
        for index, claim in enumerate(judged):
            if isinstance(claim.verdict, Granted) and (ending := _before_run(claim.ticket, claim.verdict)) is not None:
                lease, attempt = claim.verdict.lease, claim.verdict.attempt
                settlements[index] = _settlement(lease, ending, attempt, claim.item.event)
        if not settlements:
            return {}
        try:
            held = await self._ledger.settle(list(settlements.values()))
        except LedgerUnavailable:
            held = [False] * len(settlements)  # not granted to the client all the same: the next claim settles it
        verdicts: dict[int, VerdictItem] = {}
        for (index, settlement), was_held in zip(settlements.items(), held, strict=True):
            claim = judged[index]
            if not was_held:
                verdicts[index] = BusyVerdict(claim.key, claim.ticket.expires_in)
            elif isinstance(settlement.outcome, Reject):
                verdicts[index] = DeadVerdict(claim.key, settlement.outcome.reason)
            elif isinstance(settlement.outcome, Uncertain):
                verdicts[index] = _settled_verdict(claim.key, settlement.outcome)
        return verdicts

    def _verdict(self, claim: JudgedClaim) -> VerdictItem:
        match claim.verdict:
            case Granted() as granted:
                if self._telemetry is not None:
                    self._telemetry.granted(granted)
                return GrantedVerdict(
                    key=claim.key,
                    lease=claim.ticket.granted(granted),
                    token=granted.lease.token,
                    attempt=granted.attempt,
                    takeover=granted.takeover,
                    expires_in=claim.ticket.expires_in,
                    age=granted.age_ms / 1000,
                )
            case Settled(outcome):
                return _settled_verdict(claim.key, outcome)
            case Busy(after_ms):
                return BusyVerdict(claim.key, after_ms / 1000)
            case Stale():
                return StaleVerdict(claim.key)
            case Conflict():
                return ConflictVerdict(claim.key)


def _before_run(ticket: Ticket, granted: Granted) -> Reject | Uncertain | None:
    """The ending of a lease under which the client must not run. None: it may run."""
    if ticket.park and granted.takeover:
        return Uncertain("the previous holder vanished while it may have been acting")
    if ticket.max_attempts is not None and granted.attempt > ticket.max_attempts:
        return Reject(f"gave up after {ticket.max_attempts} attempts: the last one died or lost its lease")
    return None


def _settled_verdict(key: str, outcome: Final) -> SettledVerdict:
    match outcome:
        case Done(result):
            return SettledVerdict(key, "done", Raw(result), "")
        case Reject():
            return SettledVerdict(key, "reject", Raw(b"null"), outcome.reason)
        case Uncertain(reason):
            return SettledVerdict(key, "uncertain", Raw(b"null"), reason)


def _ending(item: SettleItem, ticket: Ticket) -> Ending:
    """The ending of a lease. It depends only on the request, so that the request can be repeated."""
    match item:
        case SettleDone(result=None):
            return NOTHING
        case SettleDone(result=result):
            encoded = _encode(result)
            if len(encoded) <= RESULT_MAX_BYTES:
                return Done(encoded)
            # The effect happened: a result that is too large must not let it happen again.
            limit = f"the limit is {RESULT_MAX_BYTES:,}"
            return Reject(f"the handler ran, but its result has {len(encoded):,} bytes; {limit}")
        case SettleReject(reason=reason):
            return Reject(shortened(reason))
        case SettleUncertain(reason=reason):
            return Uncertain(shortened(reason))
        case SettleRelease():
            return Release()
        case SettleRetry():
            reason = item.reason or "the handler asked for a retry"
            if ticket.max_attempts is not None and ticket.attempt >= ticket.max_attempts:
                return Reject(shortened(f"gave up after {ticket.attempt} attempts: {reason}"))
            jitter = Random(ticket.token).random
            return Retry(backoff_s(ticket.attempt, jitter) if item.after is None else item.after, shortened(reason))


def _event(item: SettleItem) -> Any:
    return None if isinstance(item, (SettleDone, SettleRelease)) else item.event


def _settlement(lease: Lease, ending: Ending, attempts: int, event: Any) -> Settlement:
    """The settlement, with the event if it becomes a dead letter."""
    if event is None or not isinstance(ending, (Reject, Uncertain)):
        return Settlement(lease, ending)
    return Settlement(lease, ending, DeadLetter(_encode(event), attempts, FOREIGN))


def _settled(item: SettleItem, ending: Ending) -> SettleAnswer:
    match ending:
        case Done():
            return SettleAnswer(True, "done")
        case Retry():
            return SettleAnswer(True, "retry", after=ending.after)
        case Reject():
            return SettleAnswer(True, "reject", reason="" if isinstance(item, SettleReject) else ending.reason)
        case Uncertain():
            return SettleAnswer(True, "uncertain")
        case Release():
            return SettleAnswer(True, "release")


def _each(items: Sequence[Item], make: Callable[[Item], Made]) -> list[Made]:
    """Apply `make` to each item. An error names the index of its item."""
    made: list[Made] = []
    for index, item in enumerate(items):
        try:
            made.append(make(item))
        except MalformedEvent as error:
            raise MalformedEvent(f"items[{index}].{error}") from None
    return made


class ClaimEndpoints(Struct, frozen=True):
    """The handlers of /v1/claims and /v1/keys."""

    claims: Claims
    catalog: Catalog
    body_max: int
    read_timeout: float

    async def claim(self, request: Request, credential: Credential) -> Response:
        batch = await read(request, ClaimBatch, self.body_max, self.read_timeout)
        verdicts = await self.claims.claim(credential.tenant, batch)
        if await request.is_disconnected():
            await self.claims.take_back(credential.tenant, verdicts)
        return json_response(verdicts)

    async def settle(self, request: Request, credential: Credential) -> Response:
        batch = await read(request, SettleBatch, self.body_max, self.read_timeout)
        return json_response(await self.claims.settle(credential.tenant, batch))

    async def renew(self, request: Request, credential: Credential) -> Response:
        batch = await read(request, RenewBatch, self.body_max, self.read_timeout)
        return json_response(await self.claims.renew(credential.tenant, batch))

    async def key(self, request: Request, credential: Credential) -> Response:
        key = request.path_params["key"]
        if not KEY_PATTERN.fullmatch(key):
            raise Refused(400, "a key is 32 hexadecimal digits, in lower case")
        history = [entry for entry in await self.catalog.history(key) if entry.tenant == credential.tenant]
        if not history:
            raise Refused(404, "unknown key")
        lines = [
            KeyLine(
                state=entry.state,
                reason=entry.reason,
                attempts=entry.attempts,
                at=time_text(entry.at_ms),
                generation=entry.generation,
                decision=entry.decision,
                result=Raw(entry.result or b"null"),
            )
            for entry in history
        ]
        newest = history[0]
        return json_response(KeyReport(newest.key, newest.handler, newest.text, newest.state, lines))
