"""What every endpoint does: who asks, in words of the query, and how an answer is written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from semel.service.api.auth import Credential
from semel.service.api.refusals import Refused
from semel.values.errors import MalformedEvent

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
