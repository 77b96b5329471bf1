"""What an invocation carries. Every shape is told apart by itself, by its names.

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
name what was seen, never what it said.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from semel.aws_lambda.wrappings import documents, opened
from semel.values.cloudevents import from_message
from semel.values.errors import MalformedEvent
from semel.values.strict_json import parse

Trigger: TypeAlias = Literal["direct", "sqs", "sns", "kinesis", "kafka", "rabbitmq", "activemq", "firehose"]

WRAPPINGS_MAX = 8  # one in another: SQS around SNS around a failed invocation is three
NAMES_SHOWN = 12  # enough to recognise a shape by

_ACTIVEMQ = ("aws:mq", "aws:amq")  # of a Lambda trigger; the second one also of a pipe
_SOURCES: dict[str, Trigger] = {"aws:sqs": "sqs", "aws:sns": "sns", "aws:kinesis": "kinesis"}


_HASTY: tuple[Trigger, ...] = ("kinesis", "kafka", "rabbitmq", "activemq", "firehose")


class Record(Struct, frozen=True):
    """One record: the events in it (mostly one), and how its trigger knows it."""

    bodies: tuple[bytes, ...] = ()
    id: str = ""  # SQS messageId, Kinesis sequenceNumber, Firehose recordId
    group: str = ""  # what has to stay in order: the group of a FIFO queue, a partition key. Empty: nothing
    unfit: str = ""  # why it cannot be read
    data: str = ""  # as it came, where the trigger wants it back


class Batch(Struct, frozen=True):
    """All records of one invocation."""

    trigger: Trigger
    records: list[Record]
    piped: bool = False  # they came through a pipe

    @property
    def is_hasty(self) -> bool:
        """Brings again at once what failed, and only so often: its tries must not be used up by waiting for a retry.
        A queue waits for its visibility, and an asynchronous invocation for minutes."""
        return self.trigger in _HASTY or (self.piped and self.trigger != "sqs")

    @property
    def stands_still(self) -> bool:
        """Nothing behind what failed is brought before that has succeeded or expired. Firehose has a place for it."""
        return self.is_hasty and self.trigger != "firehose"


def read(event: Any, depth: int = 0) -> Batch:
    """The records of an invocation. Raises MalformedEvent for what has no shape we know."""
    match event:
        case list():
            return _piped(event, depth)
        case {"Records": list(found)}:
            return _listed(found, depth)
        case {"records": dict(partitions)}:
            records = [_kafka(record, depth, name) for name, record in _members(partitions, "records")]
            return Batch("kafka", records)
        case {"records": list(found), "deliveryStreamArn": _} | {"records": list(found), "invocationId": _}:
            return Batch("firehose", [_firehose(_the_object(record, "records"), depth) for record in found])
        case {"rmqMessagesByQueue": dict(queues)}:
            records = [_rabbitmq(record, depth) for _, record in _members(queues, "rmqMessagesByQueue")]
            return Batch("rabbitmq", records)
        case {"messages": list(found), "eventSource": str(source)} if source in _ACTIVEMQ:
            return Batch("activemq", [_activemq(_the_object(record, "messages"), depth) for record in found])
        case dict():
            return Batch("direct", [_event(event, depth)])
    raise MalformedEvent(f"an invocation is an object or a list of them; this one is a {type(event).__name__}")


def names_of(members: Mapping[Any, Any]) -> str:
    shown = ", ".join(ascii(str(name)[:40]) for name in list(members)[:NAMES_SHOWN]) or "none"
    return shown + (", …" if len(members) > NAMES_SHOWN else "")


# -------------------------------------------------------------------------------------------------- lists of records


def _listed(records: list[Any], depth: int) -> Batch:
    kinds = {_kind(_an_event_or_text(record, "Records")) for record in records}
    if len(kinds) > 1:
        raise MalformedEvent(f"Records of several kinds in one invocation: {', '.join(sorted(map(str, kinds)))}")
    match kinds.pop() if kinds else "sqs":  # nothing to do: an empty list of failures says so to everyone
        case "sqs":
            return Batch("sqs", [_sqs(record, depth) for record in records])
        case "sns":
            return Batch("sns", [_sns(record, depth) for record in records])
        case "kinesis":
            return Batch("kinesis", [_kinesis(record, depth) for record in records])
    return Batch("direct", [_event(record, depth) for record in records])


def _piped(records: list[Any], depth: int) -> Batch:
    """A pipe hands over the records of its source, or what an input transformer made of them."""
    readers: dict[Trigger | None, Callable[[Any], Record]] = {
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
    return Batch("sqs" if only_sqs else "direct", read_all, piped=True)


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


def _event(record: dict[str, Any] | str, depth: int) -> Record:
    """An event alone, parsed or as a JSON text."""
    return _with_bodies(record, depth) if isinstance(record, str) else Record(_events_of(record, depth))


def _sqs(record: dict[str, Any], depth: int) -> Record:
    own_id = _text(record.get("messageId"))
    attributes = record.get("attributes")
    group = _group(_text(record.get("eventSourceARN")), attributes if isinstance(attributes, dict) else {})
    body = record.get("body")
    if not isinstance(body, str):
        return Record(id=own_id, group=group, unfit="a message without a body")
    named = _members_of(record.get("messageAttributes")).items()
    headers = [(name, _members_of(value).get("stringValue")) for name, value in named]
    return _with_bodies(body, depth, own_id, group, headers)


def _group(arn: str, attributes: dict[str, Any]) -> str:
    """Of a FIFO queue. A standard queue may have groups too, which promise no order."""
    is_fifo = arn.endswith(".fifo") or not arn or "SequenceNumber" in attributes
    return _text(attributes.get("MessageGroupId")) if is_fifo else ""


def _sns(record: dict[str, Any], depth: int) -> Record:
    told = record.get("Sns")
    if not isinstance(told, dict) or not isinstance(told.get("Message"), str):
        return Record(unfit="a notification without a message")
    return _with_bodies(told["Message"], depth)


def _kinesis(record: dict[str, Any], depth: int) -> Record:
    told = record.get("kinesis", record)  # a pipe writes both in one object
    if not isinstance(told, dict):
        return Record(unfit="a record of Kinesis without its data")
    group = _text(told.get("partitionKey"))
    return _from_base64(told.get("data"), depth, _text(told.get("sequenceNumber")), group)


def _kafka(record: dict[str, Any], depth: int, partition: str) -> Record:
    key, listed = _text(record.get("key")), record.get("headers")
    headers = [pair for header in listed for pair in _members_of(header).items()] if isinstance(listed, list) else []
    group = f"{partition}|{key}" if key else ""
    return _message(record.get("value"), depth, headers, group=group, without="")  # a tombstone: nothing is in it


def _rabbitmq(record: dict[str, Any], depth: int) -> Record:
    properties = _members_of(record.get("basicProperties"))
    headers = _members_of(properties.get("headers")).items()
    return _message(record.get("data"), depth, headers, _text(properties.get("contentType")))


def _activemq(record: dict[str, Any], depth: int) -> Record:
    properties = _members_of(record.get("properties")).items()
    return _message(record.get("data"), depth, properties, own_id=_text(record.get("messageID")))


def _firehose(record: dict[str, Any], depth: int) -> Record:
    data = _text(record.get("data"))
    one = _from_base64(data, depth, _text(record.get("recordId")), read=documents)
    return Record(one.bodies, one.id, unfit=one.unfit, data=data)


def _from_base64(
    data: Any,
    depth: int,
    own_id: str = "",
    group: str = "",
    read: Callable[[bytes], tuple[bytes, ...]] = lambda body: (body,),
) -> Record:
    try:
        body = b64decode(data, validate=True)
    except (TypeError, ValueError):
        return Record(id=own_id, group=group, unfit="its data is not base64")
    return Record(tuple(event for one in read(body) for event in _events_in(one, depth)), own_id, group)


def _with_bodies(
    text: str, depth: int, own_id: str = "", group: str = "", headers: Iterable[tuple[Any, Any]] = ()
) -> Record:
    try:
        return _described(text.encode(), depth, headers, "", own_id, group)
    except UnicodeEncodeError:
        return Record(id=own_id, group=group, unfit="its text contains half a surrogate pair")


def _message(
    data: Any,
    depth: int,
    headers: Iterable[tuple[Any, Any]],
    content_type: str = "",
    own_id: str = "",
    group: str = "",
    without: str = "a message without data",
) -> Record:
    """A broker's message in base64. `without`: why one without data is unfit; empty: it is nothing to act on."""
    try:
        body = None if data is None else b64decode(data, validate=True)
    except (TypeError, ValueError):
        return Record(id=own_id, group=group, unfit="its data is not base64")
    return _described(body, depth, headers, content_type, own_id, group, without)


