"""DynamoDB through every fault of the network and of workers. The service itself is nobody's to kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from uuid import uuid4

import botocore.session
import pytest
from tests.faults.bindings import harness_of
from tests.support.servers.dynamodb import DynamoServer
from tests.support.servers.process import NoServer, not_here

from semel.ledgers.dynamodb import DynamoLedger
from semel.testing.fault_laws import (
    FaultBinding,
    FaultHarness,
    Happened,
    LongStormLaws,
    LostMessageLaws,
    NetworkLaws,
    SilenceLaws,
    WorkerKillLaws,
)
from semel.testing.harness import Harness
from semel.testing.proxy import FaultProxy
from semel.values.claim import Granted

STEP_S = 0.064  # tokens begin with the time, in steps of this; a failover takes longer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DynamoServer]:
    server = DynamoServer.given() or DynamoServer(tmp_path_factory.mktemp("dynamodb"))
    if server.endpoint is None:
        not_here("a proxy can stand before an endpoint, and not before the service itself")
    try:
        server.start()
    except NoServer as error:
        not_here(error)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def aws(server: DynamoServer) -> Iterator[Any]:
    client: Any = botocore.session.get_session().create_client(
        "dynamodb", region_name=server.region, endpoint_url=server.endpoint
    )
    yield client
    client.close()


@pytest.fixture
def table(server: DynamoServer) -> str:
    """A ledger's own."""
    name = f"faults-{uuid4().hex}"

    async def migrate() -> None:
        ledger = DynamoLedger.from_url(server.url(name))
        await ledger.migrate()
        await ledger.close()

    asyncio.run(migrate())
    return name


@pytest.fixture
def calls(aws: Any) -> Iterator[str]:
    """The table that handlers write to."""
    name = f"calls-{uuid4().hex}"
    aws.create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        BillingMode="PAY_PER_REQUEST",
    )
    aws.get_waiter("table_exists").wait(TableName=name, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    yield name
    aws.delete_table(TableName=name)


@pytest.fixture
def proxy(server: DynamoServer) -> Iterator[FaultProxy]:
    place = urlsplit(str(server.endpoint))
    with FaultProxy(place.hostname or "127.0.0.1", place.port or 8000) as proxy:
        yield proxy


def calls_in(aws: Any, table: str) -> list[Happened]:
    pages = aws.get_paginator("scan").paginate(TableName=table, ConsistentRead=True)
    items = [item for page in pages for item in page["Items"]]
    return sorted(
        Happened(
            item["effect"]["S"],
            item["event"]["S"],
            item["key"]["S"],
            int(item["token"]["N"]),
            int(item["attempt"]["N"]),
            item["applied"]["BOOL"],
        )
        for item in items
    )


class DynamoBinding(FaultBinding):
    @pytest.fixture
    def harness(
        self, tmp_path: Path, server: DynamoServer, aws: Any, table: str, calls: str, proxy: FaultProxy
    ) -> FaultHarness:
        options = {"region": server.region, "endpoint": proxy.url(str(server.endpoint)), "margin_ms": "100"}
        return harness_of(
            tmp_path,
            proxy,
            f"dynamodb://{table}?{urlencode(options)}",
            calls_table=calls,
            in_store=lambda: calls_in(aws, calls),
        )


class TestDynamo(DynamoBinding, WorkerKillLaws, LostMessageLaws):
    """What the page of guarantees rests on."""


@pytest.mark.long  # the ledger insists for 8 s before it gives a request up
class TestDynamoNetwork(DynamoBinding, NetworkLaws, SilenceLaws, LongStormLaws):
    """The rest."""


def test_a_key_that_is_forgotten_gets_a_higher_token(server: DynamoServer, aws: Any, table: str) -> None:
    """As after the failover of a global table that had not yet been told of it: the time alone makes it higher."""
    claim = Harness(open=lambda: DynamoLedger.from_url(server.url(table))).claim("forgotten")

    async def grant() -> Granted:
        ledger = DynamoLedger.from_url(server.url(table))
        try:
            (verdict,) = await ledger.claim([claim])
        finally:
            await ledger.close()
        assert isinstance(verdict, Granted)
        return verdict

    first = asyncio.run(grant())
    keys = [part["AttributeName"] for part in aws.describe_table(TableName=table)["Table"]["KeySchema"]]
    items = aws.scan(TableName=table, ConsistentRead=True)["Items"]
    assert items, "inconclusive: there was nothing to forget"
    for item in items:
        aws.delete_item(TableName=table, Key={name: item[name] for name in keys})
    time.sleep(2 * STEP_S)
    second = asyncio.run(grant())
    assert second.attempt == 1, "it does not know of the first grant at all"
    assert second.lease.token > first.lease.token
