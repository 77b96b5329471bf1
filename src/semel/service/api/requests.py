"""Who is asking: bearer tokens, of which only digests are known here."""

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

TOKEN_MAX_BYTES = 512  # more is no token of ours, and need not be hashed


class Credential(Struct, frozen=True):
    """What a token stands for. The tenant of everything that is asked with it comes from here."""

    name: str
    tenant: str
    scopes: frozenset[str]


class Keyring:
    """The tokens that are let in. An empty one lets nobody in."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self._known: list[tuple[bytes, Credential]] = []
        for token in tokens:
            digest = bytes.fromhex(token.digest.removeprefix("sha256:"))
            for other, credential in self._known:
                if token.name == credential.name or digest == other:
                    raise ConfigError(
                        f"tokens {credential.name!r} and {token.name!r} have the same name or the same digest: "
                        "nobody could tell which of them is meant"
                    )
            self._known.append((digest, Credential(token.name, token.tenant, frozenset(token.scopes))))

    def __len__(self) -> int:
        return len(self._known)

    def authenticate(self, header: bytes | None) -> Credential | None:
        """The credential of an Authorization header. Every digest is compared, so that time tells nothing."""
        scheme, _, text = (header or b"").partition(b" ")
        text = text.strip(b" ")
        if scheme.lower() != b"bearer" or not 0 < len(text) <= TOKEN_MAX_BYTES:
            return None
        given = sha256(text).digest()
        found: Credential | None = None
        for digest, credential in self._known:
            if hmac.compare_digest(digest, given):
                found = credential
        return found


# Reads the Idempotency-Key header: a structured-field string (RFC 8941), as the IETF draft of the header defines it.
#
# "order-1"            order-1
# "order-1";v=2        order-1: parameters are checked and ignored
# "say \"hi\""        say "hi"
# order-1              order-1: many clients send the key without quotes, so a value that does not begin with a quote is
#                      the key as it stands, up to its end, in UTF-8
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
    """The key in the header. Raises MalformedEvent."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise MalformedEvent("Idempotency-Key: is not UTF-8") from None
    if '"' not in text:
        return text
    found = _ITEM.fullmatch(text)
    if found is None:
        raise MalformedEvent('Idempotency-Key: expected a key in quotes, "order-1", or without any quote')
    return _ESCAPED.sub(r"\1", found[1][1:-1])


# Reading a request's body: bounded in size and time, strict in what is JSON, checked against its shape.

Shape = TypeVar("Shape")

OUTCOMES = [settlement.__struct_config__.tag for settlement in get_args(SettleItem)]
_WORDS = {"outcome": OUTCOMES, "channel": CHANNELS, "policy": POLICIES, "resolution": ("sent", "not_sent", "given_up")}

_PLACED = re.compile(r"(.*) - at `\$\.?([^`]*)`", re.DOTALL)  # as msgspec says where something is wrong
_TYPES = {"float": "number", "int": "integer", "str": "string", "bool": "boolean"}  # of Python, and in JSON


async def read(request: Request, shape: type[Shape], body_max: int, patience_s: float) -> Shape:
    """The body as a value of this shape, or a refusal that says what is wrong and where."""
    _check_media_type(request)
    raw = await _read_bytes(request, body_max, patience_s)
    try:
        return msgspec.convert(parse(raw), shape)
    except msgspec.ValidationError as error:
        raise MalformedEvent(_told(str(error))) from None


def _told(said: str) -> str:
    """What msgspec says, in the words of JSON, and with its place in front: `items[0].lease: expected number, …`."""
    placed = _PLACED.fullmatch(said)
    what, where = (placed[1], placed[2]) if placed is not None else (said, "")
    if what.startswith("Expected `"):
        what = re.sub(
            r"`([a-z| ]+)`", lambda kinds: re.sub(r"\w+", lambda one: _TYPES.get(one[0], one[0]), kinds[1]), what
        )
    if what.startswith(("Invalid value ", "Invalid enum value ")) and (words := _WORDS.get(where.rpartition(".")[2])):
        what = f"expected one of {', '.join(words)}, got {what.partition('value ')[2]}"
    what = what[:1].lower() + what[1:]
    return f"{where}: {what}" if where else what


