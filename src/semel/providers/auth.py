"""Authentication of provider requests: fixed headers, basic, OAuth tokens and AWS signatures.

Secrets are kept in memory only and are redacted from every text.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode

import msgspec
from msgspec import Struct

from semel.http_client.client import Answered, Client, Unanswered, Unsent
from semel.values.errors import ConfigError
from semel.values.outbox import checked_by
from semel.values.secret import Secret

EARLY_S = 60.0  # renew a token this long before it expires: a token that expires on its way causes a refusal
TOKEN_MAX_S = 86_400.0
SECRET_MIN_CHARS = 4  # a shorter text would match ordinary words by chance
REDACTED = "…"
REFUSED_CREDENTIALS = (400, 401, 403)  # of a token endpoint (RFC 6749, 5.2: invalid_client, invalid_grant)


class CredentialsError(Exception):
    """No credentials are available. Nothing was sent."""

    def __init__(self, why: str, after_s: float | None = None, *, configuration: bool = False) -> None:
        """`configuration`: the credentials are wrong, so a retry helps only after the operator changes them."""
        super().__init__(why)
        self.configuration = configuration
        self.after_s = after_s  # the delay that the token endpoint requested, if any


class OutgoingRequest(Struct, frozen=True):
    """A request before authentication. A signature covers all of it."""

    method: str
    url: str
    body: bytes
    content_type: str = ""


class Auth(Protocol):
    budget_s: float
    """Maximum duration of `headers`. The send has the rest of the provider's timeout."""

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        """Raises CredentialsError."""

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Discard the credentials in these headers: the provider refused them."""

    def redact(self, text: str) -> str:
        """Remove secrets that a provider may have repeated in its response."""

    async def close(self) -> None: ...


class HeaderAuth:
    """Fixed headers. `scheme` precedes each value, such as "Bearer "."""

    budget_s = 0.0

    def __init__(self, headers: Mapping[str, Secret], scheme: str = "") -> None:
        self._headers = headers
        self._scheme = scheme
        self.names = frozenset(name.lower() for name in headers)

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        return check_header_values({name: self._scheme + value.reveal() for name, value in self._headers.items()})

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Fixed credentials stay: only the operator can change them."""

    def redact(self, text: str) -> str:
        values = [value.reveal() for value in self._headers.values()]
        return redact_secrets(
            text, *values, *(value.rpartition(" ")[2] for value in values)
        )  # the part after "Bearer "

    async def close(self) -> None:
        """Holds no resources."""


