"""Claims, settlements and renewals. Those without a common key run concurrently, others in order."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from secrets import token_bytes
from typing import Any, NamedTuple, TypeVar

from semel.ledgers.dynamodb import expressions, items
from semel.ledgers.dynamodb.client import DynamoClient
from semel.ledgers.dynamodb.expressions import Item, Request
from semel.ledgers.dynamodb.items import Tokens
from semel.ports import Clock
from semel.values.claim import Claim, Lease, Settlement, Verdict
from semel.values.claim_rules import Grant, KeyRecord, KeyState, judge
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.retry import backoff_s

Q = TypeVar("Q")
A = TypeVar("A")


async def run_batch(
    requests: Sequence[Q], keys: Callable[[Q], Iterable[bytes]], run: Callable[[Q], Coroutine[Any, Any, A]]
) -> list[A | BaseException]:
    """Return a result or an exception for each request. Requests with a common key run one after the other."""
    results: list[Any] = [None] * len(requests)
    for stage in _stages([keys(request) for request in requests]):
        stage_results = await asyncio.gather(*[run(requests[at]) for at in stage], return_exceptions=True)
        for at, result in zip(stage, stage_results, strict=True):
            results[at] = result
    return results


def all_or_raise(results: Sequence[A | BaseException]) -> list[A]:
    """Return the results, or raise the first exception for the whole batch."""
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]


def _stages(keys: Sequence[Iterable[bytes]]) -> list[list[int]]:
    """Put each request into the first stage after all earlier requests with a common key."""
    next_stage: dict[bytes, int] = {}
    stages: list[list[int]] = []
    for at, request_keys in enumerate(map(list, keys)):
        stage = max(next_stage.get(key, 0) for key in request_keys)
        if stage == len(stages):
            stages.append([])
        stages[stage].append(at)
        for key in request_keys:
            next_stage[key] = stage + 1
    return stages


# Claims. A grant by `semel.values.claim_rules` is written only if the items it is based on have not changed.
#
# one key                    PutItem if there is no item ── written ──────────────────────────────► Granted
#                                └─ refused, with the stored item ── judge ── no grant ───────────► Settled, Busy, …
#                                       ▲                              └─ a grant: PutItem over that version
#                                       └──────── refused, with the stored item ───────┘
# with aliases or subject    read all items, judge, write all items over the versions that were read; repeat if refused

ROUNDS_MAX = 60  # another client won each lost round; so many in a row mean that something is broken
NONCE_BYTES = 12
PAUSE_S = 0.005
PAUSE_CAP_S = 0.25


class Claimer:
    """Decides one claim at a time."""

    def __init__(self, client: DynamoClient, clock: Clock, tokens: Tokens, margin_ms: int) -> None:
        self._client = client
        self._clock = clock
        self._tokens = tokens
        self._margin_ms = margin_ms

    async def claim(self, claim: Claim) -> Verdict:
        has_several_items = claim.aliases or claim.order is not None
        return await (self._claim_several(claim) if has_several_items else self._claim_one(claim))

    async def _claim_one(self, claim: Claim) -> Verdict:
        old: Item | None = None
        for attempt in range(ROUNDS_MAX):
            now = self._clock()
            nonce = token_bytes(NONCE_BYTES)
            verdict, grant = self._judge(claim, {} if old is None else {claim.digest: old}, None, now)
            if grant is None:
                return verdict
            item = items.leased(claim.digest, claim, grant.known, nonce, old, now)
            expected = None if old is None else items.version(old)
            refused = await self._client.write("put_item", expressions.put(self._client.table, item, expected))
            if refused is None:
                return verdict
            (old,) = refused.stored
            if old is not None and old.get("nonce") == nonce:
                return verdict  # only the reply was lost
            if attempt:
                await _pause(attempt)
        raise self._undecided(claim)

    async def _claim_several(self, claim: Claim) -> Verdict:
        keys = _keys(claim)
        nonce = token_bytes(NONCE_BYTES)
        written: dict[int, Verdict] = {}  # by token
        for attempt in range(ROUNDS_MAX):
            found = await self._client.get(keys)
            own = found.get((claim.digest, items.KEY))
            if own is not None and own.get("nonce") == nonce and own["token"] in written:
                return written[own["token"]]  # only the reply was lost
            known = {digest: item for (digest, kind), item in found.items() if kind == items.KEY}
            subject = None if claim.order is None else found.get((claim.order.subject, items.SUBJECT))
            now = self._clock()
            verdict, grant = self._judge(claim, known, subject, now)
            if grant is None:
                return verdict
            written[grant.lease.token] = verdict
            refused = await self._client.write_together(self._writes(claim, grant, known, subject, nonce, now))
            if refused is None:
                return verdict
            await _pause(attempt)
        raise self._undecided(claim)

    def _judge(
        self, claim: Claim, found: dict[bytes, Item], subject: Item | None, now: int
    ) -> tuple[Verdict, Grant | None]:
        known: dict[bytes, KeyRecord] = {}
        for digest, item in found.items():
            if (state := items.known_of(item, self._margin_ms)) is not None:
                known[digest] = state
        subjects = {}
        if claim.order is not None and subject is not None:
            known_subject = subjects[claim.order.subject] = items.subject_known(subject)
            holder = items.holder_of(subject, self._margin_ms)
            if known_subject.holder is not None and holder is not None:
                known.setdefault(known_subject.holder, holder)
        stored = [*found.values(), *([subject] if subject is not None else [])]
        above = max([item["token"] for item in stored], default=0)
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
            item = items.held_subject(claim, grant.lease.token, grant.known.until_ms, subject)
            expected = None if subject is None else items.version(subject)
            writes.append(("Put", expressions.put(table, item, expected)))
        return writes

    def _undecided(self, claim: Claim) -> LedgerUnavailable:
        return LedgerUnavailable(
            f"{self._client.address}: the key {claim.digest.hex()} changed {ROUNDS_MAX} times while it was claimed; "
            "Semel will retry"
        )


async def _pause(attempt: int) -> None:
    """Wait for a random time, so that one of several concurrent clients succeeds."""
    await asyncio.sleep(backoff_s(attempt, random.random, PAUSE_S, PAUSE_CAP_S))


# Settlements and renewals: the token is in the condition of every write, so the holder of an old token changes nothing.


class SettlePlan(NamedTuple):
    """The result of a settlement by the stored items, or the writes that are needed for it."""

    result: bool | None
    writes: list[tuple[str, Request]]


class Settler:
    """Settles or renews one lease at a time."""

    def __init__(self, client: DynamoClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock

    async def settle(self, settlement: Settlement) -> bool:
        claim = settlement.lease.claim
        if claim.aliases or claim.order is not None or not isinstance(settlement.outcome, Done | Retry):
            return await self._settle_several(settlement)
        changes = outcome_changes(settlement.outcome, claim.retention_ms, self._clock())
        request = expressions.update(self._client.table, items.key_of(claim.digest), changes, held_by(settlement.lease))
        refused = await self._client.write("update_item", request)
        return refused is None or settled_before(settlement, refused.stored[0])

    async def _settle_several(self, settlement: Settlement) -> bool:
        """Read all items of the lease, and write them over the versions that were read."""
        for attempt in range(ROUNDS_MAX):
            plan = await self.plan(settlement)
            if plan.result is not None:
                return plan.result
            ((kind, request), *others) = plan.writes
            if not others:
                refused = await self._client.write(f"{kind.lower()}_item", request)
            else:
                refused = await self._client.write_together(plan.writes)
            if refused is None:
                return True
            await _pause(attempt)
        raise LedgerUnavailable(
            f"{self._client.address}: the key {settlement.lease.claim.digest.hex()} changed {ROUNDS_MAX} times "
            "while it was settled; Semel will retry"
        )

    async def plan(self, settlement: Settlement, nonce: bytes | None = None) -> SettlePlan:
        """Plan the writes of a settlement by a consistent read of its items."""
        lease, outcome = settlement.lease, settlement.outcome
        claim, now = lease.claim, self._clock()
        found = await self._client.get(_keys(claim))
        own = found.get((claim.digest, items.KEY))
        if own is None or not is_held(own, lease):
            return SettlePlan(settled_before(settlement, own), [])
        keys = [found.get((digest, items.KEY)) for digest in items.digests_of(claim)]
        held = [item for item in keys if item is not None and is_held(item, lease)]
        if len(held) < len(keys):
            return SettlePlan(False, [])  # another lease has an alias, which means the same effect
        table = self._client.table
        if isinstance(outcome, Release):
            writes = [("Put", expressions.put(table, items.released(item, now), items.version(item))) for item in held]
        else:
            retentions = _retentions(claim, outcome)
            writes = [
                (
                    "Update",
                    expressions.update(
                        table,
                        items.key_of(item["pk"]),
                        outcome_changes(outcome, retentions[item["pk"]], now) | {"nonce": nonce},
                        held_by(lease),  # not the version, because a heartbeat may renew the lease concurrently
                    ),
                )
                for item in held
            ]
        if isinstance(outcome, Reject | Uncertain):
            writes.append(("Put", expressions.put(table, items.new_dead_letter(settlement, own, now), None)))
        if claim.order is not None:
            old = found.get((claim.order.subject, items.SUBJECT))
            subject = items.settled_subject(claim, lease.token, old, now, applied=isinstance(outcome, Done))
            if subject is not None:
                expected = None if old is None else items.version(old)
                writes.append(("Put", expressions.put(table, subject, expected)))
        return SettlePlan(None, writes)

    async def renew(self, lease: Lease) -> bool:
        claim, table = lease.claim, self._client.table
        until_ms = self._clock() + claim.lease_ms
        requests = [
            expressions.update(table, items.key_of(digest), {"until_ms": until_ms}, held_by(lease))
            for digest in items.digests_of(claim)
        ]
        if claim.order is not None:
            subject = items.subject_of(claim.order.subject)
            held = {"token": lease.token}
            requests.append(expressions.update(table, subject, {"held_until_ms": until_ms}, held, present=["holder"]))
        if len(requests) == 1:
            return await self._client.write("update_item", requests[0]) is None
        return await self._client.write_together([("Update", request) for request in requests]) is None


def outcome_changes(outcome: Ending, retention_ms: int, now: int) -> Item:
    """The changes of a key's item by an outcome."""
    match outcome:
        case Done() | Reject() | Uncertain():
            return items.settled(outcome, retention_ms, now)
        case Retry():
            return items.waiting(outcome.after, outcome.reason, retention_ms, now)
    raise TypeError(f"{outcome!r} does not end a lease")