def _check_media_type(request: Request) -> None:
    essence, _, parameters = request.headers.get("content-type", "").partition(";")
    charset = parameters.strip().lower().replace('"', "")
    if essence.strip().lower() != "application/json" or charset not in ("", "charset=utf-8"):
        raise Refused(415, "send JSON in UTF-8: Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise Refused(415, "encoded bodies are not read: send it without Content-Encoding")


async def _read_bytes(request: Request, body_max: int, patience_s: float) -> bytes:
    """Connections whose body was not read to its end are closed: the rest of it is not worth waiting for."""
    closing = {"Connection": "close"}
    too_large = Refused(413, f"at most {body_max:,} bytes are read: send fewer items at a time", closing)
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
        raise Refused(400, "the body ended too early") from None  # nobody reads this
    return bytes(body)


# What every endpoint does: who asks, in words of the query, and how an answer is written.

CREDENTIAL = "semel.credential"  # where the guard leaves it in the scope of a request
QUERY_FIELDS_MAX = 20
REASON_MAX_CHARS = 500  # a reason is a sentence for a person, not a document

_BARE = re.compile(rb"[+;]|%(?![0-9A-Fa-f]{2})")
_SAID_OF = {
    b"+": "has a bare +, which is a plus to some and a space to others: write %2B or %20",
    b";": "has a bare ;, which some take for the end of it: write %3B",
    b"%": "has a % that encodes nothing: write %25",
}
_TWICE = re.compile("%2b|%40", re.IGNORECASE)  # + and @, as they stand in no number and no address
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = msgspec.json.Encoder().encode


def may(request: Request, scope: str) -> Credential:
    """The credential, if it may do this."""
    credential: Credential = request.scope[CREDENTIAL]
    if scope not in credential.scopes:
        challenge = {"WWW-Authenticate": f'Bearer realm="semel", error="insufficient_scope", scope="{scope}"'}
        raise Refused(403, f"the token {credential.name!r} lacks the scope {scope!r}", challenge)
    return credential


def told(value: Struct, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(_encode(value), status, {"Cache-Control": "no-store", **(headers or {})}, "application/json")


def query(request: Request, names: Collection[str]) -> dict[str, str]:
    """The query, strictly: whoever asks about a customer must not get the answer about another one, because something
    in the question was left out, guessed or given twice."""
    raw: bytes = request.scope["query_string"]
    _check_encoding(raw)
    try:
        pairs = parse_qsl(raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=QUERY_FIELDS_MAX)
    except UnicodeError:
        raise MalformedEvent("the query is not percent-encoded UTF-8") from None
    except ValueError:
        raise MalformedEvent(f"the query has more than {QUERY_FIELDS_MAX} fields") from None
    asked = dict(pairs)
    if len(asked) < len(pairs):
        raise MalformedEvent("a name stands twice in the query, and nobody could say which one counts")
    for name, value in asked.items():
        if name not in names:
            raise MalformedEvent(f"{name[:100]}: is not asked for here, but {', '.join(names)}")
        _check(name, value)
    return asked


def _check_encoding(raw: bytes) -> None:
    """`+4917…`, written as it is, would be read as ` 4917…`, and `m+tag@example.com` as `m tag@example.com`."""
    if (found := _BARE.search(raw)) is None:
        return
    name = raw[: found.start()].rpartition(b"&")[2].partition(b"=")[0][:100].decode("ascii", "replace")
    raise MalformedEvent(f"{name}: {_SAID_OF[found[0]]}")


def _check(name: str, value: str) -> None:
    if not value:
        raise MalformedEvent(f"{name}: is empty; leave it out, if it is not meant")
    if name == "recipient" and _TWICE.search(value):
        raise MalformedEvent(f"{name}: was percent-encoded twice")
    check_filled_in(name, value)
    if "\ufffd" in value:
        raise MalformedEvent(f"{name}: has lost a character on its way, and U+FFFD stands in its place")


def check_filled_in(name: str, value: str) -> None:
    """All customers of a flow whose template was not filled in would be one, and get one message."""
    if "${" in value:
        raise MalformedEvent(f"{name}: is a template that nobody has filled in")


def flag(asked: Mapping[str, str], name: str) -> bool:
    value = asked.get(name, "false")
    if value not in ("true", "false"):
        raise MalformedEvent(f"{name}: expected true or false")
    return value == "true"


def kept(reason: str) -> str:
    return reason if len(reason) <= REASON_MAX_CHARS else reason[: REASON_MAX_CHARS - 1] + "…"


def time_text(ms: int) -> str:
    """UTC, to the millisecond."""
    try:
        at = datetime.fromtimestamp(ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):  # a clock that is off by thousands of years
        at = datetime.max.replace(tzinfo=UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ms_of(at: datetime) -> int:
    """The other way around, exactly: a float would be a millisecond off now and then."""
    return (at - _EPOCH) // timedelta(milliseconds=1)
