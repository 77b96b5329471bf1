"""Claim, settle, renew: the engine's rules for handlers that run elsewhere.

What `core/effect_policy.py` decides around a handler's run is decided here around a client's: before it, that a key in
doubt is parked and a used-up one is dead; after it, that a retry of the last attempt is a reject.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from binascii import Error as NotBase64
from binascii import a2b_base64
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from random import Random
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from semel.ports import Ledger, Telemetry
from semel.service.api.claim_shapes import (
    ATTEMPTS_MAX,
    LEASE_MAX_S,
    LEASE_MIN_S,
    POSITION_MAX,
    BusyVerdict,
    ClaimBatch,
    ClaimItem,
    ConflictVerdict,
    DeadVerdict,
    GrantedVerdict,
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
from semel.service.api.requests import kept
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

# A lease as a client carries it: one opaque text.
#
# It holds everything that a `Lease` is rebuilt from, except the tenant, which is the credential's. So it is neither
# secret nor signed: whoever forges one reaches keys of their own tenant only, which they may claim anyway, and of those
# only such as they know the current token of.

TOKEN_MAX = 2**63 - 1  # stores count in 64 bits


class Ticket(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What the text says. The claim is made from it when it is asked and again when it is settled: it cannot differ."""

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
    # Of the grant; 0 before it. No lease has token 0: it stands for nobody, so nobody may come with it.
    token: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0
    attempt: Annotated[int, Meta(ge=1, le=TOKEN_MAX)] = 0

    def claim(self, tenant: str) -> Claim:
        """As an in-process handler of this name would make it: workers of all languages share keys."""
        namespace = Namespace(tenant, self.handler)
        parts = _parts("key", self.key)
        return Claim(
            digest=namespace.digest(parts),
            handler=_parts("handler", [self.handler])[0],
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
        """The text of a lease that was given to this claim."""
        return _text(msgspec.structs.replace(self, token=granted.lease.token, attempt=granted.attempt))

    @property
    def expires_in(self) -> float:
        return self.lease_ms / 1000

    def _order(self, namespace: Namespace) -> Order | None:
        if self.subject is None:
            return None
        position = instant_us(self.position)
        assert position is not None
        return Order(namespace.digest(("subject", *_parts("order.subject", self.subject))), position)


def ticket_for(item: ClaimItem) -> Ticket:
    """What a claim asks for."""
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
    """The ticket of a text that came from outside, or MalformedEvent. One ticket has one spelling."""
    try:
        packed = a2b_base64(text.translate(_TO_PLAIN) + "=" * (-len(text) % 4), strict_mode=True)
        ticket = _unpack(packed)
        if _text(ticket) == text:
            return ticket
    except (NotBase64, ValueError, msgspec.MsgspecError, RecursionError):
        pass  # whatever is wrong with it, there is one thing to do about it
    raise MalformedEvent("lease: this is no lease that was granted; hand it back exactly as it came")


_TO_PLAIN = str.maketrans("-_", "+/")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder(Ticket).decode


def _text(ticket: Ticket) -> str:
    return urlsafe_b64encode(_pack(ticket)).rstrip(b"=").decode()


def _listed(key: str | list[str]) -> list[str]:
    return [key] if isinstance(key, str) else key


def _parts(what: str, parts: list[str]) -> tuple[str, ...]:
    try:
        return checked(tuple(parts))
    except NoKey as error:
        raise NoKey(f"{what}: {error}") from None


FOREIGN = DecodeOptions(
    foreign=True
)  # its handler is the client's: a replay frees the key, and the client brings it again

LARGE_ITEMS = 50  # a batch that keeps an embedded store busy for longer than one commit takes
_AT_ONCE = nullcontext()

_encode = msgspec.json.Encoder().encode

Item = TypeVar("Item")
Made = TypeVar("Made")


class Asked(Struct, frozen=True):
    """One claim of a batch, and what the ledger said to it."""

    item: ClaimItem
    ticket: Ticket
    key: str
    verdict: Verdict


class Claims:
    """The leases of one ledger, as they are given to clients."""

    def __init__(self, ledger: Ledger, telemetry: Telemetry | None = None) -> None:
        self._ledger = ledger
        self._telemetry = telemetry
        self._large_turn = asyncio.Lock()

    def _turn(self, batch: Sequence[object]) -> AbstractAsyncContextManager[None]:
        """Large batches go to the store one after the other: a small request waits for one of them at most."""
        return self._large_turn if len(batch) > LARGE_ITEMS else _AT_ONCE

    async def claim(self, tenant: str, batch: ClaimBatch) -> VerdictBatch:
        """One round trip for all of them, and a second one only where something ends before it begins."""
        tickets = _each(batch.items, ticket_for)
        claims = _each(tickets, lambda ticket: ticket.claim(tenant))
        async with self._turn(claims):
            verdicts = await self._ledger.claim(claims)
        asked = [
            Asked(item, ticket, claim.digest.hex(), verdict)
            for item, ticket, claim, verdict in zip(batch.items, tickets, claims, verdicts, strict=True)
        ]
        ended = await self._end_before_they_begin(asked)
        return VerdictBatch([ended.get(index) or self._tell(one) for index, one in enumerate(asked)])

    async def settle(self, tenant: str, batch: SettleBatch) -> SettleAnswerBatch:
        tickets = _each(batch.items, lambda item: read_ticket(item.lease))
        leases = _each(tickets, lambda ticket: ticket.lease(tenant))
        settlements = [
            _settlement(lease, _ending(item, ticket), ticket.attempt, getattr(item, "event", None))
            for item, ticket, lease in zip(batch.items, tickets, leases, strict=True)
        ]
        async with self._turn(settlements):
            held = await self._ledger.settle(settlements)
        answers = [
            _settled(item, settlement.outcome) if kept else self._refuse(settlement)
            for item, settlement, kept in zip(batch.items, settlements, held, strict=True)
        ]
        return SettleAnswerBatch(answers)

    async def renew(self, tenant: str, batch: RenewBatch) -> RenewAnswerBatch:
        tickets = _each(batch.items, lambda item: read_ticket(item.lease))
        leases = _each(tickets, lambda ticket: ticket.lease(tenant))
        async with self._turn(leases):
            held = await self._ledger.renew(leases)
        return RenewAnswerBatch(
            [
                RenewAnswer(True, ticket.expires_in) if kept else RenewAnswer(False)
                for ticket, kept in zip(tickets, held, strict=True)
            ]
        )

    async def take_back(self, tenant: str, verdicts: VerdictBatch) -> None:
        """Whoever asked went away before the answer: leases go back unused. Where that fails they lapse."""
        granted = [verdict for verdict in verdicts.items if isinstance(verdict, GrantedVerdict)]
        leases = [read_ticket(verdict.lease).lease(tenant) for verdict in granted]
        try:
            await self._ledger.settle([Settlement(lease, Release()) for lease in leases])
        except LedgerUnavailable:
            return

    async def _end_before_they_begin(self, asked: Sequence[Asked]) -> dict[int, VerdictItem]:
        """Settle what was granted and must not run, and say so. The others have their leases, whatever comes of it."""
        over = dict(_over_before_run(asked))
        if not over:
            return {}
        try:
            held = await self._ledger.settle(list(over.values()))
        except LedgerUnavailable:
            held = [False] * len(over)  # it is not granted all the same, and ends with the next claim
        return {
            index: _ended(asked[index], settlement.outcome) if kept else _not_now(asked[index])
            for (index, settlement), kept in zip(over.items(), held, strict=True)
        }

    def _tell(self, asked: Asked) -> VerdictItem:
        match asked.verdict:
            case Granted() as granted:
                if self._telemetry is not None:
                    self._telemetry.granted(granted)
                return GrantedVerdict(
                    key=asked.key,
                    lease=asked.ticket.granted(granted),
                    token=granted.lease.token,
                    attempt=granted.attempt,
                    takeover=granted.takeover,
                    expires_in=asked.ticket.expires_in,
                    age=granted.age_ms / 1000,
                )
            case Settled(outcome):
                return _known(asked.key, outcome)
            case Busy(after_ms):
                return BusyVerdict(asked.key, after_ms / 1000)
            case Stale():
                return StaleVerdict(asked.key)
            case Conflict():
                return ConflictVerdict(asked.key)

    def _refuse(self, settlement: Settlement) -> SettleAnswer:
        if self._telemetry is not None:
            self._telemetry.refused(settlement.lease.claim.handler)
        return SettleAnswer(False)


# ----------------------------------------------------------------------------------------------------- before a run


def _over_before_run(asked: Sequence[Asked]) -> Iterator[tuple[int, Settlement]]:
    for index, one in enumerate(asked):
        if isinstance(one.verdict, Granted) and (ending := _before_run(one.ticket, one.verdict)) is not None:
            yield index, _settlement(one.verdict.lease, ending, one.verdict.attempt, one.item.event)


def _before_run(ticket: Ticket, granted: Granted) -> Reject | Uncertain | None:
    """Why nobody may act under this lease; None when one may."""
    if ticket.park and granted.takeover:
        return Uncertain("the holder before vanished while it may have been acting")
    if ticket.max_attempts is not None and granted.attempt > ticket.max_attempts:
        return Reject(f"gave up after {ticket.max_attempts} attempts: the last one died or lost its lease")
    return None


def _ended(asked: Asked, ending: Ending) -> VerdictItem:
    match ending:
        case Reject():
            return DeadVerdict(asked.key, ending.reason)
        case Uncertain():
            return _known(asked.key, ending)
    raise TypeError(f"{ending!r} ends nothing before it begins")


def _not_now(asked: Asked) -> BusyVerdict:
    return BusyVerdict(asked.key, asked.ticket.expires_in)


def _known(key: str, outcome: Final) -> SettledVerdict:
    match outcome:
        case Done(result):
            return SettledVerdict(key, "done", Raw(result), "")
        case Reject():
            return SettledVerdict(key, "reject", Raw(b"null"), outcome.reason)
        case Uncertain(reason):
            return SettledVerdict(key, "uncertain", Raw(b"null"), reason)


# ------------------------------------------------------------------------------------------------------ after a run


def _ending(item: SettleItem, ticket: Ticket) -> Ending:
    """How the lease is settled. The same request comes to the same ending, so that it can be repeated."""
    match item:
        case SettleDone(result=None):
            return NOTHING
        case SettleDone(result=result):
            return _done(_encode(result))
        case SettleReject(reason=reason):
            return Reject(kept(reason))
        case SettleUncertain(reason=reason):
            return Uncertain(kept(reason))
        case SettleRelease():
            return Release()
        case SettleRetry():
            reason = item.reason or "the handler asked for a retry"
            if ticket.max_attempts is not None and ticket.attempt >= ticket.max_attempts:
                return Reject(kept(f"gave up after {ticket.attempt} attempts: {reason}"))
            jitter = Random(ticket.token).random
            return Retry(backoff_s(ticket.attempt, jitter) if item.after is None else item.after, kept(reason))


def _done(result: bytes) -> Done | Reject:
    """The effect happened: a result that cannot be kept is no reason to let it happen again."""
    if len(result) <= RESULT_MAX_BYTES:
        return Done(result)
    return Reject(f"the handler ran, but its result has {len(result):,} bytes; the limit is {RESULT_MAX_BYTES:,}")


def _settlement(lease: Lease, ending: Ending, attempts: int, event: Any) -> Settlement:
    """With the event, where it is given up on or in doubt."""
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
    """Make something of each item. What is wrong with one of them is said with its place, before anything is done."""
    made: list[Made] = []
    for index, item in enumerate(items):
        try:
            made.append(make(item))
        except MalformedEvent as error:
            raise MalformedEvent(f"items[{index}].{error}") from None
    return made
