"""Base classes of HTTP providers: one request, no retries, and its response classified.

no credentials, or nothing sent       refused, this attempt
2xx                                   accepted (except a page of HTML: a proxy has answered)
429                                   refused by a rate limit: does not count as an attempt
401                                   refused, this attempt: the settings are wrong, or a new token is needed
a status of contract.refusals         refused for good
a status of contract.retriable        refused, this attempt
any other status, or no response      unknown
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Protocol, TypeVar, runtime_checkable
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from semel.http_client.client import Answer as Wire
from semel.http_client.client import Answered, Client, Unanswered, Unsent
from semel.http_client.client import reach as look
from semel.http_client.resolver import ServerAddress, server_address
from semel.providers.auth import Auth, CredentialsError, OutgoingRequest, redact_secrets
from semel.providers.options import HttpOptions, JsonOptions
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.errors import ConfigError
from semel.values.outbox import DeliveryReport, Dispatch, LookedUp, Unclear
from semel.values.strict_json import decode_any

RATE_LIMIT_WAIT_MAX_S = 300.0  # a header cannot pause a provider for longer


def rate_limit_reset_s(headers: Mapping[str, str], left: str, reset: str, *, now_s: float = 0.0) -> float:
    """Seconds until the rate limit resets; 0 if requests are left.

    `left` and `reset` are header names. The reset is in seconds from now. If the provider sends a point in time
    instead, pass the current time as `now_s`.
    """
    try:
        remaining, after_s = int(headers[left]), float(headers[reset]) - now_s
    except (KeyError, ValueError):
        return 0.0
    return min(after_s, RATE_LIMIT_WAIT_MAX_S) if remaining <= 0 and after_s > 0 else 0.0


EVIDENCE_CHARS = 200
EVIDENCE_READ_BYTES = 16 * 1024  # of a response: secrets are redacted in all of it before it is cut
URL_SECRET_MIN_CHARS = 12  # a shorter part of a URL is the name of a path, not a token
LOOK_UP_MAX_BYTES = 1024 * 1024  # a page of a list
SENT_BY_FORMER_PROVIDER = "another provider with the same name may have sent it"
SENT_BY_FORMER_PROVIDER_DECIDE = f"{SENT_BY_FORMER_PROVIDER}: decide with semel notify resolve"
DEFAULT_HEADERS = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "Semel"}

_encode = msgspec.json.Encoder(order="deterministic").encode


class StoredRequest(Struct, frozen=True, omit_defaults=True):
    """The stored part of a request, so that a retry sends the same bytes. It contains no secret."""

    path: str  # after the provider's URL
    body: str
    content_type: str = "application/json"
    method: str = "POST"
    whose: str = ""  # kind, host and account of the provider: another provider may get the same name later


_request = msgspec.json.Decoder(StoredRequest).decode


HttpOptionsT = TypeVar("HttpOptionsT", bound=HttpOptions)
JsonOptionsT = TypeVar("JsonOptionsT", bound=JsonOptions)


class HttpProvider(Generic[HttpOptionsT]):
    """Base of the HTTP providers. A subclass builds the request and reads the reference from an accepted response.

    A subclass of the registry has a constructor with two arguments: its parsed options, and its contract, which is
    CONTRACT with the changes of the options.
    """

    CONTRACT: ClassVar[Contract]
    OPTIONS: ClassVar[type[HttpOptions]]
    answers_in_html = False
    CREDENTIAL_STATUSES: ClassVar[frozenset[int]] = frozenset({401})
    """Statuses that refuse the credentials; the next attempt may succeed with renewed ones."""

    def __init__(self, options: HttpOptionsT, contract: Contract, url: str, auth: Auth) -> None:
        self.contract = contract
        self._options = options
        self.url = url.rstrip("/")
        self._auth = auth
        timeout_s = self.contract.timeout_s - auth.budget_s
        self.address, self.allow = server_address(self.contract.name, url), options.allow
        self._account = f"{self.CONTRACT.name} {self.address.host}:{self.address.port}"
        self._client = Client(self.address, self.allow, timeout_s, body_max_bytes=LOOK_UP_MAX_BYTES)
        self._limited_until = 0.0  # monotonic: the rate limit is exhausted until then

    # -------------------------------------------------------------------------------------- overridden by the providers

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        """Build the request for a message. Raises ConfigError for a message that this provider cannot send."""
        raise NotImplementedError

    def request_headers(self, dispatch: Dispatch) -> Mapping[str, str]:
        """Headers of one message: the idempotency key, if the contract sends it in a header."""
        key = self.contract.key
        return {key.header: idempotency_key(dispatch)} if key is not None and key.header else {}

    def reference(self, answer: Answered) -> str:
        """The provider's id of the accepted message; empty if the response has none."""
        return ""

    def reports(self, headers: Mapping[str, str], body: bytes, query: str = "") -> list[DeliveryReport]:
        """Parse a verified status callback.

        Header names are in lower case; `query` belongs to the URL that was called. A status about something other
        than acceptance or delivery yields no report. Raises MalformedEvent for a body that is no status callback.
        """
        return []

    def rate_limited_for_s(self, headers: Mapping[str, str]) -> float:
        """Seconds for which the response's headers announce that no request will be accepted; 0 if none."""
        return 0.0

    async def look_up(self, dispatch: Dispatch) -> LookedUp:
        return Unclear(f"{self.contract.name} has no look-up")

    # ------------------------------------------------------------------------------------------------- the port

    def prepare(self, dispatch: Dispatch) -> bytes:
        return _encode(replace(self.build_request(dispatch), whose=self._account))

    async def send(self, dispatch: Dispatch, request: bytes) -> Answer:
        if (limited_s := self._limited_until - time.monotonic()) > 0:
            return Refused("the provider's rate limit is exhausted", after_s=limited_s, limited=True)
        try:
            stored = self._decode(request)
            if stored is None and not dispatch.delivery_state.doubt_ms:  # a former provider has not sent it: rebuild it
                stored = self.build_request(dispatch)
        except ConfigError as error:
            return Refused(str(error), final=True)
        if stored is None:
            return Refused(SENT_BY_FORMER_PROVIDER_DECIDE)
        headers = {"Content-Type": stored.content_type, **self.request_headers(dispatch)}
        try:
            answer = await self.call(stored.path, stored.body.encode(), headers, stored.method)
        except CredentialsError as error:
            return Refused(self._auth.redact(str(error)), after_s=error.after_s, configuration=error.configuration)
        return self.classify(answer)

    def stored_request(self, dispatch: Dispatch) -> StoredRequest | None:
        """The request to look up, as it was sent: settings may have changed since. None if a former provider with the
        same name sent it: a look-up here would prove nothing."""
        return self._decode(dispatch.request if dispatch.request is not None else self.prepare(dispatch))

    def _decode(self, request: bytes) -> StoredRequest | None:
        """None if a former provider with the same name built the request."""
        try:
            stored = _request(request)
        except msgspec.DecodeError:
            return None
        own_host = stored.path[:1] in ("", "/")  # any other path would extend the host that gets the credentials
        return stored if own_host and stored.whose in ("", self._account) else None

    def classify(self, answer: Wire) -> Answer:
        match answer:
            case Unsent(why=why):
                return Refused(why)
            case Unanswered(why=why):
                return Unknown(why)
            case Answered():
                return self.classify_status(answer)

    def classify_status(self, answer: Answered) -> Answer:
        match answer.status:
            case 429:
                after_s = (
                    answer.after_s if answer.after_s is not None else self.rate_limited_for_s(answer.headers) or None
                )
                return Refused(self.evidence(answer), after_s=after_s, limited=True)
            case status if status in self.CREDENTIAL_STATUSES:
                return Refused(self.evidence(answer), configuration=True)
            case status if status in self.contract.refusals:
                return Refused(self.evidence(answer), final=True)
            case status if status in self.contract.retriable:
                return Refused(self.evidence(answer), after_s=answer.after_s)
            case status if 200 <= status < 300:  # the lists above come first: some endpoints refuse with a 200
                is_page = answer.headers.get("content-type", "").lower().startswith("text/html")
                if is_page and not self.answers_in_html:
                    return Unknown(f"{status} with a page of HTML, which {self.contract.name} does not send")
                return Accepted(self.reference(answer), f"{status}")
        return Unknown(self.evidence(answer))

    async def check_access(self) -> str | None:
        """For `semel doctor`: the reason why no credentials are available, or None.

        It sends no message, so it does not detect credentials that only a send would refuse.
        """
        try:
            await self._auth.headers(OutgoingRequest("GET", self.url, b""))
        except CredentialsError as error:
            return self._auth.redact(str(error))
        return None

    async def call(self, path: str, body: bytes | None, headers: Mapping[str, str], method: str = "POST") -> Wire:
        """Send one request with credentials. Raises CredentialsError."""
        url = self.url + path
        unsigned = OutgoingRequest(method, url, body or b"", headers.get("Content-Type", ""))
        credentials = await self._auth.headers(unsigned)
        answer = await self._client.ask(url, body, {**DEFAULT_HEADERS, **headers, **credentials}, method)
        if isinstance(answer, Answered):
            if answer.status in self.CREDENTIAL_STATUSES:
                self._auth.invalidate(credentials)
            if (limited_s := self.rate_limited_for_s(answer.headers)) > 0:
                self._limited_until = time.monotonic() + limited_s
        return answer

    def evidence(self, answer: Answered) -> str:
        """The status and the start of the body, on one printable line without secrets. Responses may repeat the
        message: the views of the CLI and the API decide how much of the evidence they show."""
        text = self._auth.redact((answer.body or b"")[:EVIDENCE_READ_BYTES].decode("utf-8", "replace"))
        text = redact_secrets(text, *secrets_in_url(self.url))
        line = " ".join("".join(char if char.isprintable() else " " for char in text).split())[:EVIDENCE_CHARS]
        return f"{answer.status}: {line}" if line else f"{answer.status}"

    async def close(self) -> None:
        await self._auth.close()
        await self._client.close()


