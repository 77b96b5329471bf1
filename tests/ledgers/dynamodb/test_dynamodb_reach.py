"""The way to the table: who answers there, who waits for whom, and what outlives an event loop."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from msgspec.structs import replace
from tests.support.servers.dynamodb import DynamoServer

from semel import Semel, aws
from semel.aws import JSON_CONTENT_TYPE
from semel.ledgers.dynamodb import DynamoLedger, client
from semel.ledgers.dynamodb.items import FREE
from semel.ledgers.dynamodb.schema import ATTRIBUTES, KEYS
from semel.service import background
from semel.service import background as tidying
from semel.testing.harness import Harness
from semel.values.claim import Granted, Settlement
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.outcome import NOTHING

WITHIN_S = 30.0  # what takes longer waits for everybody's deadline, one after the other


@pytest.fixture
def harness() -> Harness:
    return Harness(open=lambda: DynamoLedger.from_url("dynamodb://none"), unit_ms=60_000)


def test_a_closed_ledger_works_in_the_next_event_loop(harness: Harness, ledger_url: Callable[..., str]) -> None:
    """`semel run` looks at the store in one loop, and serves in another."""
    ledger = DynamoLedger.from_url(ledger_url(concurrency="1"))

    async def claim_many() -> bool:
        try:
            verdicts = await ledger.claim([harness.claim(f"key {number}") for number in range(8)])
        finally:
            await ledger.close()
        return all(isinstance(verdict, Granted) for verdict in verdicts)

    assert asyncio.run(claim_many()), "nobody had to wait for a place"
    harness = Harness(open=harness.open, unit_ms=60_000)
    assert asyncio.run(claim_many())


def test_a_batch_does_not_wait_for_one_deadline_after_the_other(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that swallows everything: 400 claims, two at a time."""
    monkeypatch.setattr(client, "READ_S", 0.3)
    monkeypatch.setattr(client, "DEADLINE_S", 0.9)

    async def whole(port: int) -> None:
        ledger = DynamoLedger.from_url(f"dynamodb://table?region=x&concurrency=2&endpoint=http://127.0.0.1:{port}")
        try:
            with pytest.raises(LedgerUnavailable):
                await ledger.claim([harness.claim(f"key {number}") for number in range(400)])
        finally:
            await ledger.close()

    began = time.monotonic()
    with _silent_server() as port, _credentials(monkeypatch):
        asyncio.run(whole(port))
    assert time.monotonic() - began < WITHIN_S


