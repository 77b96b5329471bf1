"""CloudEvents 1.0. Its `source` and `id` together identify an event, so the source is the origin.

In binary mode the attributes are in the transport's headers. Such an event is rewritten in structured mode, which the
specification holds equal: what is stored then tells the whole event, and a dead letter can be replayed from it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec

from semel.adapters.envelopes.members import moment, text, with_document
from semel.values.errors import MalformedEvent
from semel.values.event import Event
from semel.values.strict_json import check_size, parse

_PREFIXES = ("ce-", "ce_", "cloudevents:", "cloudevents_")  # HTTP, Kafka, AMQP twice


def recognises(document: dict[str, Any]) -> bool:
    return "specversion" in document


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    version, own_id, source, type_name = [text(document.get(name)) for name in ("specversion", "id", "source", "type")]
    if version != "1.0":
        raise MalformedEvent(f"CloudEvents specversion {version[:20]!r}: expected '1.0'")
    if not type_name or not source:
        raise MalformedEvent(f"a CloudEvent without {'source' if type_name else 'type'}: the specification requires it")
    event = Event(
        raw,
        type=type_name,
        identity=(own_id,) if own_id else (),
        subject=text(document.get("subject")),
        occurred=moment(document.get("time")),
        source=source,
        origin=origin or source,
        tenant=tenant,
        delivery_id=own_id,
        shape="cloudevents",
        body_at=next(((name,) for name in ("data", "data_base64") if name in document), ()),
        looked_at="id",
    )
    return with_document(event, document)


def attributes(headers: Mapping[str, str]) -> dict[str, str]:
    """The CloudEvents attributes among the headers; none when this is no event in binary mode."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        prefix = next((prefix for prefix in _PREFIXES if lower.startswith(prefix)), None)
        if prefix is not None:
            found[lower[len(prefix) :]] = unquote(value)  # the HTTP binding percent-encodes what is not ASCII
        elif lower == "content-type":
            found["datacontenttype"] = value
    return found if "specversion" in found else {}


def structured(raw: bytes, found: dict[str, str]) -> bytes:
    """The structured spelling of an event in binary mode."""
    check_size(raw)
    document: dict[str, Any] = dict(found)
    document.pop("data", None)
    document.pop("data_base64", None)
    if raw and _is_json(found.get("datacontenttype", "")):
        parse(raw)  # what is put into a document must be a whole JSON value, or it could close that document
        document["data"] = msgspec.Raw(raw)
    elif raw:
        document["data_base64"] = b64encode(raw).decode()
    return msgspec.json.encode(document)


def _is_json(content_type: str) -> bool:
    media = content_type.partition(";")[0].strip().lower()
    return media in ("", "application/json", "text/json") or media.endswith("+json")
