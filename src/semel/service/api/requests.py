"""Reads requests of the API: bearer token, Idempotency-Key, body and query. Writes JSON responses."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from semel.service.api.claim_shapes import SettleItem
from semel.service.api.errors import Refused
from semel.settings.schema import Token
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.notification import CHANNELS, POLICIES
from semel.values.strict_json import parse

TOKEN_MAX_BYTES = 512  # a longer text is no token, and is not hashed


class Credential(Struct, frozen=True):
    """The name, tenant and scopes of a token. The tenant of every request comes from here."""

    name: str
    tenant: str
    scopes: frozenset[str]


class Keyring:
    """The tokens of the settings, as digests. An empty keyring refuses every request."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._known: list[tuple[bytes, Credential]] = []
        for token in tokens:
            digest = bytes.fromhex(token.digest.removeprefix("sha256:"))
            for other, credential in self._known:
                if token.name == credential.name or digest == other:
                    raise ConfigError(
                        f"tokens {credential.name!r} and {token.name!r} have the same name or the same digest: "
                        "remove one of them, or create another with `semel token`"
                    )
            self._known.append((digest, Credential(token.name, token.tenant, frozenset(token.scopes))))

    def __len__(self) -> int:
        return len(self._known)

    def authenticate(self, header: bytes | None) -> Credential | None:
        """Return the credential of an Authorization header. All digests are compared, in constant time."""
        scheme, _, text = (header or b"").partition(b" ")
        text = text.strip(b" ")
        if scheme.lower() != b"bearer" or not 0 < len(text) <= TOKEN_MAX_BYTES:
            return None
        presented = sha256(text).digest()
        match: Credential | None = None
        for digest, credential in self._known:
            if hmac.compare_digest(digest, presented):
                match = credential
        return match


# Reads the Idempotency-Key header: a structured-field string (RFC 8941), as the IETF draft of the header defines it.
#
# "order-1"            order-1
# "order-1";v=2        order-1: parameters are checked and ignored
# "say \"hi\""        say "hi"
# order-1              order-1: many clients send the key without quotes, so a value without any quote is the key, in
#                      UTF-8
# "order-1             refused
# order"1              refused

_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_BARE_ITEM = "|".join(
    (
        _STRING,
        r"-?[0-9]{1,12}\.[0-9]{1,3}",
        r"-?[0-9]{1,15}",
        r"[A-Za-z*][-!#$%&'*+.^_`|~0-9A-Za-z:/]*",
        r":[A-Za-z0-9+/=]*:",
        r"\?[01]",
    )
)
_PARAMETER = rf"; *[a-z*][-_.*a-z0-9]*(?:=(?:{_BARE_ITEM}))?"
_ITEM = re.compile(rf" *({_STRING})(?:{_PARAMETER})* *")
_ESCAPED = re.compile(r"\\(.)")


