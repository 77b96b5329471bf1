"""Many questions at once, each with its own requests: together where they have nothing in common, else in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from secrets import token_bytes
from typing import Any, NamedTuple, TypeVar

from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Request
from semel.ledgers.dynamodb.items import Item, Tokens
from semel.ports import Clock
from semel.values.claim import Claim, Granted, Lease, Settlement, Verdict
from semel.values.claim_rules import Grant, Known, State, judge
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.retry import backoff_s

Q = TypeVar("Q")
A = TypeVar("A")


async def in_turns(
    questions: Sequence[Q], keys: Callable[[Q], Iterable[bytes]], ask: Callable[[Q], Coroutine[Any, Any, A]]
) -> list[A | BaseException]:
    """An answer, or what was raised, for each. Those that share a key are asked one after the other."""
    answers: list[Any] = [None] * len(questions)
    for turn in _turns([keys(question) for question in questions]):
        said = await asyncio.gather(*[ask(questions[at]) for at in turn], return_exceptions=True)
        for at, answer in zip(turn, said, strict=True):
            answers[at] = answer
    return answers


def all_or_raise(answers: Sequence[A | BaseException]) -> list[A]:
    """What was raised by one is raised for all: nobody is answered for a batch that is not."""
    for answer in answers:
        if isinstance(answer, BaseException):
            raise answer
    return [answer for answer in answers if not isinstance(answer, BaseException)]


def _turns(keys: Sequence[Iterable[bytes]]) -> list[list[int]]:
    """Each question in the first turn after all earlier ones that share a key with it."""
    free_in: dict[bytes, int] = {}
    turns: list[list[int]] = []
    for at, mine in enumerate(keys):
        mine = list(mine)
        turn = max(free_in.get(key, 0) for key in mine)
        if turn == len(turns):
            turns.append([])
        turns[turn].append(at)
        for key in mine:
            free_in[key] = turn + 1
    return turns


# Claims. What `semel.values.claim_rules` judges is written only if nothing it was judged by has changed meanwhile.
#
# one key                    PutItem if nothing is there ── done ─────────────────────────────────► Granted
#                                └─ refused, with what is there ── judge ── a refusal ────────────► Settled, Busy, …
#                                       ▲                             └─ a grant: PutItem over that very version
#                                       └──────── refused, with what is there now ─────┘
# with aliases or subject    read all of them, judge, write all of them at the versions that were read; again if not so

TURNS = 60  # each turn that is lost was won by somebody else; so many in a row means that something is broken
NONCE_BYTES = 12
PAUSE_S = 0.005
PAUSE_CAP_S = 0.25


class Claims:
    """Asks for one claim at a time."""

    def __init__(self, client: DynamoClient, clock: Clock, tokens: Tokens, margin_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._tokens = tokens
        self._margin_ms = margin_ms

    async def one(self, claim: Claim) -> Verdict:
        together = claim.aliases or claim.order is not None
        return await (self._together(claim) if together else self._alone(claim))

    async def _alone(self, claim: Claim) -> Verdict:
        old: Item | None = None
        for turn in range(TURNS):
            now = self._clock()
            nonce = token_bytes(NONCE_BYTES)
            verdict, grant = self._judge(claim, {} if old is None else {claim.digest: old}, None, now)
            if grant is None:
                return verdict
            item = items.leased(claim.digest, claim, grant.known, nonce, old, now)
            over = None if old is None else items.version(old)
            refused = await self._client.write("put_item", expressions.put(self._client.table, item, over))
            if refused is None:
                return verdict
            (old,) = refused.stored
            if old is not None and old.get("nonce") == nonce:
                return verdict  # the reply was lost, the write was not
            if turn:
                await _pause(turn)
        raise self._unsettled(claim)

    async def _together(self, claim: Claim) -> Verdict:
        keys = [items.key_of(digest) for digest in items.digests_of(claim)]
        if claim.order is not None:
            keys.append(items.subject_of(claim.order.subject))
        nonce = token_bytes(NONCE_BYTES)
        attempt_log: dict[int, Verdict] = {}
        for turn in range(TURNS):
            found = await self._client.get(keys)
            mine = found.get((claim.digest, items.KEY))
            if mine is not None and mine.get("nonce") == nonce and mine["token"] in attempt_log:
                return attempt_log[mine["token"]]
            known = {digest: item for (digest, kind), item in found.items() if kind == items.KEY}
            subject = None if claim.order is None else found.get((claim.order.subject, items.SUBJECT))
            now = self._clock()
            verdict, grant = self._judge(claim, known, subject, now)
            if grant is None:
                return verdict
            attempt_log[grant.lease.token] = verdict
            refused = await self._client.write_together(self._writes(claim, grant, known, subject, nonce, now))
            if refused is None:
                return verdict
            await _pause(turn)
        raise self._unsettled(claim)

    def _judge(
        self, claim: Claim, found: dict[bytes, Item], subject: Item | None, now: int
    ) -> tuple[Verdict, Grant | None]:
        known: dict[bytes, Known] = {}
        for digest, item in found.items():
            if (one := items.known_of(item, self._margin_ms)) is not None:
                known[digest] = one
        subjects = {}
        if claim.order is not None and subject is not None:
            one_subject = subjects[claim.order.subject] = items.subject_known(subject)
            holder = items.holder_of(subject, self._margin_ms)
            if one_subject.holder is not None and holder is not None:
                known.setdefault(one_subject.holder, holder)
        seen = [*found.values(), *([subject] if subject is not None else [])]
        above = max([item["token"] for item in seen], default=0)
        (verdict,), grants = judge([claim], known, subjects, now, lambda: self._tokens.next(now, above))
        return verdict, grants[0] if grants else None

    def _writes(
        self, claim: Claim, grant: Grant, known: dict[bytes, Item], subject: Item | None, nonce: bytes, now: int
    ) -> list[tuple[str, Request]]:
        table = self._client.table
        writes: list[tuple[str, Request]] = []
        for digest in items.digests_of(claim):
            old = known.get(digest)
            item = items.leased(digest, claim, grant.known, nonce, old, now)
            writes.append(("Put", expressions.put(table, item, None if old is None else items.version(old))))
        if claim.order is not None:
            item = items.held(claim, grant.lease.token, grant.known.until_ms, subject)
            over = None if subject is None else items.version(subject)
            writes.append(("Put", expressions.put(table, item, over)))
        return writes

    def _unsettled(self, claim: Claim) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"{self._client.address}: the key {claim.digest.hex()} changed {TURNS} times while it was being claimed; "
            "it will be tried again"
        )


async def _pause(turn: int) -> None:
    """Racers step aside for a moment that is different for each, so that one of them gets through."""
    await asyncio.sleep(backoff_s(turn, random.random, PAUSE_S, PAUSE_CAP_S))


def granted_among(verdicts: list[Verdict | BaseException]) -> list[Granted]:
    return [verdict for verdict in verdicts if isinstance(verdict, Granted)]


# Settles and renewals: the token is in the condition of every write, so whoever holds an old one changes nothing.

SETTLE_TURNS = 60


class Plan(NamedTuple):
    """What a settle comes to by what is known now: an answer, or writes that make it true."""

    answer: bool | None
    writes: list[tuple[str, Request]]


class Settles:
    """Ends or renews one lease at a time."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    # ------------------------------------------------------------------------------------------------------ settle

    async def one(self, settlement: Settlement) -> bool:
        claim = settlement.lease.claim
        if claim.aliases or claim.order is not None or not isinstance(settlement.outcome, Done | Retry):
            return await self._together(settlement)
        sets = ending(settlement.outcome, claim.retention_ms, self._clock())
        request = expressions.update(self._client.table, items.key_of(claim.digest), sets, holding(settlement.lease))
        refused = await self._client.write("update_item", request)
        return refused is None or settled_before(settlement, refused.stored[0])

    async def _together(self, settlement: Settlement) -> bool:
        """Read all items of the lease, and write them at the versions that were read."""
        for turn in range(SETTLE_TURNS):
            plan = await self.plan(settlement)
            if plan.answer is not None:
                return plan.answer
            ((kind, request), *others) = plan.writes
            if not others:
                refused = await self._client.write(f"{kind.lower()}_item", request)
            else:
                refused = await self._client.write_together(plan.writes)
            if refused is None:
                return True
            await asyncio.sleep(backoff_s(turn, random.random, PAUSE_S, PAUSE_CAP_S))
        raise LedgerUnavailable(
            f"{self._client.address}: the key {settlement.lease.claim.digest.hex()} changed {SETTLE_TURNS} times "
            "while it was being settled; it will be tried again"
        )

    async def plan(self, settlement: Settlement, nonce: bytes | None = None) -> Plan:
        """The writes of a settle, by a consistent read of everything that it concerns."""
        lease, outcome = settlement.lease, settlement.outcome
        claim, now = lease.claim, self._clock()
        found = await self._client.get(_keys(claim))
        own = found.get((claim.digest, items.KEY))
        if own is None or not is_held(own, lease):
            return Plan(settled_before(settlement, own), [])
        keys = [found.get((digest, items.KEY)) for digest in items.digests_of(claim)]
        held = [item for item in keys if item is not None and is_held(item, lease)]
        if len(held) < len(keys):
            return Plan(False, [])  # under an alias it is the same effect, and someone else has it now
        table = self._client.table
        if isinstance(outcome, Release):
            writes = [("Put", expressions.put(table, items.given_back(i, now), items.version(i))) for i in held]
        else:
            retention = _retentions(claim, outcome)
            writes = [
                (
                    "Update",
                    expressions.update(
                        table,
                        items.key_of(item["pk"]),
                        ending(outcome, retention[item["pk"]], now) | {"nonce": nonce},
                        holding(lease),  # and not the version: a heartbeat may renew it meanwhile
                    ),
                )
                for item in held
            ]
        if isinstance(outcome, Reject | Uncertain):
            writes.append(("Put", expressions.put(table, items.dead_letter(settlement, own, now), None)))
        if claim.order is not None:
            old = found.get((claim.order.subject, items.SUBJECT))
            subject = items.left(claim, lease.token, old, now, applied=isinstance(outcome, Done))
            if subject is not None:
                over = None if old is None else items.version(old)
                writes.append(("Put", expressions.put(table, subject, over)))
        return Plan(None, writes)

    # ------------------------------------------------------------------------------------------------------- renew

    async def renew(self, lease: Lease) -> bool:
        claim, table = lease.claim, self._client.table
        until = self._clock() + claim.lease_ms
        requests = [
            expressions.update(table, items.key_of(digest), {"until": until}, holding(lease))
            for digest in items.digests_of(claim)
        ]
        if claim.order is not None:
            subject = items.subject_of(claim.order.subject)
            mine = {"token": lease.token}
            requests.append(expressions.update(table, subject, {"held": until}, mine, present=["holder"]))
        if len(requests) == 1:
            return await self._client.write("update_item", requests[0]) is None
        return await self._client.write_together([("Update", request) for request in requests]) is None


