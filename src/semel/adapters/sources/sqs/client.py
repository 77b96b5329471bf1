"""The way to a queue: one client, and what a failure means. There are no retries here: each caller knows how long
another try makes sense, and botocore's own are off, because they know nothing of that."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import Any, TypeAlias

from semel.values.errors import ConfigError

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Gives an SQS client of aiobotocore, or what behaves like one."""

CONNECT_S = 3.0
ASK_S = 5.0  # for one request that does not wait for messages: the service answers within 100 ms
POLL_MORE_S = 5.0  # beyond the time that a long poll was asked to wait

_REGION = re.compile(r"https://(?:sqs|queue)\.(?P<region>[a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)")
_OLD_HOST = re.compile(r"https://(?P<region>[a-z0-9-]+)\.queue\.amazonaws\.com")

EXPIRED = ("ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight")
"""The queue says that a receipt is ours no more: it has expired, or the message was received again."""
MISSING = ("QueueDoesNotExist", "NonExistentQueue")
DENIED = ("AccessDenied", "AccessDeniedException")
HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound", "ParamValidationError")
"""Errors of the driver that no other try will change."""


class Failed(Exception):
    """A request that came to nothing, or of which nobody knows. `definite`: the service has refused it."""

    def __init__(self, code: str, said: str, definite: bool) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code
        self.definite = definite


class Client:
    """Belongs to the event loop that opened it."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._stack = AsyncExitStack()
        self._aws: Any = None

    async def open(self) -> None:
        """Raises ConfigError: the driver is missing, or no region is known."""
        connecting = self._connect()
        from botocore.exceptions import BotoCoreError

        try:
            self._aws = await self._stack.enter_async_context(connecting)
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"SQS: {_first_line(error)}") from error

    async def close(self) -> None:
        self._aws = None
        await self._stack.aclose()

    async def ask(self, operation: str, within_s: float = ASK_S, **request: Any) -> Mapping[str, Any]:
        """One request, sent once. Raises Failed."""
        try:
            async with asyncio.timeout(within_s):
                answer: Mapping[str, Any] = await getattr(self._aws, operation)(**request)
            return answer
        except TimeoutError:
            raise Failed("no answer", f"{operation} took more than {within_s:g} s", False) from None
        except Exception as error:  # whatever a driver, its connection or its source of credentials may come up with
            raise _failure(error) from None


def _failure(error: Exception) -> Failed:
    """What an error of the driver means to whoever asked."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        name = type(error).__name__
        return Failed(name, _first_line(error), name in HOPELESS)
    told: Mapping[str, Any] = error.response["Error"]
    definite = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500
    return Failed(plain(told.get("Code")), str(told.get("Message", ""))[:300], definite)


def plain(code: object) -> str:
    """The name of an error, which services write as `com.amazonaws.sqs#Name` or `AWS.SimpleQueueService.Name` too."""
    return str(code or "?").rpartition("#")[2].rpartition(".")[2]


def connecting(queue: str, region: str, endpoint: str, connections: int, wait_s: int) -> Connect:
    """How to get a client for this queue, with credentials by the usual chain."""

    def connect() -> AbstractAsyncContextManager[Any]:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError("a source in SQS needs aiobotocore: install semel[aws]") from error
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
    """The region that a queue's URL names; None: the usual chain knows it."""
    match = _REGION.match(queue) or _OLD_HOST.match(queue)
    return match["region"] if match else None


@cache
def _loader() -> Any:
    """The descriptions of AWS's services: slow to read, and the same for every client."""
    from botocore.loaders import create_loader

    return create_loader()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