def read_key(value: bytes) -> str:
    """Return the key in the header. Raises MalformedEvent."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise MalformedEvent("Idempotency-Key: not UTF-8") from None
    if '"' not in text:
        return text
    item = _ITEM.fullmatch(text)
    if item is None:
        raise MalformedEvent('Idempotency-Key: expected a key in quotes, "order-1", or without any quote')
    return _ESCAPED.sub(r"\1", item[1][1:-1])


# Request bodies are limited in size and time, parsed as strict JSON, and checked against their shape.

Shape = TypeVar("Shape")

OUTCOMES = [settlement.__struct_config__.tag for settlement in get_args(SettleItem)]
_VALUES = {"outcome": OUTCOMES, "channel": CHANNELS, "policy": POLICIES, "resolution": ("sent", "not_sent", "given_up")}

_WITH_PATH = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)  # a message of msgspec with the path of the field
_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}  # Python to JSON


async def read(request: Request, shape: type[Shape], body_max: int, patience_s: float) -> Shape:
    """Read the body as a value of this shape. The error of a refusal names the field."""
    _check_media_type(request)
    raw = await _read_bytes(request, body_max, patience_s)
    try:
        return msgspec.convert(parse(raw), shape)
    except msgspec.ValidationError as error:
        raise MalformedEvent(_in_json_terms(str(error))) from None


def _in_json_terms(error: str) -> str:
    """A message of msgspec with JSON types, and with its path in front: `items[0].lease: expected number, …`."""
    with_path = _WITH_PATH.fullmatch(error)
    text, path = (with_path[1], with_path[2]) if with_path is not None else (error, "")
    if text.startswith("Expected `"):
        text = re.sub(
            r"`([a-z| ]+)`", lambda types: re.sub(r"\w+", lambda name: _TYPES.get(name[0], name[0]), types[1]), text
        )
    if text.startswith(("Invalid value ", "Invalid enum value ")) and (values := _VALUES.get(path.rpartition(".")[2])):
        text = f"expected one of {', '.join(values)}, got {text.partition('value ')[2]}"
    text = text[:1].lower() + text[1:]
    return f"{path}: {text}" if path else text


def _check_media_type(request: Request) -> None:
    essence, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Refused(415, "send JSON in UTF-8: Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "Content-Encoding is not supported: send the body without it")


async def _read_bytes(request: Request, body_max: int, patience_s: float) -> bytes:
    """Read the whole body. A connection whose body was not read to its end is closed."""
    closing = {"Connection": "close"}
    too_large = Refused(413, f"the limit is {body_max:,} bytes: send fewer items per request", closing)
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > body_max:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(patience_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > body_max:
                    raise too_large
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {patience_s:g} s", closing) from None
    except ClientDisconnect:
        raise Refused(400, "the body ended too early") from None  # never sent: the client has gone
    return bytes(body)


CREDENTIAL = "semel.credential"  # the key of the credential in the ASGI scope
QUERY_FIELDS_MAX = 20
REASON_MAX_CHARS = 500  # a reason is a sentence, not a document

_BARE = re.compile(rb"[+;]|%(?![0-9A-Fa-f]{2})")
_BARE_ERRORS = {
    b"+": "a bare + is ambiguous: write %2B for a plus, or %20 for a space",
    b";": "a bare ; is ambiguous: write %3B",
    b"%": "a % that encodes nothing: write %25",
}
_ENCODED_TWICE = re.compile("%2b|%40", re.IGNORECASE)  # + and @: no number and no address contains these texts
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


def may(request: Request, scope: str) -> Credential:
    """Return the credential of a request, if it has this scope."""
    credential: Credential = request.scope[CREDENTIAL]
    if scope not in credential.scopes:
        challenge = {"WWW-Authenticate": f'Bearer realm="semel", error="insufficient_scope", scope="{scope}"'}
        raise Refused(403, f"the token {credential.name!r} lacks the scope {scope!r}", challenge)
    return credential


def json_response(value: Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def query(request: Request, names: Collection[str]) -> dict[str, str]:
    """Parse the query, strictly: a lenient parser could answer about another customer. `names` are allowed."""
    raw: bytes = request.scope["query_string"]
    if (bare := _BARE.search(raw)) is not None:
        # Written as it is, `+4917…` would be read as ` 4917…`, and `m+tag@example.com` as `m tag@example.com`.
        name = raw[: bare.start()].rpartition(b"&")[2].partition(b"=")[0][:100].decode("ascii", "replace")
        raise MalformedEvent(f"{name}: {_BARE_ERRORS[bare[0]]}")
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except UnicodeError:
        raise MalformedEvent("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise MalformedEvent(f"the query has more than {QUERY_FIELDS_MAX} fields") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise MalformedEvent("a query parameter is repeated: send each one once")
    for name, value in parameters.items():
        if name not in names:
            raise MalformedEvent(f"{name[:100]}: unknown query parameter; allowed: {', '.join(names)}")
        if not value:
            raise MalformedEvent(f"{name}: empty; leave the parameter out")
        if name == "recipient" and _ENCODED_TWICE.search(value):
            raise MalformedEvent(f"{name}: percent-encoded twice")
        check_filled_in(name, value)
        if "\ufffd" in value:
            raise MalformedEvent(f"{name}: contains U+FFFD: a character was lost in an earlier conversion")
    return parameters


def check_filled_in(name: str, value: str) -> None:
    """Refuse an unfilled template: it would be the same value for all customers, and only one would get a message."""
    if "${" in value:
        raise MalformedEvent(f"{name}: contains an unfilled template variable")


def flag(parameters: Mapping[str, str], name: str) -> bool:
    value = parameters.get(name, "false")
    if value not in ("true", "false"):
        raise MalformedEvent(f"{name}: expected true or false")
    return value == "true"


def shortened(reason: str) -> str:
    return reason if len(reason) <= REASON_MAX_CHARS else reason[: REASON_MAX_CHARS - 1] + "…"


def time_text(ms: int) -> str:
    """UTC, to the millisecond."""
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that is off by thousands of years
        at = datetime.max.replace(tzinfo=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(at: datetime) -> int:
    """Milliseconds since the epoch, exactly: a float would sometimes be off by one."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
