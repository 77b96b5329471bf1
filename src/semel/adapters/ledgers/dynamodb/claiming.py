"""Claims. What `semel.values.decision` judges is written only if nothing it was judged by has changed meanwhile.

one key                    PutItem if nothing is there ── done ─────────────────────────────────► Granted
                               └─ refused, with what is there ── judge ── a refusal ────────────► Settled, Busy, …
                                      ▲                             └─ a grant: PutItem over that very version
                                      └──────── refused, with what is there now ─────┘
with aliases or subject    read all of them, judge, write all of them at the versions that were read; again if not so
"""

from __future__ import annotations

import asyncio
import random
from secrets import token_bytes

from semel.adapters.ledgers.dynamodb import expressions, items
from semel.adapters.ledgers.dynamodb.attributes import Item
from semel.adapters.ledgers.dynamodb.client import Client
from semel.adapters.ledgers.dynamodb.expressions import Request
from semel.adapters.ledgers.dynamodb.tokens import Tokens
from semel.ports import Clock
from semel.values.claim import Claim, Granted, Verdict
from semel.values.decision import Grant, Known, judge
from semel.values.errors import LedgerUnavailable
from semel.values.retry import backoff_s

TURNS = 60  # each turn that is lost was won by somebody else; so many in a row means that something is broken
NONCE_BYTES = 12
PAUSE_S = 0.005
PAUSE_CAP_S = 0.25


class Claims:
    """Asks for one claim at a time."""

    def __init__(self, client: Client, clock: Clock, tokens: Tokens, margin_ms: int) -> None:
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
            (old,) = refused.found
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
        tried: dict[int, Verdict] = {}
        for turn in range(TURNS):
            found = await self._client.get(keys)
            mine = found.get((claim.digest, items.KEY))
            if mine is not None and mine.get("nonce") == nonce and mine["token"] in tried:
                return tried[mine["token"]]
            known = {digest: item for (digest, kind), item in found.items() if kind == items.KEY}
            subject = None if claim.order is None else found.get((claim.order.subject, items.SUBJECT))
            now = self._clock()
            verdict, grant = self._judge(claim, known, subject, now)
            if grant is None:
                return verdict
            tried[grant.lease.token] = verdict
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
