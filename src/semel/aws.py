"""Clients of AWS services through aiobotocore, for the DynamoDB ledger, the EventBridge target and the SQS source.

`AwsClient` sends each request once. botocore's retries are off, because botocore does not know the caller's deadline:
each caller decides how long a retry makes sense. Credentials come from the usual AWS chain.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import cache
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from semel.values.errors import ConfigError

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Any]]
"""Creates a client of aiobotocore, or an object with the same methods."""

REOPEN_S = 5.0  # between two clients when there are no credentials: opening a client costs a tenth of a second
TEXT_MAX = 300  # characters of a service's message that an error shows
CREDENTIALS = "credentials come from the usual AWS chain: environment, profile, or the role of the machine"

THROTTLED = ("ThrottlingException", "Throttling", "TooManyRequestsException", "RequestLimitExceeded")
FAULTS = ("InternalServerError", "InternalFailure", "InternalException", "ServiceUnavailable")
DENIED = ("AccessDeniedException", "AccessDenied")
NO_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError")
HOPELESS = (*NO_CREDENTIALS, "NoRegionError", "ProfileNotFound", "ParamValidationError")
"""Errors of the driver that a retry cannot change."""
NOT_AWS = "NotAnAwsService"  # our own code: the server that replied is a proxy, for example

# A genuine response has both; most emulators send one of them.
JSON_CONTENT_TYPE, REQUEST_ID_HEADER = "application/x-amz-json", "x-amzn-requestid"


class AwsError(Exception):
    """A request that failed or whose result is unknown. `definite`: the service refused it, or it was not sent."""

    def __init__(self, code: str, text: str, definite: bool, response: Mapping[str, Any] | None = None) -> None:
        super().__init__(f"{code}: {text}" if text else code)
        self.code = code
        self.definite = definite
        self.response = response or {}  # empty if the service did not reply
        self.unexpected: Exception | None = None  # neither the driver's nor the network's: a TypeError, for example

    @property
    def is_transient(self) -> bool:
        """True if a retry may succeed."""
        return not self.definite or is_transient(self.code)


def is_transient(code: str) -> bool:
    """Return whether a retry may succeed after this error code. Other codes concern the request or its sender."""
    return code in THROTTLED or code in FAULTS


def error_name(code: object) -> str:
    """Name of an error without its prefix: services also write `com.amazonaws.sqs#Name` and
    `AWS.SimpleQueueService.Name`."""
    return str(code or "?").rpartition("#")[2].rpartition(".")[2]


class AwsClient:
    """One client of one service. It belongs to the event loop that opened it, until it is closed."""

    def __init__(self, connect: Connect, name: object, timeout_s: float | None = None, service: str = "") -> None:
        """`name` is shown in errors. With `service`, each response must come from an AWS service of that name."""
        self._connect = connect
        self._name = name
        self._timeout_s = timeout_s
        self._service = service
        self._stack = AsyncExitStack()
        self._reset()

    def _reset(self) -> None:
        self._aws: Any = None
        self._opening = asyncio.Lock()  # it belongs to the event loop in which a task first waits for it
        self._reopen_at = 0.0  # monotonic

    async def open(self) -> Any:
        """Open the client if it is not open. Raises ConfigError if the driver is missing or no region is set."""
        if self._aws is None:
            async with self._opening:
                if self._aws is None:
                    await self._stack.aclose()  # a client that found no credentials
                    self._aws = await self._enter()
                    self._reopen_at = time.monotonic() + REOPEN_S
        return self._aws

    async def close(self) -> None:
        self._reset()
        await self._stack.aclose()

    async def ask(self, operation: str, within_s: float | None = None, **request: Any) -> dict[str, Any]:
        """Send one request once. Raises AwsError."""
        aws = self._aws or await self.open()
        limit_s = within_s or self._timeout_s
        try:
            async with asyncio.timeout(limit_s):
                response: dict[str, Any] = await getattr(aws, operation)(**request)
        except TimeoutError:
            raise AwsError("no answer", f"{operation} took more than {limit_s or 0:g} s", False) from None
        except Exception as error:  # any error of the driver, its connection or its source of credentials
            failure = _classify(error)
            if failure.code in NO_CREDENTIALS and aws is self._aws and time.monotonic() >= self._reopen_at:
                self._aws = None  # a client that found no credentials never looks for them again
            raise failure from None
        if self._service:
            self._check_service(response)
        return response

    async def _enter(self) -> Any:
        client = self._connect()
        from botocore.exceptions import BotoCoreError, NoRegionError

        try:
            return await self._stack.enter_async_context(client)
        except NoRegionError as error:
            raise ConfigError(f"{self._name}: no region: set region in its URL or its table, or AWS_REGION") from error
        except (BotoCoreError, ValueError) as error:
            raise ConfigError(f"{self._name}: {_first_line(error)}") from error

    def _check_service(self, response: Mapping[str, Any]) -> None:
        """Refuse a page with status 200 from a proxy, which botocore takes for a success. Nothing was written."""
        headers = response["ResponseMetadata"]["HTTPHeaders"]
        content_type = headers.get("content-type", "")
        if not content_type.startswith(JSON_CONTENT_TYPE) and REQUEST_ID_HEADER not in headers:
            raise AwsError(
                NOT_AWS,
                f"the server that replied is not {self._service} ({content_type[:80] or 'no content type'}); check the "
                "endpoint in the URL, and proxies (HTTPS_PROXY)",
                False,
            )


def client_factory(
    service: str,
    region: str | None,
    endpoint: str | None,
    *,
    user: str,
    connect_s: float,
    read_s: float,
    connections: int,
    **config: Any,
) -> Connect:
    """Return a function that creates a client of a service. `user` is the feature that needs the driver."""

    def connect() -> AbstractAsyncContextManager[Any]:
        try:
            from aiobotocore.config import AioConfig
            from aiobotocore.session import AioSession
        except ImportError as error:
            raise ConfigError(f"{user} needs aiobotocore: install semel[aws]") from error
        session = AioSession()
        session.register_component("data_loader", _loader())
        aio_config = AioConfig(
            connect_timeout=connect_s,
            read_timeout=read_s,
            max_pool_connections=connections,
            retries={"mode": "standard", "total_max_attempts": 1},
            tcp_keepalive=True,
            **config,
        )
        client: AbstractAsyncContextManager[Any] = session.create_client(
            service, region_name=region, endpoint_url=endpoint, config=aio_config
        )
        return client

    return connect


@cache
def _loader() -> Any:
    """Loader of the AWS service descriptions. They take 70 ms to read, and all clients share them."""
    from botocore.loaders import create_loader

    return create_loader()


def _classify(error: Exception) -> AwsError:
    from botocore.exceptions import BotoCoreError, ClientError

    if not isinstance(error, ClientError):
        name = type(error).__name__
        failure = AwsError(name, _first_line(error), name in HOPELESS)
        failure.unexpected = None if isinstance(error, BotoCoreError | OSError) else error
        return failure
    details: Mapping[str, Any] = error.response["Error"]
    definite = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) < 500
    text = str(details.get("Message", ""))[:TEXT_MAX]
    return AwsError(error_name(details.get("Code")), text, definite, error.response)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:TEXT_MAX]


class AwsUrl(Struct, frozen=True):
    """The parts of `dynamodb://table?region=…` or `eventbridge://bus?region=…`."""

    shown: str  # the setting and the URL without its options, for errors: an option may contain a secret by mistake
    target: str
    options: dict[str, str]
    region: str | None
    endpoint: str | None


def parse_url(setting: str, url: str, known: tuple[str, ...]) -> AwsUrl:
    """Raises ConfigError for credentials in the URL, unknown options and an invalid endpoint."""
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(
            f"{setting} {parts.scheme}://…: a URL with user and password is refused, because URLs appear in logs; "
            f"{CREDENTIALS}"
        )
    shown = f"{setting} {url.partition('?')[0]!r}"
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise ConfigError(f"{shown}: unknown option {name!r}; known are: {', '.join(known)}")
    endpoint = options.get("endpoint") or None
    if endpoint is not None:
        place = urlsplit(endpoint)
        if place.scheme not in ("http", "https") or not place.hostname or "@" in place.netloc:
            raise ConfigError(f"{shown}: endpoint: expected http://host:port or https://host, without credentials")
    return AwsUrl(shown, (parts.netloc + parts.path).rstrip("/"), options, options.get("region") or None, endpoint)
