"""Python's values as DynamoDB writes them, and back: `{"S": "text"}`, `{"N": "1"}`, `{"B": b"…"}`, …"""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

Value: TypeAlias = dict[str, Any]  # one attribute as the service sees it
Item: TypeAlias = dict[str, Any]  # a whole item, with Python's values
Stored: TypeAlias = dict[str, Value]


class Appended(NamedTuple):
    """In an update: what comes to the end of a list."""

    value: Any


def dump(value: Any) -> Value:
    """Raises TypeError for what the service cannot hold."""
    match value:
        case bool():  # before int: True is one
            return {"BOOL": value}
        case str():
            return {"S": storable(value)}
        case int() | Decimal():
            return {"N": str(value)}
        case float():
            return {"N": str(Decimal(repr(value)))}  # its shortest decimal spelling; NaN is refused by the service
        case bytes() | bytearray() | memoryview():
            return {"B": bytes(value)}
        case None:
            return {"NULL": True}
        case list() | tuple():
            return {"L": [dump(one) for one in value]}
        case Mapping():
            return {"M": dump_item(value)}
        case set() | frozenset():
            return _dump_set(value)
    raise TypeError(f"DynamoDB cannot hold a value of type {type(value).__name__}")


def load(value: Mapping[str, Any]) -> Any:
    ((kind, stored),) = value.items()
    match kind:
        case "N":
            return _number(stored)
        case "NULL":
            return None
        case "L":
            return [load(one) for one in stored]
        case "M":
            return load_item(stored)
        case "NS":
            return {_number(one) for one in stored}
        case "SS" | "BS":
            return set(stored)
    return stored  # S, B, BOOL


def dump_item(item: Mapping[str, Any]) -> Stored:
    for name in item:
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: the name of an attribute is a text")
    return {name: dump(value) for name, value in item.items()}


def load_item(stored: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: load(value) for name, value in stored.items()}


def storable(text: str) -> str:
    """Words of a person or of an exception: half a character in them must not keep a settle from being written."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _dump_set(values: set[Any] | frozenset[Any]) -> Value:
    kinds = {next(iter(dump(value))) for value in values}
    if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
        raise TypeError("a set of DynamoDB has one or more values, all of them texts, numbers or bytes")
    (kind,) = kinds
    return {f"{kind}S": [dump(value)[kind] for value in values]}


def _number(text: str) -> int | Decimal:
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)
