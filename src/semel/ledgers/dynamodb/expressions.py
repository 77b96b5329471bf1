"""Requests to DynamoDB: Python values as attribute values, and expressions with a placeholder for every name and value,
because DynamoDB reserves many expr."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple, TypeAlias

# --------------------------------------------------------------------------------------------------------- values

Value: TypeAlias = dict[str, Any]  # one attribute as the service stores it: {"S": "text"}, {"N": "1"}, {"B": b"…"}, …
Item: TypeAlias = dict[str, Any]  # a whole item with Python values
Stored: TypeAlias = dict[str, Value]


class Appended(NamedTuple):
    """In an update: a value to append to a list."""

    value: Any


def dump(value: Any) -> Value:
    """Convert a Python value. Raises TypeError for a type that DynamoDB cannot store."""
    match value:
        case bool():  # before int, because True is an int
            return {"BOOL": value}
        case str():
            return {"S": storable(value)}
        case int() | Decimal():
            return {"N": str(value)}
        case float():
            return {"N": str(Decimal(repr(value)))}  # its shortest decimal form; the service refuses NaN
        case bytes() | bytearray() | memoryview():
            return {"B": bytes(value)}
        case None:
            return {"NULL": True}
        case list() | tuple():
            return {"L": [dump(member) for member in value]}
        case Mapping():
            return {"M": dump_item(value)}
        case set() | frozenset():
            return _dump_set(value)
    raise TypeError(f"DynamoDB cannot store a value of type {type(value).__name__}")


def load(value: Mapping[str, Any]) -> Any:
    ((kind, stored),) = value.items()
    match kind:
        case "N":
            return _number(stored)
        case "NULL":
            return None
        case "L":
            return [load(member) for member in stored]
        case "M":
            return load_item(stored)
        case "NS":
            return {_number(text) for text in stored}
        case "SS" | "BS":
            return set(stored)
    return stored  # S, B, BOOL


def dump_item(item: Mapping[str, Any]) -> Stored:
    for name in item:
        if not isinstance(name, str):
            raise TypeError(f"{name!r}: attribute names are texts")
    return {name: dump(value) for name, value in item.items()}


def load_item(stored: Mapping[str, Mapping[str, Any]]) -> Item:
    return {name: load(value) for name, value in stored.items()}


def storable(text: str) -> str:
    """Replace lone surrogates in a text of an operator or an exception: they must not prevent a settle."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def _dump_set(values: set[Any] | frozenset[Any]) -> Value:
    kinds = {next(iter(dump(value))) for value in values}
    if len(kinds) != 1 or not kinds <= {"S", "N", "B"}:
        raise TypeError("a DynamoDB set has at least one value, and all are texts, all numbers or all bytes")
    (kind,) = kinds
    return {f"{kind}S": [dump(value)[kind] for value in values]}


def _number(text: str) -> int | Decimal:
    return int(text) if text.lstrip("-").isdecimal() else Decimal(text)


# ---------------------------------------------------------------------------------------------------- expressions

Request: TypeAlias = dict[str, Any]

ABSENT = "attribute_not_exists(pk)"


class Expression:
    """The names and values of one request, with their placeholders."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.values: dict[str, Any] = {}

    def name(self, name: str) -> str:
        placeholder = f"#{name}"
        self.names[placeholder] = name
        return placeholder

    def value(self, value: Any) -> str:
        placeholder = f":{len(self.values)}"
        self.values[placeholder] = dump(value)
        return placeholder

    def assign(self, name: str, value: Any) -> str:
        if not isinstance(value, Appended):
            return f"{self.name(name)} = {self.value(value)}"
        before = f"if_not_exists({self.name(name)}, {self.value([])})"
        return f"{self.name(name)} = list_append({before}, {self.value([value.value])})"

    def equal(self, expected: Mapping[str, Any]) -> str:
        """A condition: these attributes have these values. None means that the attribute does not exist."""
        return " AND ".join(
            f"attribute_not_exists({self.name(name)})" if value is None else f"{self.name(name)} = {self.value(value)}"
            for name, value in expected.items()
        )

    def add_to(self, request: Request) -> Request:
        if self.names:
            request["ExpressionAttributeNames"] = self.names
        if self.values:
            request["ExpressionAttributeValues"] = self.values
        return request


def put(table: str, item: Item, expected: Mapping[str, Any] | None) -> Request:
    """A request that writes a whole item over one with the `expected` attributes; None: no item may exist."""
    expr = Expression()
    condition = ABSENT if expected is None else expr.equal(expected)
    return expr.add_to(
        {
            "TableName": table,
            "Item": dump_item({name: value for name, value in item.items() if value is not None}),
            "ConditionExpression": condition,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    )


def update(
    table: str,
    key: Item,
    sets: Mapping[str, Any],
    expected: Mapping[str, Any],
    *,
    present: Iterable[str] = (),
) -> Request:
    """A request that changes attributes of an existing item; None removes one. Every change increments `version`."""
    expr = Expression()
    removed = [expr.name(name) for name, value in sets.items() if value is None]
    changed = [expr.assign(name, value) for name, value in sets.items() if value is not None]
    changed.append(f"{expr.name('version')} = if_not_exists({expr.name('version')}, {expr.value(0)}) + {expr.value(1)}")
    condition = " AND ".join([expr.equal(expected), *[f"attribute_exists({expr.name(name)})" for name in present]])
    return expr.add_to(
        {
            "TableName": table,
            "Key": dump_item(key),
            "UpdateExpression": f"SET {', '.join(changed)}" + (f" REMOVE {', '.join(removed)}" if removed else ""),
            "ConditionExpression": condition,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    )


def delete(table: str, key: Item, expected: Mapping[str, Any]) -> Request:
    expr = Expression()
    return expr.add_to({"TableName": table, "Key": dump_item(key), "ConditionExpression": expr.equal(expected)})
