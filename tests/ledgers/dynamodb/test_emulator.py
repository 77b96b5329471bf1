"""What the ledger needs of DynamoDB, proven of whatever serves it here: conditional writes have one winner."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

THREADS = 8
KEYS = 60
STEPS = 60


def race(racer: Callable[[int, int], bool], keys: int) -> list[list[bool]]:
    """For each key, who won. All begin together, and everyone meets the keys in the same order."""
    barrier = threading.Barrier(THREADS)
    won = [[False] * THREADS for _ in range(keys)]
    failed: list[BaseException] = []

    def run(who: int) -> None:
        try:
            barrier.wait(30)
            for key in range(keys):
                won[key][who] = racer(who, key)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(who,)) for who in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    return won


def test_one_of_many_conditional_puts_wins(aws: Any, plain_table: Callable[[], str]) -> None:
    table = plain_table()

    def put(who: int, key: int) -> bool:
        try:
            aws.put_item(
                TableName=table,
                Item={"id": {"S": f"{key}"}, "who": {"N": f"{who}"}},
                ConditionExpression="attribute_not_exists(id)",
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except ClientError as error:
            refused: Any = error.response
            assert refused["Error"]["Code"] == "ConditionalCheckFailedException"
            assert refused["Item"]["id"] == {"S": f"{key}"}, "the refusal brings what is there"
            return False
        return True

    winners = race(put, KEYS)
    assert [sum(won) for won in winners] == [1] * KEYS
    for key, won in enumerate(winners):
        item = aws.get_item(TableName=table, Key={"id": {"S": f"{key}"}}, ConsistentRead=True)["Item"]
        assert item["who"] == {"N": f"{won.index(True)}"}


def test_one_of_many_compare_and_sets_wins(aws: Any, plain_table: Callable[[], str]) -> None:
    table = plain_table()
    aws.put_item(TableName=table, Item={"id": {"S": "a"}, "n": {"N": "0"}})

    def step(who: int, key: int) -> bool:
        try:
            aws.update_item(
                TableName=table,
                Key={"id": {"S": "a"}},
                UpdateExpression="SET n = :next",
                ConditionExpression="n = :now",
                ExpressionAttributeValues={":now": {"N": f"{key}"}, ":next": {"N": f"{key + 1}"}},
            )
        except aws.exceptions.ConditionalCheckFailedException:
            return False
        return True

    winners = race(step, STEPS)
    assert max(sum(won) for won in winners) == 1
    item = aws.get_item(TableName=table, Key={"id": {"S": "a"}}, ConsistentRead=True)["Item"]
    assert item["n"] == {"N": f"{sum(map(sum, winners))}"}, "each step that was answered happened, and no other"


def test_one_of_many_transactions_wins_all_of_its_items(aws: Any, plain_table: Callable[[], str]) -> None:
    one, two = plain_table(), plain_table()

    def write(who: int, key: int) -> bool:
        tables = [one, two] if who % 2 else [two, one]  # locks in the order of the request would deadlock
        puts = [
            {
                "Put": {
                    "TableName": table,
                    "Item": {"id": {"S": f"{key}"}, "who": {"N": f"{who}"}},
                    "ConditionExpression": "attribute_not_exists(id)",
                }
            }
            for table in tables
        ]
        while True:
            try:
                aws.transact_write_items(TransactItems=puts)
            except ClientError as error:
                refused: Any = error.response
                assert refused["Error"]["Code"] == "TransactionCanceledException"
                codes = [reason["Code"] for reason in refused["CancellationReasons"]]
                if "ConditionalCheckFailed" in codes:
                    return False
                assert "TransactionConflict" in codes
                continue
            return True

    winners = race(write, STEPS)
    assert [sum(won) for won in winners] == [1] * STEPS
    for key, won in enumerate(winners):
        for table in (one, two):
            item = aws.get_item(TableName=table, Key={"id": {"S": f"{key}"}}, ConsistentRead=True)["Item"]
            assert item["who"] == {"N": f"{won.index(True)}"}, "of each transaction all or nothing"


def test_a_transaction_is_repeated_by_its_token_without_effect(aws: Any, plain_table: Callable[[], str]) -> None:
    table = plain_table()
    add = {
        "Update": {
            "TableName": table,
            "Key": {"id": {"S": "a"}},
            "UpdateExpression": "ADD n :one",
            "ExpressionAttributeValues": {":one": {"N": "1"}},
        }
    }
    for _ in range(3):
        aws.transact_write_items(TransactItems=[add], ClientRequestToken="the same")
    assert aws.get_item(TableName=table, Key={"id": {"S": "a"}}, ConsistentRead=True)["Item"]["n"] == {"N": "1"}
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        aws.transact_write_items(TransactItems=[add, {**_check(table)}], ClientRequestToken="the same")


def _check(table: str) -> dict[str, Any]:
    return {
        "ConditionCheck": {
            "TableName": table,
            "Key": {"id": {"S": "b"}},
            "ConditionExpression": "attribute_not_exists(id)",
        }
    }
