"""Reading a request's body: bounded in size and time, strict in what is JSON, checked against its shape."""

from __future__ import annotations

import asyncio
import re
from typing import TypeVar, get_args

import msgspec
from starlette.requests import ClientDisconnect, Request

from semel.service.api.refusals import Refused
from semel.service.api.shapes import SettleItem
from semel.values.errors import MalformedEvent
from semel.values.notification import CHANNELS, POLICIES
from semel.values.strict_json import parse

Shape = TypeVar("Shape")

OUTCOMES = [settlement.__struct_config__.tag for settlement in get_args(SettleItem)]
_WORDS = {"outcome": OUTCOMES, "channel": CHANNELS, "policy": POLICIES, "says": ("sent", "not_sent", "given_up")}

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
