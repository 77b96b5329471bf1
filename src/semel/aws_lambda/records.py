"""Reads the records of an invocation. The names in the document identify its shape:

    EventBridge, or any other event alone   {"detail-type": …, "detail": {…}}
    SQS                                     {"Records": [{"messageId": …, "body": "…"}]}
    SNS                                     {"Records": [{"Sns": {"Message": "…"}}]}
    Kinesis                                 {"Records": [{"kinesis": {"sequenceNumber": …, "data": base64}}]}
    Kafka                                   {"records": {"topic-0": [{"value": base64}]}}
    RabbitMQ                                {"rmqMessagesByQueue": {"queue::/": [{"data": base64}]}}
    ActiveMQ                                {"eventSource": "aws:mq", "messages": [{"messageID": …, "data": base64}]}
    Firehose                                {"records": [{"recordId": …, "data": base64}]}
    Pipes                                   [any of these records, or events]
    written by hand                         {"Records": [events, or events as JSON texts]}

CloudEvents in binary mode, with their attributes in the headers of a record, become events in structured mode. Errors
show names of the document and never its values.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.strict_json import parse

EVENTS = frozenset({"detail", "id", "specversion", "topicName"})  # a document with one of these is an event itself

_not_space = re.compile(r"\S")
_read_one = json.JSONDecoder().raw_decode


def unwrap(document: Any) -> str | dict[str, Any] | list[Any] | None:
    """Content of a wrapping by AWS: the text of an SNS notification, or a failed invocation. None: no wrapping."""
    match document:
        case {
            "Type": "Notification",
            "MessageId": str(),
            "TopicArn": str(topic),
            "Message": str(message),
            "Timestamp": str(),
        } if topic.startswith("arn:"):
            return message
        case {"requestPayload": (dict() | list()) as invocation} if EVENTS.isdisjoint(document):
            return invocation
        case {"detail": {"requestContext": dict(), "requestPayload": (dict() | list()) as invocation}}:
            return invocation  # the failure destination was an event bus
    return None


def documents(data: bytes) -> tuple[bytes, ...]:
    """Split concatenated JSON documents, as Firehose delivers them. Other data stays in one piece."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return (data,)
    found: list[bytes] = []
    end = 0
    while (match := _not_space.search(text, end)) is not None:
        at = match.start()
        try:
            _, end = _read_one(text, at)
        except (ValueError, RecursionError):
            end = len(text)
        found.append(text[at:end].encode())
    return tuple(found) or (data,)


Trigger: TypeAlias = Literal["direct", "sqs", "sns", "kinesis", "kafka", "rabbitmq", "activemq", "firehose"]

WRAPPINGS_MAX = 8  # nested: SQS around SNS around a failed invocation is three
NAMES_SHOWN = 12  # enough to recognise a shape

_ACTIVEMQ = ("aws:mq", "aws:amq")  # of a Lambda trigger; the second one also of a pipe
_SOURCES: dict[str, Trigger] = {"aws:sqs": "sqs", "aws:sns": "sns", "aws:kinesis": "kinesis"}


_RETRIES_AT_ONCE: tuple[Trigger, ...] = ("kinesis", "kafka", "rabbitmq", "activemq", "firehose")


class LambdaRecord(Struct, frozen=True):
    """One record: its events (usually one), and its id at the trigger."""

    bodies: tuple[bytes, ...] = ()
    id: str = ""  # SQS messageId, Kinesis sequenceNumber, Firehose recordId
    group: str = ""  # records of one group stay in order: a FIFO group, a partition key. Empty: no order
    unfit: str = ""  # why it cannot be read
    data: str = ""  # unchanged, for a trigger that expects it back


