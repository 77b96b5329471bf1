"""Requests to one DynamoDB table: retries until a deadline, bounded concurrency, and the meaning of each error.

A request may be sent again after its reply was lost, including a conditional write that has taken effect. Every sender
must therefore recognise its own write in the refusal: grants have a nonce, settles their token and outcome, and
transactions a ClientRequestToken.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from secrets import token_hex
from typing import Any

from msgspec import Struct

from semel.aws import CREDENTIALS, FAULTS, NO_CREDENTIALS, NOT_AWS, THROTTLED, AwsClient, AwsError, client_factory
from semel.ledgers.dynamodb.expressions import Item, Request, dump_item, load_item
from semel.ledgers.dynamodb.url import DynamoAddress
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.retry import backoff_s

DEADLINE_S = 8.0  # for one request with all its retries: well under a lease, and under the 10 s of most webhooks
CONNECT_S = 2.0
READ_S = 3.0  # the service replies within 20 ms, so a retry is better than a longer wait
BACKOFF_BASE_S = 0.025
BACKOFF_CAP_S = 1.0
GET_MAX = 100  # items of one BatchGetItem

CONFLICT = ("TransactionConflictException", "TransactionInProgressException")  # another transaction has the item
TRANSIENT = (*THROTTLED, *FAULTS, *CONFLICT, "ProvisionedThroughputExceededException", "ServiceUnavailableException")
TRANSIENT_REASONS = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")
CANCELLED = "TransactionCanceledException"


class WriteRefusal(Struct, frozen=True):
    """Conditions that did not hold; nothing was written. Per write: the stored item if it was returned, and whether its
    condition failed."""

    stored: tuple[Item | None, ...]
    failed: tuple[bool, ...]


class ConditionNotMet(Exception):
    """A condition did not hold. The response names it, with the stored item."""

    def __init__(self, response: Mapping[str, Any]) -> None:
        self.response = response


class InvalidRequest(LedgerUnavailable):
    """The service refuses the request as invalid. Nothing was written, and a retry cannot succeed."""


class NoTable(ConfigError):
    """The table does not exist."""


class DynamoClient:
    """The client of one ledger object. It belongs to the event loop that first uses it, until it is closed."""

    def __init__(self, address: DynamoAddress) -> None:
        self.address = address
        self.table = address.table
        connect = client_factory(
            "dynamodb",
            address.region,
            address.endpoint,
            user="a DynamoDB ledger",
            connect_s=CONNECT_S,
            read_s=READ_S,
            connections=address.concurrency,
            parameter_validation=False,  # requests are built here, and the service validates them too
            user_agent="semel",  # botocore builds its own for each request, which takes a tenth of its time
        )
        self._aws = AwsClient(connect, address, service="DynamoDB")
        self._reset()

    def _reset(self) -> None:
        self._slots = asyncio.Semaphore(self.address.concurrency)  # it belongs to one event loop
        self._replied_at = 0.0  # loop time of the last reply

    async def close(self) -> None:
        self._reset()
        await self._aws.close()

    async def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """Send one request, with retries after transient errors.

        Raises ConditionNotMet if a condition did not hold, ConfigError if the table or the credentials are missing, and
        LedgerUnavailable at the deadline.
        """
        await self._aws.open()
        loop = asyncio.get_running_loop()
        deadline = math.inf
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._slot(operation):
                    deadline = min(deadline, loop.time() + DEADLINE_S)
                    response = await self._aws.ask(operation, **request)
                self._replied_at = loop.time()
                return response
            except AwsError as error:
                if error.response:
                    self._replied_at = loop.time()
                if not is_transient(error):
                    raise self._translate(operation, error) from error
                failure = str(error)
            wait_s = backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            if loop.time() + wait_s > deadline:
                raise LedgerUnavailable(
                    f"{self.address}: {operation} failed {attempt} times in {DEADLINE_S:g} s, last with: {failure}; "
                    "Semel will retry. Check the network, the table's throttling metrics and its capacity"
                )
            await asyncio.sleep(wait_s)

    async def write(self, operation: str, request: Request) -> WriteRefusal | None:
        """Write one item under its condition. Returns None if it was written."""
        try:
            await self.ask(operation, **request)
        except ConditionNotMet as refusal:
            item = refusal.response.get("Item")
            return WriteRefusal((load_item(item) if item else None,), (True,))
        return None

    async def write_together(self, writes: Sequence[tuple[str, Request]]) -> WriteRefusal | None:
        """Write several items under their conditions ("Put", "Update", "Delete", "ConditionCheck"): all or none.

        Each call has its own ClientRequestToken, by which the service recognises a retry of this call only."""
        items = [{kind: request} for kind, request in writes]
        try:
            await self.ask("transact_write_items", TransactItems=items, ClientRequestToken=token_hex(16))
        except ConditionNotMet as refusal:
            reasons = refusal.response.get("CancellationReasons", [])
            if any(reason["Code"] not in ("None", "ConditionalCheckFailed", *TRANSIENT_REASONS) for reason in reasons):
                raise InvalidRequest("; ".join(reason.get("Message", reason["Code"]) for reason in reasons)) from None
            stored = [reason.get("Item") for reason in reasons]
            return WriteRefusal(
                tuple(load_item(item) if item else None for item in stored),
                tuple(reason["Code"] == "ConditionalCheckFailed" for reason in reasons),
            )
        return None

    async def get(self, keys: Iterable[Item]) -> dict[tuple[bytes, bytes], Item]:
        """Read items of this table consistently. Returns those that exist, by their keys."""
        remaining = [dump_item(key) for key in keys]
        items: dict[tuple[bytes, bytes], Item] = {}
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + DEADLINE_S, 0
        while remaining:
            attempt += 1
            page, remaining = remaining[:GET_MAX], remaining[GET_MAX:]
            request = {self.table: {"Keys": page, "ConsistentRead": True}}
            response = await self.ask("batch_get_item", RequestItems=request)
            for stored in response["Responses"].get(self.table, []):
                item = load_item(stored)
                items[item["pk"], item["sk"]] = item
            unread = response.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
            if unread:  # partly throttled, or more than 16 MB
                if len(unread) == len(page) and loop.time() > deadline:
                    raise LedgerUnavailable(f"{self.address}: reads are throttled; check the table's capacity")
                remaining = [*unread, *remaining]
                await asyncio.sleep(backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        return items

    @asynccontextmanager
    async def _slot(self, operation: str) -> AsyncIterator[None]:
        """Wait for a slot among the concurrent requests. A long queue that moves is waited for. If the service has not
        replied for a whole deadline, the request fails, because it would wait for the deadlines of all others first."""
        loop, slots, since = asyncio.get_running_loop(), self._slots, asyncio.get_running_loop().time()
        while slots.locked():
            gives_up = max(since, self._replied_at) + DEADLINE_S
            if loop.time() >= gives_up:
                raise LedgerUnavailable(
                    f"{self.address}: {operation} was not sent, because the service has not replied for "
                    f"{DEADLINE_S:g} s; Semel will retry. Check the network"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout_at(gives_up):
                    await slots.acquire()
                break
        else:
            await slots.acquire()  # without waiting
        try:
            yield
        finally:
            slots.release()

    def _translate(self, operation: str, error: AwsError) -> BaseException:
        """The exception for an error that a retry cannot change."""
        code = error.code
        if not error.response:
            if code in NO_CREDENTIALS:
                return ConfigError(f"{self.address}: {error}; {CREDENTIALS}")
            return error.unexpected or LedgerUnavailable(f"{self.address}: {error}")
        if code in ("ConditionalCheckFailedException", CANCELLED):
            return ConditionNotMet(error.response)
        if code == "ResourceNotFoundException" and operation != "transact_write_items":
            return NoTable(f"{self.address}: the table does not exist; `semel migrate` creates it")
        if code in ("ValidationException", "SerializationException", "ResourceNotFoundException"):
            return InvalidRequest(str(error))
        return LedgerUnavailable(f"{self.address}: {operation} was refused: {error}")


def is_transient(error: AwsError) -> bool:
    """Return whether a retry may succeed. Without a reply it is unknown whether the request took effect."""
    if not error.response:
        return not (error.definite or error.unexpected or error.code == NOT_AWS)
    if error.code != CANCELLED:
        return error.code in TRANSIENT or not error.definite
    codes = [reason["Code"] for reason in error.response.get("CancellationReasons", [])]
    return any(code in TRANSIENT_REASONS for code in codes) and all(
        code in ("None", *TRANSIENT_REASONS) for code in codes
    )
