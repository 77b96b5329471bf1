"""The way to the table: one client, a bounded number of requests at a time, and what a failure means.

There is one loop of retries, and it is here: botocore's own is off, since it knows nothing of our deadline. A request
may be sent again after its reply was lost, also a conditional write that has happened. So whoever sends one must find
itself in the refusal: grants carry a nonce, settles their token and outcome, transactions a ClientRequestToken.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import cache
from secrets import token_hex
from typing import Any

from msgspec import Struct

from semel.ledgers.dynamodb.expressions import Request
from semel.ledgers.dynamodb.items import Item, dump_item, load_item
from semel.ledgers.dynamodb.url import Address
from semel.values.errors import ConfigError, LedgerUnavailable
from semel.values.retry import backoff_s

DEADLINE_S = 8.0  # for one request with all its retries: well under a lease, and under the 10 s of most webhooks
CONNECT_S = 2.0
READ_S = 3.0  # the service answers within 20 ms; a second try is worth more than a longer wait
BACKOFF_BASE_S = 0.025
BACKOFF_CAP_S = 1.0
GET_MAX = 100  # items of one BatchGetItem
SPOKEN, NUMBERED = "application/x-amz-json", "x-amzn-requestid"  # its answers have both, most emulators' one of them

THROTTLED = ("ProvisionedThroughputExceededException", "ThrottlingException", "RequestLimitExceeded", "Throttling")
CONFLICT = ("TransactionConflictException", "TransactionInProgressException")  # someone's transaction has the item now
FAULTS = ("InternalServerError", "InternalFailure", "ServiceUnavailable", "ServiceUnavailableException")
PASSING = (*THROTTLED, *CONFLICT, *FAULTS)
PASSING_REASONS = ("TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded")


class Refused(Struct, frozen=True):
    """Conditions that did not hold; nothing was written. For each write what was there instead, where that is told."""

    found: tuple[Item | None, ...]
    failed: tuple[bool, ...]


class Declined(Exception):
    """A condition did not hold. The response says which, and what was there instead."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(_said(response))
        self.response = response


class Invalid(LedgerUnavailable):
    """The service says that the request makes no sense: nothing was written, and nothing will be by a repetition."""


class NoTable(ConfigError):
    """The table is not there."""