class JsonProvider(HttpProvider[JsonOptionsT]):
    """A provider with one path and one JSON document. The options `path` and `extra` change the path and add fields,
    for accounts where the public reference is wrong or incomplete."""

    PATH: ClassVar[str]
    URL: ClassVar[str] = ""

    def __init__(self, options: JsonOptionsT, contract: Contract, auth: Auth, url: str = "") -> None:
        super().__init__(options, contract, options.url or url or self.URL, auth)

    def document(self, dispatch: Dispatch) -> Mapping[str, Any]:
        """The JSON body. Raises ConfigError for a message that this provider cannot send."""
        raise NotImplementedError

    def build_request(self, dispatch: Dispatch) -> StoredRequest:
        return StoredRequest(
            self._options.path or self.PATH, json_body({**self._options.extra, **self.document(dispatch)})
        )


def secrets_in_url(url: str) -> list[str]:
    """Parts of a configured URL that may be a token. "Not found" pages often repeat the URL."""
    parts = urlsplit(url)
    values = [value for _, value in parse_qsl(parts.query) if len(value) >= URL_SECRET_MIN_CHARS]
    pieces = [piece for piece in unquote(parts.path).split("/") if len(piece) >= URL_SECRET_MIN_CHARS]
    return [parts.query, parts.path if pieces else "", *values, *pieces]


