"""Settles and renewals: the token is in the condition of every write, so whoever holds an old one changes nothing."""

from __future__ import annotations

import asyncio
import random
from typing import Any, NamedTuple

from semel.adapters.ledgers.dynamodb import expressions, items
from semel.adapters.ledgers.dynamodb.attributes import Item
from semel.adapters.ledgers.dynamodb.client import Client
from semel.adapters.ledgers.dynamodb.expressions import Request
from semel.ports import Clock
from semel.values.claim import Claim, Lease, Settlement
from semel.values.decision import State
from semel.values.errors import LedgerUnavailable
from semel.values.outcome import Done, Ending, Reject, Release, Retry, Uncertain
from semel.values.retry import backoff_s

TURNS = 60
PAUSE_S = 0.005
PAUSE_CAP_S = 0.25


class Plan(NamedTuple):
    """What a settle comes to by what is known now: an answer, or writes that make it true."""

    answer: bool | None
    writes: list[tuple[str, Request]]


class Settles:
    """Ends or renews one lease at a time."""

    def __init__(self, client: Client, clock: Clock) -> None:
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
        return refused is None or settled_before(settlement, refused.found[0])

    async def _together(self, settlement: Settlement) -> bool:
        """Read all items of the lease, and write them at the versions that were read."""
        for turn in range(TURNS):
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
            f"{self._client.address}: the key {settlement.lease.claim.digest.hex()} changed {TURNS} times while it was "
            "being settled; it will be tried again"
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
            writes.append(("Put", expressions.put(table, items.letter(settlement, own, now), None)))
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