class LambdaBatch(Struct, frozen=True):
    """All records of one invocation."""

    trigger: Trigger
    records: list[LambdaRecord]
    piped: bool = False  # by EventBridge Pipes

    @property
    def retries_at_once(self) -> bool:
        """True if the trigger redelivers failed records at once, and only a limited number of times.

        Waiting for a retry must not use up these deliveries. A queue waits for its visibility, and an asynchronous
        invocation for minutes.
        """
        return self.trigger in _RETRIES_AT_ONCE or (self.piped and self.trigger != "sqs")

    @property
    def blocks_on_failure(self) -> bool:
        """True if a failed record blocks the records behind it until it succeeds or expires.

        Firehose does not block: it stores failed records with its errors.
        """
        return self.retries_at_once and self.trigger != "firehose"


def read(event: Any, depth: int = 0) -> LambdaBatch:
    """Read the records of an invocation. Raises MalformedEvent for an unknown shape."""
    match event:
        case list():
            return _piped(event, depth)
        case {"Records": list(found)}:
            return _listed(found, depth)
        case {"records": dict(partitions)}:
            records = [_kafka(record, depth, name) for name, record in _members(partitions, "records")]
            return LambdaBatch("kafka", records)
        case {"records": list(found), "deliveryStreamArn": _} | {"records": list(found), "invocationId": _}:
            return LambdaBatch("firehose", [_firehose(_the_object(record, "records"), depth) for record in found])
        case {"rmqMessagesByQueue": dict(queues)}:
            records = [_rabbitmq(record, depth) for _, record in _members(queues, "rmqMessagesByQueue")]
            return LambdaBatch("rabbitmq", records)
        case {"messages": list(found), "eventSource": str(source)} if source in _ACTIVEMQ:
            return LambdaBatch("activemq", [_activemq(_the_object(record, "messages"), depth) for record in found])
        case dict():
            return LambdaBatch("direct", [_event(event, depth)])
    raise MalformedEvent(f"an invocation is an object or a list of them; this one is a {type(event).__name__}")


def names_of(members: Mapping[Any, Any]) -> str:
    shown = ", ".join(ascii(str(name)[:40]) for name in list(members)[:NAMES_SHOWN]) or "none"
    return shown + (", …" if len(members) > NAMES_SHOWN else "")


# -------------------------------------------------------------------------------------------------- lists of records


def _listed(records: list[Any], depth: int) -> LambdaBatch:
    kinds = {_kind(_an_event_or_text(record, "Records")) for record in records}
    if len(kinds) > 1:
        raise MalformedEvent(f"Records of several kinds in one invocation: {', '.join(sorted(map(str, kinds)))}")
    match kinds.pop() if kinds else "sqs":  # no records: every trigger accepts an empty list of failures
        case "sqs":
            return LambdaBatch("sqs", [_sqs(record, depth) for record in records])
        case "sns":
            return LambdaBatch("sns", [_sns(record, depth) for record in records])
        case "kinesis":
            return LambdaBatch("kinesis", [_kinesis(record, depth) for record in records])
    return LambdaBatch("direct", [_event(record, depth) for record in records])


def _piped(records: list[Any], depth: int) -> LambdaBatch:
    """Read the records of a pipe: those of its source, or the output of an input transformer."""
    readers: dict[Trigger | None, Callable[[Any], LambdaRecord]] = {
        "sqs": lambda record: _sqs(record, depth),
        "sns": lambda record: _sns(record, depth),
        "kinesis": lambda record: _kinesis(record, depth),
        "kafka": lambda record: _kafka(record, depth, f"{record.get('topic')}-{record.get('partition')}"),
        "rabbitmq": lambda record: _rabbitmq(record, depth),
        "activemq": lambda record: _activemq(record, depth),
        None: lambda record: _event(record, depth),
    }
    found = [(_kind(_an_event_or_text(record, "the list")), record) for record in records]
    read_all = [readers[kind](record) for kind, record in found]
    only_sqs = bool(found) and all(kind == "sqs" for kind, _ in found)
    return LambdaBatch("sqs" if only_sqs else "direct", read_all, piped=True)