class Client:
    """One ledger object's client; belongs to the event loop that first used it, until it is closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.table = address.table
        self._stack = AsyncExitStack()
        self._begin()

    def _begin(self) -> None:
        """As new. Locks belong to the loop in which somebody first had to wait for them."""
        self._aws: Any = None
        self._opening = asyncio.Lock()
        self._room = asyncio.Semaphore(self.address.concurrency)
        self._heard_at = 0.0  # loop time: when the service last said anything

    async def close(self) -> None:
        self._begin()
        await self._stack.aclose()

    async def ask(self, operation: str, **request: Any) -> dict[str, Any]:
        """One request, repeated while it fails for a passing reason. Raises Declined where a condition did not hold,
        ConfigError where the table or the credentials are missing, LedgerUnavailable where the time is over."""
        aws = await self._opened()
        from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, PartialCredentialsError

        loop = asyncio.get_running_loop()
        ends = math.inf
        attempt = 0
        while True:
            attempt += 1
            try:
                async with self._some_room(operation):
                    ends = min(ends, loop.time() + DEADLINE_S)
                    answer: dict[str, Any] = await getattr(aws, operation)(**request)
                self._heard_at = loop.time()
                self._check_speaker(answer)
                return answer
            except ClientError as error:
                self._heard_at = loop.time()
                if not _is_passing(error.response):
                    raise self._meant(operation, error) from error
                failure = _said(error.response)
            except (NoCredentialsError, PartialCredentialsError) as error:
                self._aws = None  # it would never look for them again
                raise ConfigError(
                    f"{self.address}: {_first_line(error)}; credentials come by the usual AWS chain: environment, "
                    "profile, or the role of the machine"
                ) from error
            except (BotoCoreError, OSError) as error:  # nobody knows whether it was done
                failure = _first_line(error)
            wait_s = backoff_s(attempt, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S)
            if loop.time() + wait_s > ends:
                raise LedgerUnavailable(
                    f"{self.address}: {operation} failed {attempt} times in {DEADLINE_S:g} s, at last with: {failure}; "
                    "it will be tried again. Look at the network, the table's throttling metrics and its capacity"
                )
            await asyncio.sleep(wait_s)

    async def write(self, operation: str, request: Request) -> Refused | None:
        """A conditional write of one item. None: it was done."""
        try:
            await self.ask(operation, **request)
        except Declined as declined:
            item = declined.response.get("Item")
            return Refused((load_item(item) if item else None,), (True,))
        return None

    async def write_together(self, writes: Sequence[tuple[str, Request]]) -> Refused | None:
        """Conditional writes ("Put", "Update", "Delete", "ConditionCheck") of several items: all of them or none.

        The token is this call's own, so that a repetition of it, and nothing else, is known by the service."""
        items = [{kind: request} for kind, request in writes]
        token = token_hex(16)
        try:
            await self.ask("transact_write_items", TransactItems=items, ClientRequestToken=token)
        except Declined as declined:
            reasons = declined.response.get("CancellationReasons", [])
            if any(reason["Code"] not in ("None", "ConditionalCheckFailed", *PASSING_REASONS) for reason in reasons):
                raise Invalid("; ".join(reason.get("Message", reason["Code"]) for reason in reasons)) from None
            found = [reason.get("Item") for reason in reasons]
            return Refused(
                tuple(load_item(item) if item else None for item in found),
                tuple(reason["Code"] == "ConditionalCheckFailed" for reason in reasons),
            )
        return None

    async def get(self, keys: Iterable[Item], consistent: bool = True) -> dict[tuple[bytes, bytes], Item]:
        """The items of this table that are there, by their keys."""
        wanted = [dump_item(key) for key in keys]
        found: dict[tuple[bytes, bytes], Item] = {}
        loop = asyncio.get_running_loop()
        ends, turn = loop.time() + DEADLINE_S, 0
        while wanted:
            turn += 1
            some, wanted = wanted[:GET_MAX], wanted[GET_MAX:]
            asked = {self.table: {"Keys": some, "ConsistentRead": consistent}}
            answer = await self.ask("batch_get_item", RequestItems=asked)
            for stored in answer["Responses"].get(self.table, []):
                item = load_item(stored)
                found[item["pk"], item["sk"]] = item
            left = answer.get("UnprocessedKeys", {}).get(self.table, {}).get("Keys", [])
            if left:  # throttled in part, or more than 16 MB
                if len(left) == len(some) and loop.time() > ends:
                    raise LedgerUnavailable(f"{self.address}: reads are throttled; look at the table's capacity")
                wanted = [*left, *wanted]
                await asyncio.sleep(backoff_s(turn, random.random, BACKOFF_BASE_S, BACKOFF_CAP_S))
        return found

    @asynccontextmanager
    async def _some_room(self, operation: str) -> AsyncIterator[None]:
        """A place among the requests under way. A long queue that moves is waited for; one that has heard nothing for
        a whole deadline is not: each in it would wait for the others' deadlines before its own."""
        loop, room, since = asyncio.get_running_loop(), self._room, asyncio.get_running_loop().time()
        while room.locked():
            gives_up = max(since, self._heard_at) + DEADLINE_S
            if loop.time() >= gives_up:
                raise LedgerUnavailable(
                    f"{self.address}: {operation} was not sent: nothing was answered for {DEADLINE_S:g} s; it will be "
                    "tried again. Look at the network"
                )
            with suppress(TimeoutError):
                async with asyncio.timeout_at(gives_up):
                    await room.acquire()
                break
        else:
            await room.acquire()  # at once
        try:
            yield
        finally:
            room.release()

    def _check_speaker(self, answer: Mapping[str, Any]) -> None:
        """botocore takes any page with status 200 for a yes: of a proxy, say. Nothing was written then."""
        headers = answer["ResponseMetadata"]["HTTPHeaders"]
        kind = headers.get("content-type", "")
        if not kind.startswith(SPOKEN) and NUMBERED not in headers:
            raise LedgerUnavailable(
                f"{self.address}: who answers there is not DynamoDB ({kind[:80] or 'no content type'}); look at the "
                "endpoint in the ledger's URL, and at proxies (HTTPS_PROXY)"
            )

    async def _opened(self) -> Any:
        if self._aws is None:
            async with self._opening:
                if self._aws is None:
                    self._aws = await self._open()
        return self._aws

    async def _open(self) -> Any:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError("a ledger in DynamoDB needs aiobotocore: install semel[aws]") from error
        from botocore.exceptions import BotoCoreError, NoRegionError

        session = AioSession()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=self.address.concurrency,
            retries={"mode": "standard", "total_max_attempts": 1},
            parameter_validation=False,  # requests are made here, and the service checks them anyway
            user_agent="semel",  # botocore's own is put together anew for each request, and takes a tenth of its time
            tcp_keepalive=True,
        )
        try:
            return await self._stack.enter_async_context(
                session.create_client(
                    "dynamodb", region_name=self.address.region, endpoint_url=self.address.endpoint, config=config
                )
            )
        except NoRegionError as error:
            raise ConfigError(f"{self.address}: no region: add ?region=… to the URL, or set AWS_REGION") from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{self.address}: {_first_line(error)}") from error

    def _meant(self, operation: str, error: Any) -> Exception:
        """What a definite answer means to whoever asked."""
        code = error.response["Error"]["Code"]
        if code in ("ConditionalCheckFailedException", "TransactionCanceledException"):
            return Declined(error.response)
        if code == "ResourceNotFoundException" and operation != "transact_write_items":
            return NoTable(f"{self.address}: there is no such table; `semel migrate` creates it")
        if code in ("ValidationException", "SerializationException", "ResourceNotFoundException"):
            return Invalid(_said(error.response))
        return LedgerUnavailable(f"{self.address}: {operation} was refused: {_said(error.response)}")


@cache
def _loader() -> Any:
    """The descriptions of AWS's services: 70 ms to read, and the same for every client."""
    from botocore.loaders import create_loader

    return create_loader()


def _is_passing(response: Mapping[str, Any]) -> bool:
    code = response["Error"].get("Code", "")
    if code != "TransactionCanceledException":
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return code in PASSING or status >= 500
    codes = [reason["Code"] for reason in response.get("CancellationReasons", [])]
    return any(code in PASSING_REASONS for code in codes) and all(code in ("None", *PASSING_REASONS) for code in codes)


def _said(response: Mapping[str, Any]) -> str:
    error = response["Error"]
    return f"{error.get('Code', '?')}: {error.get('Message', '')}"[:500]


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".splitlines()[0][:500]
