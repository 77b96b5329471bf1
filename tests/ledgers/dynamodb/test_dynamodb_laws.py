"""The ledger in DynamoDB keeps the laws."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import count
from typing import Any

import pytest
from tests.ledgers.dynamodb.tables import clock_ahead

from semel.ledgers.dynamodb import DynamoLedger
from semel.testing.harness import Harness, TransactionHarness
from semel.testing.laws.claims import ClaimLaws, RaceLaws
from semel.testing.laws.dead_letters import ForceLaws
from semel.testing.laws.settlement import SettleLaws
from semel.testing.ledger_laws import LedgerLaws, TransactionLaws


class Effects:
    """A handler's own table."""

    def __init__(self, aws: Any, make: Callable[[], str], ledger_url: str) -> None:
        self._aws = aws
        self._make = make
        self._numbers = count()
        self.ledger_table = ledger_url.partition("?")[0].removeprefix("dynamodb://")

    @cached_property
    def table(self) -> str:
        return self._make()  # most laws need none

    async def write(self, handle: Any, text: str) -> None:
        handle.put(self.table, {"id": f"{next(self._numbers):06}", "text": text}, condition="attribute_not_exists(id)")

    def written(self) -> list[str]:
        found = self._aws.scan(TableName=self.table, ConsistentRead=True)["Items"]
        return [item["text"]["S"] for item in sorted(found, key=lambda item: str(item["id"]["S"]))]

    @property
    def meddle(self) -> Mapping[str, Callable[[Any], Awaitable[None]]]:
        """What a handler can do wrong by its handle."""

        def doing(*calls: Callable[[Any], None]) -> Callable[[Any], Awaitable[None]]:
            async def run(handle: Any) -> None:
                for call in calls:
                    call(handle)

            return run

        twice: Callable[[Any], None] = lambda handle: handle.put(self.table, {"id": "twice", "text": "twice"})  # noqa: E731
        return {
            "a condition that does not hold": doing(
                lambda handle: handle.check(self.table, {"id": "nobody"}, "attribute_exists(id)")
            ),
            "two writes of one item": doing(twice, twice),
            "no such table": doing(lambda handle: handle.put("there-is-none", {"id": "1"})),
            "the ledger's own table": doing(lambda handle: handle.put(self.ledger_table, {"pk": b"1", "sk": b"k"})),
            "a wrong key": doing(lambda handle: handle.delete(self.table, {"other": 1})),
            "an expression that is none": doing(lambda handle: handle.update(self.table, {"id": "1"}, "SELECT 1")),
            "a value that is none": doing(lambda handle: handle.put(self.table, {"id": object()})),
            "an item that is too large": doing(
                lambda handle: handle.put(self.table, {"id": "large", "text": "x" * 410_000})
            ),
            "too many writes": doing(
                *[lambda handle, at=at: handle.delete(self.table, {"id": f"none {at}"}) for at in range(100)]
            ),
            "the end": doing(lambda handle: handle.close()),
        }


class OnDynamo:
    batches: Sequence[int] = (1, 7, 30, 101)  # every key is a request of its own, and the emulator needs 2 ms for each
    rounds = 2

    @pytest.fixture(params=["threads", pytest.param("processes", marks=pytest.mark.long)])
    def how(self, request: pytest.FixtureRequest) -> str:
        """Each thread has a client of its own; processes race under faults, too (tests/faults)."""
        return str(request.param)

    @pytest.fixture
    def harness(self, aws: Any, plain_table: Callable[[], str], ledger_url: Callable[..., str]) -> TransactionHarness:
        clock, url = clock_ahead(), ledger_url(margin_ms="0")
        effects = Effects(aws, plain_table, url)
        return TransactionHarness(
            open=lambda: DynamoLedger.from_url(url, clock=clock),
            clock=clock,
            remote=partial(DynamoLedger.from_url, url),
            batches=self.batches,
            rounds=self.rounds,
            write=effects.write,
            written=effects.written,
            meddle=effects.meddle,
        )


@pytest.mark.usefixtures("one_session")
class TestDynamo(OnDynamo, LedgerLaws, TransactionLaws):
    pass


class TestForcedReplays(ForceLaws):
    @pytest.fixture
    def harness(self, ledger_url: Callable[..., str]) -> Harness:
        clock, url = clock_ahead(), ledger_url(margin_ms="0")
        return Harness(open=lambda: DynamoLedger.from_url(url, clock=clock), clock=clock)


@pytest.mark.long
class TestDynamoAtLength(OnDynamo, RaceLaws):
    """With batches and races as large as those of the other stores."""

    batches = Harness.batches
    rounds = Harness.rounds
    test_batches_of_every_size_are_answered_in_order = ClaimLaws.test_batches_of_every_size_are_answered_in_order
    test_batches_of_every_size_are_settled_in_order = SettleLaws.test_batches_of_every_size_are_settled_in_order