def test_a_long_queue_that_moves_is_waited_for(harness: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty answers of 50 ms, one at a time, are twice the deadline of each."""
    monkeypatch.setattr(client, "DEADLINE_S", 1.0)

    async def whole() -> None:
        async with _web_server(JSON_CONTENT_TYPE, after_s=0.05) as (port, asked):
            ledger = DynamoLedger.from_url(f"dynamodb://table?region=x&concurrency=1&endpoint=http://127.0.0.1:{port}")
            try:
                verdicts = await ledger.claim([harness.claim(f"key {number}") for number in range(40)])
            finally:
                await ledger.close()
            assert all(isinstance(verdict, Granted) for verdict in verdicts)
            assert len(asked) >= 40

    with _credentials(monkeypatch):
        asyncio.run(whole())


@pytest.mark.parametrize("kind", ["text/html", "application/json"])
def test_a_response_of_another_server_grants_nothing(
    harness: Harness, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """botocore takes a page with status 200 for a yes, and a claim would be granted that nobody wrote."""

    async def whole() -> None:
        async with _web_server(kind) as (port, asked):
            ledger = DynamoLedger.from_url(f"dynamodb://table?region=x&endpoint=http://127.0.0.1:{port}")
            try:
                with pytest.raises(LedgerUnavailable, match="DynamoDB"):
                    await ledger.claim([harness.claim("key")])
                assert asked
                with pytest.raises(LedgerUnavailable, match="DynamoDB"):
                    await ledger.pending()
                assert any(fact.level == "error" for fact in await ledger.diagnose())
            finally:
                await ledger.close()

    with _credentials(monkeypatch):
        asyncio.run(whole())


def test_credentials_that_come_late_are_found(
    harness: Harness, server: DynamoServer, ledger_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The role of a machine may be slow to answer; the process need not be started again for that."""
    monkeypatch.setattr(aws, "REOPEN_S", 0.0)
    if server.is_given:
        pytest.skip("credentials of a given server are somebody else's")
    ledger = DynamoLedger.from_url(ledger_url())

    async def whole() -> None:
        try:
            with monkeypatch.context() as without:
                for name in [name for name in os.environ if name.startswith("AWS_")]:
                    without.delenv(name)
                without.setenv("AWS_EC2_METADATA_DISABLED", "true")
                without.setenv("HOME", "/nonexistent")
                with pytest.raises(ConfigError, match="credentials"):
                    await ledger.claim([harness.claim("key")])
            (verdict,) = await ledger.claim([harness.claim("key")])
            assert isinstance(verdict, Granted)
        finally:
            await ledger.close()

    asyncio.run(whole())


def test_a_table_with_text_keys_is_refused(server: DynamoServer, aws: Any) -> None:
    table = "texts-" + os.urandom(8).hex()
    texts = [{**one, "AttributeType": "S"} for one in ATTRIBUTES if one["AttributeName"] in ("pk", "sk")]
    aws.create_table(TableName=table, KeySchema=KEYS, AttributeDefinitions=texts, BillingMode="PAY_PER_REQUEST")
    if server.is_given:
        aws.get_waiter("table_exists").wait(TableName=table)

    async def whole() -> None:
        ledger = DynamoLedger.from_url(server.url(table))
        try:
            with pytest.raises(ConfigError, match="ledger"):
                await ledger.migrate()
        finally:
            await ledger.close()

    try:
        asyncio.run(whole())
    finally:
        aws.delete_table(TableName=table)


def test_a_table_that_was_missing_is_purged_once_it_exists(
    harness: Harness,
    server: DynamoServer,
    aws: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An error that looks final ends one purge, and not all of them."""
    monkeypatch.setattr(tidying, "PURGE_EVERY_S", 0.05)
    table = "late-" + os.urandom(8).hex()
    app = Semel(server.url(table))

    async def until(holds: Callable[[], bool]) -> None:
        ends = time.monotonic() + WITHIN_S
        while not holds() and time.monotonic() < ends:  # noqa: ASYNC110 - a log and a table are looked at
            await asyncio.sleep(0.02)
        assert holds()

    def forgotten() -> bool:
        (item,) = aws.scan(TableName=table)["Items"]
        return bool(item["state"] == {"N": str(FREE)})

    async def whole() -> None:
        service = background.Background(app)
        service.start()
        try:
            await until(lambda: "purge_failed" in caplog.text and "semel migrate" in caplog.text)
            assert isinstance(app.ledger, DynamoLedger)
            await app.ledger.migrate()
            (verdict,) = await app.ledger.claim([replace(harness.claim("key"), retention_ms=1)])
            assert isinstance(verdict, Granted)
            assert await app.ledger.settle([Settlement(verdict.lease, NOTHING)]) == [True]
            await until(forgotten)
        finally:
            await service.stop(1)
            await app.close()

    try:
        asyncio.run(whole())
    finally:
        aws.delete_table(TableName=table)


# ------------------------------------------------------------------------------------------------------------ servers


@contextmanager
def _credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as some:
        some.setenv("AWS_ACCESS_KEY_ID", "test")
        some.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


@contextmanager
def _silent_server() -> Iterator[int]:
    """Takes connections, and says nothing."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(1000)
        yield listener.getsockname()[1]


@asynccontextmanager
async def _web_server(kind: str, after_s: float = 0) -> Any:
    """Answers everything with a friendly page."""
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        await asyncio.sleep(after_s)
        page = b"{}" if "json" in kind else b"<html>hello</html>"
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {len(page)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + page)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as web:
        yield web.sockets[0].getsockname()[1], asked
