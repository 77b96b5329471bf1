"""One emulator for all tests of a worker; each test has tables of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any
from uuid import uuid4

import aiobotocore.session
import botocore.session
import pytest
from botocore.config import Config
from tests.shared import shared_emulator
from tests.support.servers.dynamodb import DynamoServer

from semel.ledgers.dynamodb.schema import ATTRIBUTES, DEAD_LETTERS_INDEX, KEYS


@pytest.fixture(scope="session")
def server(request: pytest.FixtureRequest) -> DynamoServer:
    return shared_emulator(request, DynamoServer)


@pytest.fixture(scope="session")
def aws(server: DynamoServer) -> Iterator[Any]:
    """A client of its own, which does not wait for any event loop."""
    client: Any = botocore.session.get_session().create_client(
        "dynamodb", region_name=server.region, endpoint_url=server.endpoint, config=Config(max_pool_connections=32)
    )
    yield client
    client.close()


@pytest.fixture
def one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledgers of laws get their clients from one session: making one takes as long as ten requests."""
    session = _session()  # made before the name is replaced
    monkeypatch.setattr(aiobotocore.session, "AioSession", lambda: session)


@cache
def _session() -> aiobotocore.session.AioSession:
    return aiobotocore.session.AioSession()


@pytest.fixture
def plain_table(server: DynamoServer, aws: Any) -> Iterator[Callable[[], str]]:
    """Makes tables with one key, `id`: not the ledger's."""
    made: list[str] = []

    def make() -> str:
        made.append(f"plain-{uuid4().hex}")
        aws.create_table(
            TableName=made[-1],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            BillingMode="PAY_PER_REQUEST",
        )
        wait_for(server, aws, made[-1])
        return made[-1]

    yield make
    for name in made:
        aws.delete_table(TableName=name)


@pytest.fixture
def ledger_url(server: DynamoServer, aws: Any) -> Iterator[Callable[..., str]]:
    """Makes tables for ledgers, in one request and without their sweeper; `migrate` has tests of its own."""
    made: list[str] = []

    def make(**options: str) -> str:
        made.append(f"ledger-{uuid4().hex}")
        aws.create_table(
            TableName=made[-1],
            KeySchema=KEYS,
            AttributeDefinitions=ATTRIBUTES,
            BillingMode="PAY_PER_REQUEST",
            GlobalSecondaryIndexes=[DEAD_LETTERS_INDEX],
        )
        wait_for(server, aws, made[-1])
        return server.url(made[-1], **options)

    yield make
    for name in made:
        aws.delete_table(TableName=name)


def wait_for(server: DynamoServer, aws: Any, table: str) -> None:
    """The emulator's tables are there at once."""
    if server.is_given:
        aws.get_waiter("table_exists").wait(TableName=table, WaiterConfig={"Delay": 1, "MaxAttempts": 60})