def _described(
    body: bytes | None,
    depth: int,
    headers: Iterable[tuple[Any, Any]],
    content_type: str,
    own_id: str,
    group: str,
    without: str = "",
) -> Record:
    """A body and its headers, in which a CloudEvent in binary mode has its attributes."""
    try:
        event = from_message(body, ((str(name), _octets(value)) for name, value in headers), content_type)
    except MalformedEvent as error:
        return Record(id=own_id, group=group, unfit=str(error))
    if event is not None:
        return Record((event,), own_id, group)
    if body is None:
        return Record(id=own_id, group=group, unfit=without)
    return Record(_events_in(body, depth), own_id, group)


def _octets(value: Any) -> Any:
    """Lambda writes the bytes of a header as a list of numbers, which may be signed; for RabbitMQ within `bytes`."""
    listed = value.get("bytes") if isinstance(value, dict) else value
    if isinstance(listed, list) and all(type(octet) is int and -128 <= octet < 256 for octet in listed):
        return bytes(octet & 0xFF for octet in listed)
    return value


# ----------------------------------------------------------------------------------------------------------- events


def _events_in(body: bytes, depth: int) -> tuple[bytes, ...]:
    """The events in a body: itself, as it came, where nothing is wrapped around them."""
    if depth >= WRAPPINGS_MAX or not (b"TopicArn" in body or b"requestPayload" in body):
        return (body,)  # most bodies: no need to read them here
    try:
        return _unwrapped(parse(body), depth) or (body,)
    except (MalformedEvent, UnicodeEncodeError):
        return (body,)  # for the decoder to judge


def _events_of(document: dict[str, Any], depth: int) -> tuple[bytes, ...]:
    """The same for what Lambda has parsed already."""
    if depth < WRAPPINGS_MAX and (events := _unwrapped(document, depth)):
        return events
    try:
        return (json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(),)
    except (TypeError, ValueError, RecursionError):
        raise MalformedEvent(f"an event that is not JSON; its names are {names_of(document)}") from None


def _unwrapped(document: Any, depth: int) -> tuple[bytes, ...]:
    match opened(document):
        case str(message):
            return _events_in(message.encode(), depth + 1)
        case (dict() | list()) as invocation:
            records = read(invocation, depth + 1).records
            return () if any(record.unfit for record in records) else _all_bodies(records)
    return ()


def _all_bodies(records: Iterable[Record]) -> tuple[bytes, ...]:
    return tuple(body for record in records for body in record.bodies)


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
