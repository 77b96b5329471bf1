"""Requests to DynamoDB by names and values: its expressions want a placeholder for every word that it has reserved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from semel.ledgers.dynamodb.items import Appended, Item, dump, dump_item

Request: TypeAlias = dict[str, Any]

ABSENT = "attribute_not_exists(pk)"


class Words:
    """The placeholders of one request."""

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

    def equal(self, wanted: Mapping[str, Any]) -> str:
        """All of these attributes have these values; None: the attribute is not there."""
        return " AND ".join(
            f"attribute_not_exists({self.name(name)})" if value is None else f"{self.name(name)} = {self.value(value)}"
            for name, value in wanted.items()
        )

    def add_to(self, request: Request) -> Request:
        if self.names:
            request["ExpressionAttributeNames"] = self.names
        if self.values:
            request["ExpressionAttributeValues"] = self.values
        return request


def put(table: str, item: Item, over: Mapping[str, Any] | None) -> Request:
    """Write a whole item. `over`: what must be there now; None: nothing may be there."""
    words = Words()
    condition = ABSENT if over is None else words.equal(over)
    return words.add_to(
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
    over: Mapping[str, Any],
    *,
    present: Iterable[str] = (),
) -> Request:
    """Change some attributes of an item that is there; a value of None removes. Every change counts up `v`."""
    words = Words()
    removed = [words.name(name) for name, value in sets.items() if value is None]
    changed = [words.assign(name, value) for name, value in sets.items() if value is not None]
    changed.append(f"{words.name('v')} = if_not_exists({words.name('v')}, {words.value(0)}) + {words.value(1)}")
    condition = " AND ".join([words.equal(over), *[f"attribute_exists({words.name(name)})" for name in present]])
    return words.add_to(
        {
            "TableName": table,
            "Key": dump_item(key),
            "UpdateExpression": f"SET {', '.join(changed)}" + (f" REMOVE {', '.join(removed)}" if removed else ""),
            "ConditionExpression": condition,
            "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
        }
    )


def delete(table: str, key: Item, over: Mapping[str, Any]) -> Request:
    words = Words()
    return words.add_to(
        {"TableName": table, "Key": dump_item(key), "ConditionExpression": words.equal(over)},
    )
