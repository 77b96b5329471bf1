"""Client of SQS: sends one request and classifies its failure.

The client does not retry. Each caller knows how long a retry makes sense; botocore does not, so its retries are off.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import Any, TypeAlias

from semel.values.errors import ConfigError

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Creates an SQS client of aiobotocore, or an object with the same methods."""

CONNECT_S = 3.0
ASK_S = 5.0  # for one request that does not wait for messages: the service answers within 100 ms
POLL_MORE_S = 5.0  # beyond the requested wait of a long poll

_REGION = re.compile(r"https://(?:sqs|queue)\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)")
_OLD_HOST = re.compile(r"https://(?P<region>[a-z0-9-]+)\.queue\.amazonaws\.com")

EXPIRED = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight")
"""Error codes of a receipt that is no longer valid: it has expired, or the message was received again."""
MISSING = ("QueueDoesNotExist", "NonExistentQueue")
DENIED = ("AccessDenied", "AccessDeniedException")
HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound", "ParamValidationError")
"""Errors of the driver that a retry cannot change."""


class SqsError(Exception):
    """A request that failed or whose result is unknown. `definite`: the service refused it."""

    def __init__(self, code: str, text: str, definite: bool) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.definite = definite


class SqsClient:
    """One SQS client. It belongs to the event loop that opened it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._aws: Any = None

    async def open(self) -> None:
        """Raises ConfigError: the driver is missing, or no region is known."""
        client_factory = self._connect()
        from botocore.exceptions import BotoCoreError

        try:
            self._aws = await self._stack.enter_async_context(client_factory)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"SQS: {_first_line(error)}") from error

    async def close(self) -> None:
        self._aws = None
        await self._stack.aclose()

    async def ask(self, operation: str, within_s: float = ASK_S, **request: Any) -> Mapping[str, Any]:
        """Send one request once. Raises SqsError."""
        try:
            async with asyncio.timeout(within_s):
                answer: Mapping[str, Any] = await getattr(self._aws, operation)(**request)
            return answer
        except TimeoutError:
            raise SqsError("no answer", f"{operation} took more than {within_s:g} s", False) from None
        except Exception as error:  # any error of the driver, its connection or its source of credentials
            raise _failure(error) from None


def _failure(error: Exception) -> SqsError:
    """Classify an error of the driver."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        name = type(error).__name__
        return SqsError(name, _first_line(error), name in HOPELESS)
    details: Mapping[str, Any] = error.response["Error"]
    definite = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500
    return SqsError(error_name(details.get("Code")), str(details.get("Message", ""))[:300], definite)


def error_name(code: object) -> str:
    """Name of an error without its prefix: services also write `com.amazonaws.sqs#Name` and
    `AWS.SimpleQueueService.Name`."""
    return str(code or "?").rpartition("#")[2].rpartition(".")[2]


def client_factory(queue: str, region: str, endpoint: str, connections: int, wait_s: int) -> Connect:
    """Return a function that creates a client for this queue, with credentials from the usual AWS chain."""

    def connect() -> AbstractAsyncContextManager[Any]:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError("SQS needs aiobotocore: install semel[aws]") from error
        session = AioSession()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=CONNECT_S,
            read_timeout=wait_s + POLL_MORE_S,
            max_pool_connections=connections,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
        )
        client: AbstractAsyncContextManager[Any] = session.create_client(
            "sqs", region_name=region or region_of(queue), endpoint_url=endpoint or None, config=config
        )
        return client

    return connect


def region_of(queue: str) -> str | None:
    """Region in a queue's URL. None: the usual AWS chain decides."""
    match = _REGION.match(queue) or _OLD_HOST.match(queue)
    return match["region"] if match else None


@cache
def _loader() -> Any:
    """Loader of the AWS service descriptions. They are slow to read, and all clients share them."""
    from botocore.loaders import create_loader

    return create_loader()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
