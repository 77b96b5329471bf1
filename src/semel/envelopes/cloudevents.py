"""CloudEvents 1.0. Its `source` and `id` together identify an event, so the source is the origin.

This is structured mode. `semel.values.cloudevents` rewrites what arrives in binary mode.
"""

from __future__ import annotations

from typing import Any

from semel.envelopes.members import moment, text, with_document
from semel.values.cloudevents import SHAPE
from semel.values.errors import MalformedEvent
from semel.values.event import Event


def recognises(document: dict[str, Any]) -> bool:
    return "specversion" in document


def from_document(raw: bytes, document: dict[str, Any], tenant: str, origin: str) -> Event:
    version, own_id, source, type_name = [text(document.get(name)) for name in ("specversion", "id", "source", "type")]
    if version != "1.0":
        raise MalformedEvent(f"CloudEvents specversion {version[:20]!r}: expected '1.0'")
    if not type_name or not source:
        raise MalformedEvent(f"a CloudEvent without {'source' if type_name else 'type'}: the specification requires it")
    in_base64 = document.get("data_base64") is not None
    if in_base64 and document.get("data") is not None:
        raise MalformedEvent("a CloudEvent with data and data_base64: the specification allows one of them")
    parts = (source, own_id) if origin else (own_id,)  # a source makes its ids unique, also where it is not the origin
    event = Event(
        raw,
        type=type_name,
        identity=parts if own_id else (),
        subject=text(document.get("subject")),
        occurred=moment(document.get("time")),
        source=source,
        origin=origin or source,
        tenant=tenant,
        delivery_id=own_id,
        shape=SHAPE,
        body_at=("data_base64",) if in_base64 else ("data",),  # which need not be there: an event may have no data
        looked_at="id",
    )
    return with_document(event, document)