class BasicAuth:
    budget_s = 0.0

    def __init__(self, username: str, password: Secret) -> None:
        self._username = username
        self._password = password

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        return {"Authorization": basic_header(self._username, self._password)}

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Fixed credentials stay: only the operator can change them."""

    def redact(self, text: str) -> str:
        return redact_secrets(
            text, self._password.reveal(), basic_header(self._username, self._password).removeprefix("Basic ")
        )

    async def close(self) -> None:
        """Holds no resources."""


def basic_header(username: str, password: Secret) -> str:
    return "Basic " + base64.b64encode(f"{username}:{password.reveal()}".encode()).decode()


def check_header_values(headers: Mapping[str, str]) -> Mapping[str, str]:
    """Raises CredentialsError for a value that no header can contain, such as a key file with two lines."""
    for name, value in headers.items():
        if not (value.isascii() and value.isprintable()):
            why = f"the credentials for {name} contain a character that is not allowed in a header: check their source"
            raise CredentialsError(why, configuration=True)
    return headers


def redact_secrets(text: str, *secrets: str) -> str:
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SECRET_MIN_CHARS:
            text = text.replace(secret, REDACTED)
    return text


def _always_current() -> None:
    """Replaces the lease check during a token request: the token is shared, so the expired lease of the first waiter
    must not fail the others."""


class _Granted(Struct, frozen=True):
    access_token: str
    expires_in: float = 300.0


_granted = msgspec.json.Decoder(_Granted, strict=False).decode  # some endpoints send expires_in as a string


class OAuthToken:
    """An OAuth access token, requested with `form` and reused until shortly before it expires.

    Concurrent sends share one token request and its result. A slow token endpoint delays a send by `budget_s` at most.
    """

    def __init__(
        self,
        client: Client,
        url: str,
        form: Callable[[], Mapping[str, str]],
        *,
        budget_s: float,
        headers: Callable[[], Mapping[str, str]] = dict,
        secrets: tuple[Secret, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`client` calls the token endpoint, with `budget_s` as its timeout. `secrets` are in `form` and `headers`."""
        self.budget_s = budget_s
        self._client = client
        self._url = url
        self._form = form
        self._extra_headers = headers
        self._secrets = secrets
        self._clock = clock
        self._renewal: asyncio.Task[CredentialsError | None] | None = None
        self._token = self._previous = ""
        self._until = 0.0

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        if self._clock() >= self._until and (failure := await self._renew()) is not None:
            raise CredentialsError(str(failure), failure.after_s, configuration=failure.configuration)
        return {"Authorization": f"Bearer {self._token}"}

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Discard the token only if it is the refused one: late refusals of an old token must not discard a new one."""
        if headers.get("Authorization") == f"Bearer {self._token}":
            self._until = 0.0

    def redact(self, text: str) -> str:
        tokens = self._token, self._previous  # a response may belong to a request with the previous token
        return redact_secrets(text, *tokens, *(secret.reveal() for secret in self._secrets))

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])
        await self._client.close()

    async def _renew(self) -> CredentialsError | None:
        if self._renewal is None:
            with checked_by(_always_current):
                self._renewal = asyncio.create_task(self._request_token())
            self._renewal.add_done_callback(self._renewal_done)
        return await asyncio.shield(self._renewal)  # a cancelled waiter must not cancel the request of the others

    def _renewal_done(self, task: asyncio.Task[CredentialsError | None]) -> None:
        self._renewal = None

    async def _request_token(self) -> CredentialsError | None:
        kind = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}
        body = urlencode(self._form()).encode()
        usual = {"Accept-Encoding": "identity", "User-Agent": "Semel"}
        match await self._client.ask(self._url, body, {**kind, **usual, **self._extra_headers()}):
            case Answered(status=200, body=bytes(body)):
                return self._keep(body)
            case Answered(status=status, after_s=after_s):
                refused = status in REFUSED_CREDENTIALS
                return CredentialsError(f"the token endpoint answered {status}", after_s, configuration=refused)
            case Unsent(why=why) | Unanswered(why=why):
                return CredentialsError(f"the token endpoint: {why}")

    def _keep(self, body: bytes) -> CredentialsError | None:
        try:
            granted = _granted(body)
            check_header_values({"Authorization": granted.access_token})
        except (msgspec.DecodeError, UnicodeDecodeError, CredentialsError):
            return CredentialsError("the response of the token endpoint contains no token")
        self._previous, self._token = self._token, granted.access_token
        self._until = self._clock() + max(1.0, min(granted.expires_in, TOKEN_MAX_S) - EARLY_S)
        return None


SIGNATURE_HEADERS = ("Authorization", "X-Amz-Date", "X-Amz-Security-Token")
SIGN_IN_SHARE = 1 / 3  # of a send's timeout: on an instance, credentials come from the metadata service


class AwsSignature:
    """AWS Signature Version 4 for one service in one region.

    botocore computes the signature only. Semel's HTTP client sends the request once, so botocore's retries never apply
    and the outcome is as certain as with any other provider. Without `key_id`, credentials come from the usual AWS
    chain: environment, profile or role.
    """

    def __init__(
        self, service: str, region: str, *, timeout_s: float, key_id: str = "", secret: Secret | None = None
    ) -> None:
        try:
            import aiobotocore.session  # noqa: F401  # fail at start-up, not at the first message
        except ImportError as error:
            raise ConfigError("SES needs aiobotocore: install semel[aws]") from error
        if bool(key_id) != (secret is not None):
            raise ConfigError("access_key_id and secret_access_key belong together: set both or neither")
        self.budget_s = timeout_s * SIGN_IN_SHARE if secret is None else 0.0
        self._service = service
        self._region = region
        self._key_id = key_id
        self._secret = secret
        self._found: Any = None  # botocore's credentials, which renew themselves
        self._finding = asyncio.Lock()

    async def headers(self, request: OutgoingRequest) -> Mapping[str, str]:
        credentials = await self._credentials()
        from botocore.auth import SigV4Auth
        from botocore.awsrequest import AWSRequest

        signed = AWSRequest(request.method, request.url, {"Content-Type": request.content_type}, request.body)
        SigV4Auth(credentials, self._service, self._region).add_auth(signed)
        return {name: signed.headers[name] for name in SIGNATURE_HEADERS if name in signed.headers}

    def invalidate(self, headers: Mapping[str, str]) -> None:
        """Make the next request resolve the credentials again."""
        self._found = None

    def redact(self, text: str) -> str:
        return text if self._secret is None else redact_secrets(text, self._secret.reveal())

    async def close(self) -> None:
        """Holds no resources."""

    async def _credentials(self) -> Any:
        """Raises CredentialsError."""
        from botocore.credentials import ReadOnlyCredentials

        if self._secret is not None:
            return ReadOnlyCredentials(self._key_id, self._secret.reveal(), None)
        try:
            async with asyncio.timeout(self.budget_s):
                return await self._look()
        except TimeoutError:
            raise CredentialsError(f"no AWS credentials within {self.budget_s:g} s") from None
        except CredentialsError:
            raise
        except Exception as error:  # profiles, roles and metadata services raise many types
            raise CredentialsError(f"no AWS credentials: {type(error).__name__}") from None

    async def _look(self) -> Any:
        async with self._finding:
            if self._found is None:
                from aiobotocore.session import AioSession

                self._found = await AioSession().get_credentials()
            if self._found is None:
                why = "no AWS credentials: set a profile or a role, or access_key_id and secret_access_key"
                raise CredentialsError(why, configuration=True)
            return await self._found.get_frozen_credentials()