def ending(outcome: Ending, retention_ms: int, now: int) -> Item:
    """What an outcome changes of a key's item."""
    match outcome:
        case Done() | Reject() | Uncertain():
            return items.settled(outcome, retention_ms, now)
        case Retry():
            return items.waiting(outcome.after, outcome.reason, retention_ms, now)
    raise TypeError(f"{outcome!r} does not end a lease")


def holding(lease: Lease) -> dict[str, Any]:
    """What is so while a lease is somebody's."""
    return {"token": lease.token, "state": int(State.LEASED)}


def is_held(item: Item, lease: Lease) -> bool:
    return bool(item["token"] == lease.token and item["state"] == State.LEASED)


def settled_before(settlement: Settlement, item: Item | None) -> bool:
    """A lost reply was followed by a repetition: the token has ended before, with this outcome."""
    lease, outcome = settlement.lease, settlement.outcome
    if item is None:
        return False
    if isinstance(outcome, Release):
        return bool(item["token"] == lease.token + 1 and "back" in item)
    if item["token"] != lease.token:
        return False
    if isinstance(outcome, Retry):
        return bool(item["state"] == State.WAITING)
    return item["state"] == State.SETTLED and items.dump_outcome(outcome) == items.dump_outcome(items.outcome_of(item))


def _keys(claim: Claim) -> list[Item]:
    keys = [items.key_of(digest) for digest in items.digests_of(claim)]
    return keys if claim.order is None else [*keys, items.subject_of(claim.order.subject)]


def _retentions(claim: Claim, outcome: Ending) -> dict[bytes, int]:
    """Of each key. Aliases have their own once something is final."""
    if isinstance(outcome, Retry):
        return dict.fromkeys(items.digests_of(claim), claim.retention_ms)
    return {alias.digest: alias.retention_ms for alias in claim.aliases} | {claim.digest: claim.retention_ms}