def _kind(record: dict[str, Any] | str) -> Trigger | None:
    match record:
        case str():
            return None
        case {"Sns": dict()}:
            return "sns"
        case {"kinesis": dict()} | {"sequenceNumber": str(), "partitionKey": str(), "data": str()}:
            return "kinesis"
        case {"messageId": str(), "body": str()}:
            return "sqs"
        case {"topic": str(), "partition": int(), "offset": int()}:
            return "kafka"
        case {"basicProperties": dict(), "data": str()}:
            return "rabbitmq"
        case {"messageID": str(), "messageType": str(), "data": str()}:
            return "activemq"
    return _SOURCES.get(_text(record.get("eventSource", record.get("EventSource"))))


# ------------------------------------------------------------------------------------------------------- one record


def _event(record: dict[str, Any] | str, depth: int) -> LambdaRecord:
    """Read a single event, parsed or as a JSON text."""
    return _with_bodies(record, depth) if isinstance(record, str) else LambdaRecord(_events_of(record, depth))


def _sqs(record: dict[str, Any], depth: int) -> LambdaRecord:
    own_id = _text(record.get("messageId"))
    attributes = record.get("attributes")
    group = _group(_text(record.get("eventSourceARN")), attributes if isinstance(attributes, dict) else {})
    body = record.get("body")
    if not isinstance(body, str):
        return LambdaRecord(id=own_id, group=group, unfit="a message without a body")
    named = _members_of(record.get("messageAttributes")).items()
    headers = [(name, _members_of(value).get("stringValue")) for name, value in named]
    return _with_bodies(body, depth, own_id, group, headers)


def _group(arn: str, attributes: dict[str, Any]) -> str:
    """Group of a FIFO queue. A standard queue can have groups too, without a guaranteed order."""
    is_fifo = arn.endswith(".fifo") or not arn or "SequenceNumber" in attributes
    return _text(attributes.get("MessageGroupId")) if is_fifo else ""


def _sns(record: dict[str, Any], depth: int) -> LambdaRecord:
    notification = record.get("Sns")
    if not isinstance(notification, dict) or not isinstance(notification.get("Message"), str):
        return LambdaRecord(unfit="a notification without a message")
    return _with_bodies(notification["Message"], depth)


def _kinesis(record: dict[str, Any], depth: int) -> LambdaRecord:
    notification = record.get("kinesis", record)  # a pipe writes both in one object
    if not isinstance(notification, dict):
        return LambdaRecord(unfit="a record of Kinesis without its data")
    group = _text(notification.get("partitionKey"))
    return _from_base64(notification.get("data"), depth, _text(notification.get("sequenceNumber")), group)


def _kafka(record: dict[str, Any], depth: int, partition: str) -> LambdaRecord:
    key, listed = _text(record.get("key")), record.get("headers")
    headers = [pair for header in listed for pair in _members_of(header).items()] if isinstance(listed, list) else []
    group = f"{partition}|{key}" if key else ""
    return _message(record.get("value"), depth, headers, group=group, without="")  # a tombstone: nothing is in it


def _rabbitmq(record: dict[str, Any], depth: int) -> LambdaRecord:
    properties = _members_of(record.get("basicProperties"))
    headers = _members_of(properties.get("headers")).items()
    return _message(record.get("data"), depth, headers, _text(properties.get("contentType")))


def _activemq(record: dict[str, Any], depth: int) -> LambdaRecord:
    properties = _members_of(record.get("properties")).items()
    return _message(record.get("data"), depth, properties, own_id=_text(record.get("messageID")))


def _firehose(record: dict[str, Any], depth: int) -> LambdaRecord:
    data = _text(record.get("data"))
    decoded = _from_base64(data, depth, _text(record.get("recordId")), read=documents)
    return LambdaRecord(decoded.bodies, decoded.id, unfit=decoded.unfit, data=data)


def _from_base64(
    data: Any,
    depth: int,
    own_id: str = "",
    group: str = "",
    read: Callable[[bytes], tuple[bytes, ...]] = lambda body: (body,),
) -> LambdaRecord:
    try:
        body = b64decode(data, validate=True)
    except (TypeError, ValueError):
        return LambdaRecord(id=own_id, group=group, unfit="its data is not base64")
    return LambdaRecord(tuple(event for part in read(body) for event in _events_in(part, depth)), own_id, group)


