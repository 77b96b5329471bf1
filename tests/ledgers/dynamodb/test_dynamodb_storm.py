"""Many workers, few keys: aliases, subjects and every ending at once, while transactions are cancelled now and then."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from tests.ledgers.dynamodb.proxy import Proxy, operation, proxy_to
from tests.support.servers.dynamodb import DynamoServer

from semel.ledgers.dynamodb import DynamoLedger
from semel.ports import EntryQuery
from semel.testing.harness import Harness
from semel.values.claim import Claim, DeadLetter, Granted, Settlement
from semel.values.outcome import Done, Ending, Reject, Release, Retry

WORKERS = 6
ROUNDS = 25
ENDINGS: list[Ending] = [Done(b"1"), Done(b"1"), Retry(0), Release(), Reject("no")]


class Storm:
    """What must be true of every grant, whoever gets it."""

    def __init__(self) -> None:
        self.held: dict[bytes, int] = {}
        self.tokens: dict[bytes, int] = {}
        self.ended: set[bytes] = set()
        self.seen: Counter[str] = Counter()

    def granted(self, one: Granted) -> None:
        for key in keys_of(one.lease.claim):
            assert key not in self.held, "two have it at the same time"
            self.held[key] = one.lease.token
            assert one.lease.token > self.tokens.get(key, 0)
            self.tokens[key] = one.lease.token
        for key in digests_of(one.lease.claim):
            assert key not in self.ended, "it was final"

    def let_go(self, one: Granted, ending: Ending) -> None:
        """Said before the store is told: from then on somebody else may have it."""
        for key in keys_of(one.lease.claim):
            del self.held[key]
        if isinstance(ending, Done | Reject):
            self.ended.update(digests_of(one.lease.claim))


def digests_of(claim: Claim) -> list[bytes]:
    return [claim.digest, *[alias.digest for alias in claim.aliases]]


def keys_of(claim: Claim) -> list[bytes]:
    return [*digests_of(claim), *([] if claim.order is None else [claim.order.subject])]


async def work(ledger: DynamoLedger, storm: Storm, harness: Harness, random: Random) -> None:
    for turn in range(ROUNDS):
        group = turn // 3  # all workers meet at the same few keys
        claims = [
            harness.claim(
                f"{group} {random.choice('ab')}",
                aliases=random.choice([[], [f"{group} x"], [f"{group} x", f"{group} y"]]),
                subject=random.choice([None, f"{group % 3}"]),
                position=turn,
            )
            for _ in range(random.randint(1, 3))
        ]
        verdicts = await ledger.claim(claims)
        assert len(verdicts) == len(claims)
        storm.seen.update(type(verdict).__name__ for verdict in verdicts)
        for verdict in verdicts:
            if isinstance(verdict, Granted):
                storm.granted(verdict)
        for verdict in verdicts:
            if isinstance(verdict, Granted):
                if random.random() < 0.3:
                    assert await ledger.renew([verdict.lease]) == [True]
                ending = random.choice(ENDINGS)
                storm.let_go(verdict, ending)
                dead_letter = DeadLetter(b"{}", 1) if isinstance(ending, Reject) else None
                (kept,) = await ledger.settle([Settlement(verdict.lease, ending, dead_letter)])
                # the reply may be lost, and the next one may have it before it is asked for again
                assert kept or isinstance(ending, Retry | Release)


def cancel_some(proxy: Proxy, random: Random) -> Any:
    reasons = [{"Code": "TransactionConflict", "Message": "injected"}]
    write = operation("TransactWriteItems")
    return [
        proxy.refuse(
            lambda name, body: write(name, body) and random.random() < 0.1,
            "TransactionCanceledException",
            10_000,
            CancellationReasons=reasons,
        ),
        proxy.lose_reply(lambda name, body: random.random() < 0.05, 10_000),
    ]


@pytest.mark.long
@pytest.mark.parametrize("seed", [1])
def test_no_key_and_no_subject_is_ever_held_twice(
    server: DynamoServer, ledger_url: Callable[..., str], seed: int
) -> None:
    url, storm, random = ledger_url(), Storm(), Random(seed)
    harness = Harness(open=lambda: DynamoLedger.from_url(url), unit_ms=60_000)

    async def all_at_once() -> None:
        if server.endpoint is None:
            pytest.skip("the proxy speaks HTTP without TLS: it needs an emulator")
        async with proxy_to(server.endpoint) as proxy:
            faults = cancel_some(proxy, random)
            ledgers = [DynamoLedger.from_url(proxy.url(url)) for _ in range(WORKERS)]
            await asyncio.gather(
                *[work(ledger, storm, harness, Random(f"{seed} {at}")) for at, ledger in enumerate(ledgers)]
            )
            for ledger in ledgers:
                await ledger.close()
            assert all(fault.landed > 3 for fault in faults)
        beside = DynamoLedger.from_url(url)
        dead_letters = await beside.entries(EntryQuery("dead", 10_000))
        assert len(dead_letters) == len({dead_letter.key for dead_letter in dead_letters}), "one letter for one reject"
        counts = await beside.counts()
        assert counts["leased"] == 0, "everything was settled"
        await beside.close()

    asyncio.run(all_at_once())
    assert {"Granted", "Busy", "Settled"} <= set(storm.seen)
    assert storm.held == {}