def held_by(lease: Lease) -> dict[str, Any]:
    """The condition that a lease is current."""
    return {"token": lease.token, "state": int(KeyState.LEASED)}


def is_held(item: Item, lease: Lease) -> bool:
    return bool(item["token"] == lease.token and item["state"] == KeyState.LEASED)


def settled_before(settlement: Settlement, item: Item | None) -> bool:
    """Return whether an earlier request, whose reply was lost, has settled this token with this outcome."""
    lease, outcome = settlement.lease, settlement.outcome
    if item is None:
        return False
    if isinstance(outcome, Release):
        return bool(item["token"] == lease.token + 1 and "released" in item)
    if item["token"] != lease.token:
        return False
    if isinstance(outcome, Retry):
        return bool(item["state"] == KeyState.WAITING)
    return item["state"] == KeyState.SETTLED and items.dump_outcome(outcome) == items.dump_outcome(
        items.outcome_of(item)
    )


def _keys(claim: Claim) -> list[Item]:
    keys = [items.key_of(digest) for digest in items.digests_of(claim)]
    return keys if claim.order is None else [*keys, items.subject_of(claim.order.subject)]


def _retentions(claim: Claim, outcome: Ending) -> dict[bytes, int]:
    """The retention of each key. Aliases have their own after a final outcome."""
    if isinstance(outcome, Retry):
        return dict.fromkeys(items.digests_of(claim), claim.retention_ms)
    return {alias.digest: alias.retention_ms for alias in claim.aliases} | {claim.digest: claim.retention_ms}