def _with_bodies(
    text: str, depth: int, own_id: str = "", group: str = "", headers: Iterable[tuple[Any, Any]] = ()
) -> LambdaRecord:
    try:
        return _described(text.encode(), depth, headers, "", own_id, group)
    except UnicodeEncodeError:
        return LambdaRecord(id=own_id, group=group, unfit="its text contains half a surrogate pair")


def _message(
    data: Any,
    depth: int,
    headers: Iterable[tuple[Any, Any]],
    content_type: str = "",
    own_id: str = "",
    group: str = "",
    without: str = "a message without data",
) -> LambdaRecord:
    """Read a broker's message in base64. `without`: why a message without data is unfit; empty: it is ignored."""
    try:
        body = None if data is None else b64decode(data, validate=True)
    except (TypeError, ValueError):
        return LambdaRecord(id=own_id, group=group, unfit="its data is not base64")
    return _described(body, depth, headers, content_type, own_id, group, without)


def _described(
    body: bytes | None,
    depth: int,
    headers: Iterable[tuple[Any, Any]],
    content_type: str,
    own_id: str,
    group: str,
    without: str = "",
) -> LambdaRecord:
    """Read a body with its headers, which hold the attributes of a binary-mode CloudEvent."""
    try:
        event = from_message(body, ((str(name), _octets(value)) for name, value in headers), content_type)
    except MalformedEvent as error:
        return LambdaRecord(id=own_id, group=group, unfit=str(error))
    if event is not None:
        return LambdaRecord((event,), own_id, group)
    if body is None:
        return LambdaRecord(id=own_id, group=group, unfit=without)
    return LambdaRecord(_events_in(body, depth), own_id, group)


def _octets(value: Any) -> Any:
    """Decode a header. Lambda writes its bytes as a list of numbers, possibly signed; for RabbitMQ within `bytes`."""
    listed = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(listed, list) and all(type(octet) is int and -128 <= octet < 256 for octet in listed):
        return bytes(octet & 0xFF for octet in listed)
    return value


# ----------------------------------------------------------------------------------------------------------- events


def _events_in(body: bytes, depth: int) -> tuple[bytes, ...]:
    """Events in a body; the unchanged body itself if it has no wrapping."""
    if depth >= WRAPPINGS_MAX or not (b"TopicArn" in body or b"requestPayload" in body):
        return (body,)  # most bodies: skip the parsing
    try:
        return _unwrapped(parse(body), depth) or (body,)
    except (MalformedEvent, UnicodeEncodeError):
        return (body,)  # the decoder judges it


def _events_of(document: dict[str, Any], depth: int) -> tuple[bytes, ...]:
    """Events in a document that Lambda has parsed already."""
    if depth < WRAPPINGS_MAX and (events := _unwrapped(document, depth)):
        return events
    try:
        return (json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(),)
    except (TypeError, ValueError, RecursionError):
        raise MalformedEvent(f"an event that is not JSON; its names are {names_of(document)}") from None


def _unwrapped(document: Any, depth: int) -> tuple[bytes, ...]:
    match unwrap(document):
        case str(message):
            return _events_in(message.encode(), depth + 1)
        case (dict() | list()) as invocation:
            records = read(invocation, depth + 1).records
            if not any(record.unfit for record in records):
                return tuple(body for record in records for body in record.bodies)
    return ()


def _members(lists: Mapping[Any, Any], where: str) -> Iterable[tuple[str, dict[str, Any]]]:
    for name, records in lists.items():
        if not isinstance(records, list):
            raise MalformedEvent(f"{where}: expected a list for each name, got a {type(records).__name__}")
        for record in records:
            yield str(name), _the_object(record, where)


def _an_event_or_text(value: Any, where: str) -> dict[str, Any] | str:
    return value if isinstance(value, str) else _the_object(value, where)


def _members_of(value: Any) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _the_object(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise MalformedEvent(f"{where}: expected objects, got a {type(value).__name__}")
    return value


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
