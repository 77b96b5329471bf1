"""CloudEvents 1.0 in binary mode: the attributes are in the transport's headers, the data is the body.

Such a message is rewritten in structured mode, which the specification holds equal. The stored document is then the
whole event, and a dead letter can be replayed from it. `Content-Type` decides the mode: with `application/cloudevents…`
the body is the whole event, and headers beside it say nothing new.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from semel.values.errors import MalformedEvent
from semel.values.strict_json import check_size, parse

SHAPE = "cloudevents"  # of `Event.shape`
STRUCTURED = "application/cloudevents+json"

_MEDIA = "application/cloudevents"
_CONTENT_TYPE = "content-type"
_HTTP_PREFIX = "ce-"
# Kafka; RabbitMQ (the binding of Knative); AMQP 1.0, whose second spelling is for JMS. SQS has no binding of its own.
_BROKER_PREFIXES = ("ce_", "ce-", "cloudevents:", "cloudevents_")
_RELEVANT = (*_BROKER_PREFIXES, _CONTENT_TYPE)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME_MAX_MS = 60_000_000_000_000  # the year 3871: what is later is no time
_DATA = ("data", "data_base64")  # members of the document that are no attributes
_UTF_8 = ("", "utf-8", "utf8", "us-ascii")


def is_structured(content_type: str) -> bool:
    return content_type.lstrip().lower().startswith(_MEDIA)


def from_http(body: bytes, headers: Mapping[str, str]) -> bytes | None:
    """The structured document of a request in binary mode; None for any other request. Raises MalformedEvent."""
    lower = [(name.lower(), value) for name, value in headers.items()]
    content_type = next((value for name, value in lower if name == _CONTENT_TYPE), "")
    if is_structured(content_type):
        return None
    found = _under(_HTTP_PREFIX, lower)
    return _structured(body, {name: _http_text(name, value) for name, value in found.items()}, content_type)


def from_message(body: bytes | None, properties: Iterable[tuple[str, Any]], content_type: str = "") -> bytes | None:
    """The structured document of a broker's message in binary mode; None for any other message. Raises MalformedEvent.

    A body of None is an event without data. The content type may be among the properties."""
    named = ((name.lower(), value) for name, value in properties)
    lower = [(name, value) for name, value in named if name.startswith(_RELEVANT) and value is not None]
    if not lower:
        return None  # nearly always
    content_type = content_type or next((_text(name, value) for name, value in lower if name == _CONTENT_TYPE), "")
    if is_structured(content_type):
        return None
    for prefix in _BROKER_PREFIXES:
        if found := _under(prefix, lower):
            return _structured(body or b"", {name: _text(name, value) for name, value in found.items()}, content_type)
    return None


def _under(prefix: str, headers: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The attributes whose names have this prefix; none where neither an id nor a version is among them."""
    found: dict[str, Any] = {}
    for name, value in headers:
        if name.startswith(prefix):
            attribute = name[len(prefix) :]
            if attribute in found:
                raise MalformedEvent(f"two headers {name}: a CloudEvent has one")
            found[attribute] = value
    return found if "specversion" in found or "id" in found else {}


def _structured(body: bytes, attributes: dict[str, str], content_type: str) -> bytes | None:
    if not attributes:
        return None
    if "specversion" not in attributes:
        raise MalformedEvent("CloudEvents attributes in headers without specversion: the specification requires it")
    check_size(body)
    document: dict[str, Any] = {name: value for name, value in attributes.items() if name not in _DATA}
    if content_type:
        document["datacontenttype"] = content_type
    if body:
        document.update(_data(body, content_type))
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        raise MalformedEvent("a CloudEvents attribute contains half a surrogate pair") from None


def _data(body: bytes, content_type: str) -> dict[str, Any]:
    """The member that holds the data: JSON as it is, text and XML as a text, everything else as bytes in base64."""
    media, _, parameters = content_type.lower().partition(";")
    media = media.strip()
    if media.endswith(("/json", "+json")):
        parse(body)  # only a whole JSON value may be put into the document, or it could close that document
        return {"data": msgspec.Raw(body)}
    charset = next((text for text in parameters.split(";") if text.strip().startswith("charset=")), "")
    is_text = media.startswith("text/") or media.endswith(("/xml", "+xml"))
    if is_text and charset.partition("=")[2].strip(' "') in _UTF_8:
        try:
            return {"data": body.decode()}
        except UnicodeDecodeError:
            pass  # it is not the text that it claims to be: its bytes are kept
    return {"data_base64": b64encode(body).decode()}


def _http_text(attribute: str, value: str) -> str:
    """The HTTP binding: first quoted strings are unescaped, then one round of percent-decoding, strictly as UTF-8."""
    plain = _QUOTED.sub(lambda quoted: _ESCAPED.sub(r"\1", quoted[1]), value) if '"' in value else value
    try:
        return unquote_to_bytes(plain.encode("latin-1")).decode()  # how header bytes become a text in Python
    except UnicodeError:
        raise MalformedEvent(f"the header ce-{attribute} is not percent-encoded UTF-8") from None


def _text(name: str, value: Any) -> str:
    """The canonical text of an attribute. AMQP may carry it in a type of its own."""
    match value:
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case int() if name == "time":  # AMQP 1.0: milliseconds since the epoch
            return _instant(_EPOCH + timedelta(milliseconds=value)) if abs(value) < _TIME_MAX_MS else str(value)
        case int():
            return str(value)
        case datetime():
            return _instant(value)
        case bytes() | bytearray():
            try:
                return bytes(value).decode()
            except UnicodeDecodeError:
                raise MalformedEvent(f"the CloudEvents header {name} is not UTF-8") from None
    raise MalformedEvent(f"the CloudEvents header {name} is no text, but a {type(value).__name__}")


def _instant(moment: datetime) -> str:
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
