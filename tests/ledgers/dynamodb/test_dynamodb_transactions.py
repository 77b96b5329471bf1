"""The handle: what a handler writes, how it is converted, and what is said when it cannot be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest
from tests.ledgers.dynamodb.tables import clock_ahead

from semel.ledgers.dynamodb import ConditionFailed, DynamoLedger, WritesRefused
from semel.ledgers.dynamodb.expressions import dump, load
from semel.testing.harness import Caller, Harness
from semel.values.claim import Busy, Granted, Settlement
from semel.values.errors import TransactionOver
from semel.values.outcome import Done, Reject


class Shop:
    """A ledger, and the tables of a handler."""

    def __init__(self, aws: Any, url: str, table: str) -> None:
        clock = clock_ahead()
        self._aws = aws
        self.table = table
        self.harness = Harness(open=lambda: DynamoLedger.from_url(url, clock=clock), clock=clock)
        self.caller = Caller(self.harness.open)
        self.ledger: Any = self.caller.ledger

    def handle(self, granted: Granted, work: Callable[[Any], Any], ending: Any = None) -> bool:
        async def run() -> bool:
            async with self.ledger.transaction(granted.lease) as transaction:
                work(transaction.handle)
                return bool(await transaction.settle(Settlement(granted.lease, ending or Done(b"1"))))

        return self.caller.run(run())

    def count(self) -> int:
        return int(self._aws.scan(TableName=self.table, ConsistentRead=True, Select="COUNT")["Count"])


@pytest.fixture
def shop(aws: Any, ledger_url: Callable[..., str], plain_table: Callable[[], str]) -> Iterator[Shop]:
    shop = Shop(aws, ledger_url(margin_ms="0"), plain_table())
    yield shop
    shop.caller.close()


@pytest.mark.parametrize(("aliases", "subject", "room"), [([], None, 99), (["x", "y"], "s", 96)])
def test_a_transaction_may_write_100_items(shop: Shop, aliases: list[str], subject: str | None, room: int) -> None:
    claim = shop.harness.claim("a", aliases=aliases, subject=subject, position=1)
    granted = shop.caller.grant(claim)

    def work(handle: Any) -> None:
        for at in range(room):
            handle.put(shop.table, {"id": f"{at}"})
        with pytest.raises(ValueError, match="100"):
            handle.put(shop.table, {"id": "one more"})

    assert shop.handle(granted, work) is True
    assert shop.count() == room
    assert shop.caller.is_done(claim, b"1")


def test_a_dead_letter_beyond_100_writes_is_an_error_and_nothing_is_written(shop: Shop) -> None:
    granted = shop.caller.grant(shop.harness.claim("a"))

    def work(handle: Any) -> None:
        for at in range(99):
            handle.put(shop.table, {"id": f"{at}"})

    with pytest.raises(WritesRefused, match="letter"):
        shop.handle(granted, work, Reject("no"))
    assert shop.count() == 0
    assert shop.caller.renew(granted.lease) == [True]


def test_a_failed_condition_is_reported_and_nothing_is_written(shop: Shop, aws: Any) -> None:
    aws.put_item(TableName=shop.table, Item={"id": {"S": "stock 7"}, "n": {"N": "0"}})
    granted = shop.caller.grant(shop.harness.claim("a", subject="s", position=1))

    def work(handle: Any) -> None:
        handle.put(shop.table, {"id": "1"})
        handle.update(
            shop.table,
            {"id": "stock 7"},
            "SET #n = #n - :one",
            condition="#n >= :one",
            names={"#n": "n"},
            values={":one": 1},
        )

    with pytest.raises(ConditionFailed, match=r"\b2\b.*Update.*id='stock 7'.*#n >= :one") as raised:
        shop.handle(granted, work)
    assert isinstance(raised.value, TransactionOver), "the engine calls it a failed run, and tries again later"
    assert shop.count() == 1
    assert isinstance(shop.caller.claim(shop.harness.claim("a")), Busy)
    assert shop.caller.renew(granted.lease) == [True]


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda handle, table: handle.put("there-is-none", {"id": "1"}), "ResourceNotFound"),
        (lambda handle, table: handle.update(table, {"id": "1"}, "SELECT 1"), "."),
        (lambda handle, table: [handle.put(table, {"id": "1"}) for _ in range(2)], "multiple operations"),
    ],
    ids=["no table", "no expression", "one item twice"],
)
def test_invalid_writes_are_refused_and_nothing_is_written(
    shop: Shop, work: Callable[[Any, str], Any], words: str
) -> None:
    granted = shop.caller.grant(shop.harness.claim("a"))
    with pytest.raises(WritesRefused, match=words):
        shop.handle(granted, lambda handle: work(handle, shop.table))
    assert shop.count() == 0
    assert shop.caller.renew(granted.lease) == [True]


def test_a_heartbeat_between_settle_and_commit_does_no_harm(shop: Shop) -> None:
    claim = shop.harness.claim("a", aliases=["x"], subject="s", position=1)
    granted = shop.caller.grant(claim)

    async def run() -> None:
        async with shop.ledger.transaction(granted.lease) as transaction:
            transaction.handle.put(shop.table, {"id": "1"})
            assert await transaction.settle(Settlement(granted.lease, Done(b"1")))
            assert await shop.ledger.renew([granted.lease]) == [True]

    shop.caller.run(run())
    assert shop.count() == 1
    assert shop.caller.is_done(claim, b"1")


def test_a_lease_lost_between_settle_and_commit_writes_nothing(shop: Shop) -> None:
    claim = shop.harness.claim("a")
    granted = shop.caller.grant(claim)
    with Caller(shop.harness.open) as other:

        async def run() -> None:
            async with shop.ledger.transaction(granted.lease) as transaction:
                transaction.handle.put(shop.table, {"id": "1"})
                assert await transaction.settle(Settlement(granted.lease, Done(b"1")))
                shop.harness.advance(shop.harness.lease_ms)
                (taken,) = await shop.ledger.claim([claim])
                assert isinstance(taken, Granted)

        with pytest.raises(TransactionOver, match="lost"):
            shop.caller.run(run())
        assert isinstance(other.claim(claim), Busy)
    assert shop.count() == 0


def test_a_handler_reads_stored_items(shop: Shop) -> None:
    granted = shop.caller.grant(shop.harness.claim("a"))
    shop.handle(granted, lambda handle: handle.put(shop.table, {"id": "1", "total": Decimal("12.50"), "tags": {"x"}}))

    async def read() -> None:
        async with shop.ledger.transaction(granted.lease) as transaction:
            assert await transaction.handle.get(shop.table, {"id": "1"}) == {
                "id": "1",
                "total": Decimal("12.50"),
                "tags": {"x"},
            }
            assert await transaction.handle.get(shop.table, {"id": "2"}) is None
        with pytest.raises(TransactionOver):
            await transaction.handle.get(shop.table, {"id": "1"})

    shop.caller.run(read())


def test_changes_of_a_value_after_its_put_are_not_written(shop: Shop, aws: Any) -> None:
    granted = shop.caller.grant(shop.harness.claim("a"))
    item: dict[str, Any] = {"id": "1", "list": [1]}

    def work(handle: Any) -> None:
        handle.put(shop.table, item)
        item["list"].append(2)

    assert shop.handle(granted, work) is True
    found = aws.get_item(TableName=shop.table, Key={"id": {"S": "1"}}, ConsistentRead=True)["Item"]
    assert found["list"] == {"L": [{"N": "1"}]}


@pytest.mark.parametrize(
    "value",
    [
        *("text", "", b"bytes", b"", 0, -7, 2**63, Decimal("1.50"), True, False, None),
        *([], [1, "a", None, [b"x"]], {}, {"a": {"b": [1]}}, {"a", "b"}, {1, 2}, {b"x"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_come_back_as_they_were(value: Any) -> None:
    back = load(dump(value))
    assert back == value
    assert type(back) is type(value)


def test_floats_are_written_as_their_shortest_decimal() -> None:
    assert dump(0.1) == {"N": "0.1"}
    assert load(dump(0.1)) == Decimal("0.1")


@pytest.mark.parametrize(
    "value", [object(), {1: "a"}, set(), {1, "a"}, [object()], {(1, 2)}], ids=lambda value: type(value).__name__
)
def test_an_unsupported_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError):
        dump(value)


def test_a_lone_surrogate_does_not_prevent_a_write() -> None:
    assert dump("a\udcff") == {"S": "a?"}
