"""The table is made, looked at and found wanting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
from tests.facts import rendered
from tests.support.servers.dynamodb import DynamoServer

from semel.ledgers.dynamodb import DynamoLedger, profiles
from semel.ledgers.dynamodb import doctor as diagnosis
from semel.ledgers.dynamodb.schema import ATTRIBUTES, KEYS
from semel.ports import EntryQuery, Migrates, TransactionalLedger
from semel.testing.harness import Caller, Harness
from semel.values.errors import ConfigError


@pytest.fixture
def table(aws: Any) -> Iterator[str]:
    name = f"made-{uuid4().hex}"
    yield name
    aws.delete_table(TableName=name)


def run(server: DynamoServer, table: str, *methods: str) -> list[Any]:
    """Each by a ledger of its own, at once."""

    async def one(method: str) -> Any:
        ledger = DynamoLedger.from_url(server.url(table))
        try:
            return await getattr(ledger, method)()
        finally:
            await ledger.close()

    async def together() -> list[Any]:
        return list(await asyncio.gather(*[one(method) for method in methods]))

    return asyncio.run(together())


def test_migrate_makes_a_table_that_is_ready(server: DynamoServer, aws: Any, table: str) -> None:
    assert isinstance(DynamoLedger.from_url(server.url(table)), Migrates)
    (pending,) = run(server, table, "pending")
    assert len(pending) == 3
    assert run(server, table, "migrate") == [pending]
    assert run(server, table, "pending", "migrate") == [[], []]
    described = aws.describe_table(TableName=table)["Table"]
    assert described["KeySchema"] == KEYS
    assert described["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    assert [index["IndexName"] for index in described["GlobalSecondaryIndexes"]] == ["dead_letters"]
    ttl = aws.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "ttl")
    backups = aws.describe_continuous_backups(TableName=table)["ContinuousBackupsDescription"]
    assert backups["PointInTimeRecoveryDescription"]["PointInTimeRecoveryStatus"] == "ENABLED"
    harness = Harness(open=lambda: DynamoLedger.from_url(server.url(table)))
    with Caller(harness.open) as ledger:
        ledger.do(harness.claim("a"), b"1")
        assert ledger.is_done(harness.claim("a"), b"1")


def test_migrating_many_times_at_once_creates_the_table_once(server: DynamoServer, table: str) -> None:
    done = run(server, table, *["migrate"] * 6)
    assert len([step for steps in done for step in steps if step.startswith("create")]) == 1
    assert run(server, table, "pending") == [[]]


def test_an_index_that_is_missing_is_added_while_the_table_is_used(server: DynamoServer, aws: Any, table: str) -> None:
    keys = [attribute for attribute in ATTRIBUTES if attribute["AttributeName"] in ("pk", "sk")]
    aws.create_table(TableName=table, KeySchema=KEYS, AttributeDefinitions=keys, BillingMode="PAY_PER_REQUEST")
    harness = Harness(open=lambda: DynamoLedger.from_url(server.url(table)))
    with Caller(harness.open) as ledger:
        ledger.do(harness.claim("a"), b"1")
        assert "index" in run(server, table, "pending")[0][0]
        run(server, table, "migrate")
        assert run(server, table, "pending") == [[]]
        assert ledger.is_done(harness.claim("a"), b"1")
        assert ledger.run(ledger.ledger.entries(EntryQuery("dead"))) == []  # type: ignore[attr-defined]


def test_a_table_with_other_keys_is_not_changed(server: DynamoServer, plain_table: Callable[[], str]) -> None:
    for method in ("pending", "migrate"):
        with pytest.raises(ConfigError, match="ledger"):
            run(server, plain_table(), method)


# ----------------------------------------------------------------------------------------------------------- doctor


def test_doctor_reports_no_problem_of_a_migrated_table(server: DynamoServer, table: str) -> None:
    run(server, table, "migrate")
    facts = rendered(run(server, table, "diagnose")[0])
    wrong = {name for name, said in facts.items() if said.startswith(("error: ", "warning: "))}
    assert wrong == ({"endpoint"} if server.endpoint else set())
    assert facts["region"] == server.region
    assert facts["status"] == "ACTIVE"
    assert "ttl" in facts["time to live"]
    assert facts["point-in-time recovery"] == "on"
    assert "margin" in facts["clock"]


def test_doctor_reports_problems_with_their_remedies(server: DynamoServer, aws: Any, table: str) -> None:
    assert "semel migrate" in rendered(run(server, table, "diagnose")[0])["readable"]
    keys = [attribute for attribute in ATTRIBUTES if attribute["AttributeName"] in ("pk", "sk")]
    aws.create_table(
        TableName=table,
        KeySchema=KEYS,
        AttributeDefinitions=keys,
        ProvisionedThroughput={"ReadCapacityUnits": 1, "WriteCapacityUnits": 1},
    )
    facts = rendered(run(server, table, "diagnose")[0])
    assert facts["index"].startswith("error: ")
    for name in ("billing", "time to live", "point-in-time recovery"):
        assert facts[name].startswith("warning: ")


@pytest.mark.parametrize(("off_ms", "word"), [(-60_000, "behind"), (60_000, "ahead"), (0, "within")])
def test_doctor_compares_the_clocks(server: DynamoServer, table: str, off_ms: int, word: str) -> None:
    run(server, table, "migrate")

    async def ask() -> dict[str, str]:
        ledger = DynamoLedger.from_url(server.url(table, margin_ms="5000"))
        wall = diagnosis_clock(off_ms)
        try:
            return rendered(await diagnosis.facts(ledger._client, ledger._schema, wall))
        finally:
            await ledger.close()

    said = asyncio.run(ask())["clock"]
    assert word in said
    assert said.startswith("error: ") == bool(off_ms)


def diagnosis_clock(off_ms: int) -> Callable[[], int]:
    from semel.ledgers.dynamodb.items import WallClock

    wall = WallClock()
    return lambda: wall() + off_ms


def test_traits_state_which_data_may_be_lost(server: DynamoServer) -> None:
    here, worldwide = profiles()
    ledger = DynamoLedger.from_url(server.url("any"))
    assert ledger.traits == here
    assert isinstance(ledger, TransactionalLedger)
    assert (here.loses.store_killed, here.loses.power_loss, here.loses.failover) == ("", "", "")
    assert worldwide.loses.failover
    assert worldwide.caveat


def test_a_ledger_can_be_closed_unused_and_twice(server: DynamoServer) -> None:
    async def close() -> None:
        ledger = DynamoLedger.from_url(server.url("any"))
        await ledger.close()
        await ledger.close()

    asyncio.run(close())
