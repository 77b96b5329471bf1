"""The way to the bus: one client, and what a failure means. There are no retries here: botocore's own are off, since
they know nothing of our deadline."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import cache
from typing import Any

from semel.adapters.letterboxes.eventbridge.address import Address
from semel.values.errors import ConfigError

CONNECT_S = 2.0
READ_S = 3.0  # the service answers within 50 ms; a second try is worth more than a longer wait
CONNECTIONS = 4  # letters are rare
OPEN_AGAIN_S = 5.0  # a client costs a tenth of a second, and a settle is tried again many times a second
SPOKEN, NUMBERED = "application/x-amz-json", "x-amzn-requestid"  # its answers have both, most emulators' one of them

THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
MISSING = ("ResourceNotFoundException",)
DENIED = ("AccessDeniedException", "AccessDenied")
HOPELESS = ("NoCredentialsError", "PartialCredentialsError", "NoRegionError", "ProfileNotFound", "ParamValidationError")
"""Errors of the driver that no other try will change."""


class Failed(Exception):
    """A request that came to nothing, or of which nobody knows. `definite`: no repetition will change that."""

    def __init__(self, code: str, said: str, definite: bool) -> None:
        super().__init__(f"{code}: {said}" if said else code)
        self.code = code
        self.definite = definite


class Client:
    """Belongs to the event loop that first used it, until it is closed."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._stack = AsyncExitStack()
        self._begin()

    def _begin(self) -> None:
        """As new. A lock belongs to the loop in which somebody first had to wait for it."""
        self._aws: Any = None
        self._opening = asyncio.Lock()
        self._open_again_at = 0.0  # monotonic

    async def close(self) -> None:
        self._begin()
        await self._stack.aclose()

    async def ask(self, operation: str, **request: Any) -> Mapping[str, Any]:
        """One request, sent once. Raises Failed, and ConfigError where the driver or the region is missing."""
        aws = await self._opened()
        try:
            async with asyncio.timeout(CONNECT_S + READ_S):
                answer: Mapping[str, Any] = await getattr(aws, operation)(**request)
        except TimeoutError:
            raise Failed("no answer", f"{operation} took more than {CONNECT_S + READ_S:g} s", False) from None
        except Exception as error:  # whatever a driver, its connection or its source of credentials may come up with
            failure = _failure(error)
            if failure.code in HOPELESS and time.monotonic() >= self._open_again_at:
                self._aws = None  # it would never look for credentials again
            raise failure from None
        _check_speaker(answer)
        return answer

    async def _opened(self) -> Any:
        if self._aws is None:
            async with self._opening:
                if self._aws is None:
                    await self._stack.aclose()  # of one that found no credentials; there may be many such
                    self._aws = await self._open()
                    self._open_again_at = time.monotonic() + OPEN_AGAIN_S
        return self._aws

    async def _open(self) -> Any:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError("dead letters on EventBridge need aiobotocore: install semel[aws]") from error
        from botocore.exceptions import BotoCoreError, NoRegionError

        session = AioSession()
        session.register_component("data_loader", _loader())
        config = AioConfig(
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
        )
        try:
            return await self._stack.enter_async_context(
                session.create_client(
                    "events", region_name=self.address.region, endpoint_url=self.address.endpoint, config=config
                )
            )
        except NoRegionError as error:
            raise ConfigError(f"{self.address}: no region: add ?region=… to the URL, or set AWS_REGION") from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{self.address}: {_first_line(error)}") from error


def is_passing(code: str) -> bool:
    """Whether one refused entry may be taken at the next try. All other codes are about the entry, or about us."""
    return code in THROTTLED or code in ("InternalFailure", "InternalException", "InternalServerError")


def _failure(error: Exception) -> Failed:
    """What an error of the driver means to whoever asked."""
    from botocore.exceptions import ClientError

    if not isinstance(error, ClientError):
        name = type(error).__name__
        return Failed(name, _first_line(error), name in HOPELESS)
    told: Mapping[str, Any] = error.response["Error"]
    code = str(told.get("Code") or "?").rpartition("#")[2]
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return Failed(code, str(told.get("Message", ""))[:300], status < 500 and not is_passing(code))


def _check_speaker(answer: Mapping[str, Any]) -> None:
    """botocore takes any page with status 200 for a yes: of a proxy, say. Nothing is kept then."""
    headers = answer["ResponseMetadata"]["HTTPHeaders"]
    kind = headers.get("content-type", "")
    if not kind.startswith(SPOKEN) and NUMBERED not in headers:
        said = f"who answers there is not EventBridge ({kind[:80] or 'no content type'}); look at endpoint and proxies"
        raise Failed("no service", said, False)


@cache
def _loader() -> Any:
    """The descriptions of AWS's services: slow to read, and the same for every client."""
    from botocore.loaders import create_loader

    return create_loader()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:300]