def idempotency_key(dispatch: Dispatch) -> str:
    """The key of all attempts of a notification. It has 32 characters, which every provider accepts."""
    return dispatch.id.hex()


def field(answer: Answered, *path: str) -> str:
    """A text in the JSON of a response; empty if there is none, because an acceptance without its id is still one."""
    try:
        value: Any = decode_any(answer.body or b"null")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    for name in path:
        value = value[0] if isinstance(value, list) and value else value
        value = value.get(name) if isinstance(value, dict) else None
    return str(value)[:EVIDENCE_CHARS] if isinstance(value, (str, int)) else ""


def json_body(document: Mapping[str, Any]) -> str:
    """Encode deterministically: equal documents have equal bytes."""
    return _encode(document).decode()


@runtime_checkable
class NetworkProvider(Protocol):
    """A provider with a network address."""

    address: ServerAddress
    allow: Sequence[str]


@runtime_checkable
class AccessChecker(Protocol):
    """A provider that can check its credentials without sending a message."""

    async def check_access(self) -> str | None: ...


async def reach(provider: object) -> str | None:
    """For `semel doctor`: open a connection and check the credentials, without sending a message.

    Returns the reason of a failure. Returns None if both succeed, or if the provider has no network address.
    """
    reason = await look(provider.address, provider.allow) if isinstance(provider, NetworkProvider) else None
    if reason is None and isinstance(provider, AccessChecker):
        return await provider.check_access()
    return reason
