"""Converts a parsed document to `Settings` and collects all faults.

msgspec stops at the first error. The tables are therefore walked here, and msgspec converts single values. An invalid
value is replaced by its default or by an empty value, so that the rules can check the rest. `Shaped.wrong` has the
paths that rules must not report again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct, inspect
from msgspec.structs import replace

from semel.settings.errors import Fault, SettingPath, did_you_mean, named, nearest, quoted
from semel.settings.schema import (
    Brokers,
    Callbacks,
    Channels,
    DestinationSettings,
    EndpointSettings,
    KafkaBroker,
    KafkaSourceSettings,
    OutboxSettings,
    ProviderSettings,
    RabbitBroker,
    RabbitSourceSettings,
    Route,
    ServerSettings,
    Settings,
    SqsBroker,
    SqsSourceSettings,
    Token,
    Verify,
)
from semel.values.secret import Secret
from semel.wiring import provider_option_types

T = TypeVar("T", bound=Struct)

PLACES: dict[type[Struct], str] = {  # for a key in the wrong table
    Settings: "at the top, before the first [table]",
    ServerSettings: "in [server]",
    EndpointSettings: "in [[endpoints]]",
    Verify: "in [endpoints.verify]",
    DestinationSettings: 'in [destinations.NAME], to which a route has forward = "NAME"',
    SqsSourceSettings: 'in [[sources]] with kind = "sqs"',
    KafkaSourceSettings: 'in [[sources]] with kind = "kafka"',
    RabbitSourceSettings: 'in [[sources]] with kind = "rabbitmq"',
    Brokers: "in [brokers]",
    SqsBroker: "in [brokers.sqs]",
    KafkaBroker: "in [brokers.kafka]",
    RabbitBroker: "in [brokers.rabbitmq]",
    Route: "in [[routes]]",
    ProviderSettings: "in [providers.NAME]",
    Callbacks: "in [providers.NAME.callbacks]",
    Channels: "in [channels]",
    OutboxSettings: "in [outbox]",
    Token: "in [[tokens]]",
}
TAG = "kind"
FORMS = {
    "reference": '"env:NAME" or "file:path"',
    "plain": 'a text, "env:NAME" or "file:path"',
    "url": 'a URL, "env:NAME" or "file:path"',
}
LONG_BITS = 200  # longer numbers are not shown; Python refuses to print more than 4,300 digits

Form: TypeAlias = Literal["reference", "plain", "url"]
"""How a secret may be written: only as a reference, also as plain text, or also as a URL with a reference in it."""

ReadSecret = Callable[[str, Form], Secret]
"""Reads a secret from its text in the settings. Raises BadReference."""


class BadReference(Exception):
    """A secret could not be read. The message contains no secret."""


class Shaped(Struct, frozen=True):
    """The settings, with replacements for invalid values, and the faults."""

    settings: Settings
    faults: list[Fault]
    wrong: set[SettingPath]  # paths that are already reported, or follow from a reported one

    def is_new(self, fault: Fault) -> bool:
        """Whether none of the paths of a fault is already wrong."""
        return not any(
            path[:length] in self.wrong for path in (fault.path, *fault.about) for length in range(len(path) + 1)
        )


def shape(document: Mapping[str, Any], read_secret: ReadSecret) -> Shaped:
    shaper = _Shaper(read_secret)
    return Shaped(shaper.table(Settings, document, ()), shaper.faults, shaper.wrong)


def fault_in(kind: type[Struct], table: Mapping[str, Any]) -> str:
    """The faults of a single table without secrets, as one text; empty if there are none."""
    shaper = _Shaper(lambda written, form: Secret(written))
    shaper.table(kind, table, ())
    return "; ".join(fault.what for fault in shaper.faults)


class _Shaper:
    def __init__(self, read_secret: ReadSecret) -> None:
        self._read_secret = read_secret
        self.faults: list[Fault] = []
        self.wrong: set[SettingPath] = set()

    def table(self, kind: type[T], value: Any, path: SettingPath) -> T:
        """Convert a table of the schema, and report unknown and missing keys."""
        if not isinstance(value, Mapping):
            doubled = isinstance(value, list) and isinstance(path[-1], str)
            expected = f"one table: write [{_dotted(path)}]" if doubled else "a table"
            self._wrong(path, f"{named(path)}: expected {expected}, got {_type_name(value)}")
            return _empty_table(kind)
        kinds = kinds_of(kind)
        meant = self._unknown_keys(kinds, value, path)
        members: dict[str, Any] = {}
        for field in msgspec.structs.fields(kind):
            at = (*path, field.name)
            if field.name in value:
                members[field.name] = self._value(kinds[field.name], value[field.name], at)
            elif field.required:
                if field.name not in meant:
                    self._wrong(at, f'"{field.name}" is missing')
                members[field.name] = _empty_value(kinds[field.name])
        return kind(**members)

    def _unknown_keys(self, kinds: Mapping[str, Any], table: Mapping[str, Any], path: SettingPath) -> set[str]:
        """Report unknown keys. Returns the keys that were probably meant; those are not reported as missing."""
        meant: set[str] = set()
        for key in table:
            if key in kinds:
                continue
            homes = [place for other, place in PLACES.items() if key in other.__struct_fields__]
            near = nearest(key, kinds) if len(homes) != 1 else _plural(key, kinds)
            if near:
                meant.add(near)
                self.wrong.add((*path, near))
            hint = f"; did you mean {quoted(near)}?" if near else f"; it belongs {' or '.join(homes)}" if homes else ""
            self._wrong((*path, key), f"unknown key {quoted(key)}{hint}")
        return meant

    def _value(self, kind: Any, value: Any, path: SettingPath) -> Any:
        bare, meta = unwrapped(kind)
        if tagged := _tagged(bare):
            return self._one_of(tagged, value, path)
        if bare is ProviderSettings and isinstance(value, Mapping):
            return self._provider(value, path)
        if isinstance(bare, type) and issubclass(bare, Struct):
            return self.table(bare, value, path)
        if bare is Secret:
            form: Form = "url" if _extra(meta, "url") else "plain" if _extra(meta, "plain") else "reference"
            return self._secret(value, path, form)
        if get_origin(bare) is list:
            return self._list(get_args(bare)[0], meta, value, path)
        if isinstance(value, list) and (item := _item_of_list(bare)) is not None:
            return self._list(item, None, value, path)
        if get_origin(bare) is dict:
            return self._dict(get_args(bare), value, path)
        return self._scalar(kind, value, path)

    def _one_of(self, tagged: Mapping[str, type[Struct]], value: Any, path: SettingPath) -> Any:
        """A table whose `kind` selects one of several Structs."""
        first, *_ = tagged.values()
        if not isinstance(value, Mapping):
            return self.table(first, value, path)
        kind = value.get(TAG)
        if isinstance(kind, str) and kind in tagged:
            return self.table(tagged[kind], {key: item for key, item in value.items() if key != TAG}, path)
        expected = f"one of {', '.join(map(quoted, tagged))}"
        guess = did_you_mean(kind, tagged) if isinstance(kind, str) else ""
        what = f"{TAG}: expected {expected}, got {_shown(kind)}{guess}"
        self._wrong((*path, TAG), what if TAG in value else f'"{TAG}" is missing: {expected}')
        self.wrong.add(path)  # its other keys cannot be checked without the kind
        return _empty_table(first)

    def _provider(self, value: Mapping[str, Any], path: SettingPath) -> ProviderSettings:
        """The common keys, and the options of the kind, which the adapter checks later."""
        own = {"kind", "callbacks"}
        table = self.table(ProviderSettings, {key: item for key, item in value.items() if key in own}, path)
        types = provider_option_types(table.kind)
        options = {
            key: self._option(types.get(key), item, (*path, key)) for key, item in value.items() if key not in own
        }
        return replace(table, options=options)

    def _option(self, kind: Any, value: Any, path: SettingPath) -> Any:
        bare, _ = unwrapped(kind)
        if bare is Secret:
            return self._secret(value, path, "reference")
        if Secret in get_args(bare) and isinstance(value, Mapping):  # headers
            return {name: self._secret(text, (*path, name), "plain") for name, text in value.items()}
        return value

    def _list(self, item: Any, meta: Meta | None, value: Any, path: SettingPath) -> list[Any]:
        tables = _is_table(item)
        if not isinstance(value, list):
            expected = f"tables: write [[{_dotted(path)}]]" if tables else _example(item, value)
            self._wrong(path, f"{named(path)}: expected a list of {expected}, got {_type_name(value)}")
            return []
        if meta is not None and len(value) < (meta.min_length or 0):
            self._wrong(path, f"{named(path)}: expected at least {meta.min_length} in the list, got none")
        return [self._value(item, member, (*path, index)) for index, member in enumerate(value)]

    def _dict(self, kinds: tuple[Any, ...], value: Any, path: SettingPath) -> dict[str, Any]:
        key, item = kinds
        if not isinstance(value, Mapping):
            inside = f"[{_dotted(path)}.NAME]" if _is_table(item) else f"[{_dotted(path)}]"
            self._wrong(path, f"{named(path)}: expected {inside}, got {_type_name(value)}")
            return {}
        for name in value:
            try:
                msgspec.convert(name, key)
            except msgspec.ValidationError:
                self._wrong((*path, name), f"{named(path)}: expected {_expected(key)}, got {quoted(name)}")
        return {name: self._value(item, member, (*path, name)) for name, member in value.items()}

    def _secret(self, value: Any, path: SettingPath, form: Form) -> Secret:
        what = f"expected {FORMS[form]}, got {_type_name(value)}"
        if isinstance(value, str):
            try:
                return self._read_secret(value, form)
            except BadReference as error:
                what = str(error)
        self._wrong(path, f"{named(path)}: {what}")
        return Secret("")

    def _scalar(self, kind: Any, value: Any, path: SettingPath) -> Any:
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError:
            bare, meta = unwrapped(kind)
            shown = _type_name(value) if _extra(meta, "hidden") else _shown(value)
            expected = _expected(kind)
            choices = map(str, get_args(bare)) if get_origin(bare) is Literal else ()
            offered = [choice for choice in choices if quoted(choice) in expected]
            guess = did_you_mean(value, offered) if isinstance(value, str) else ""
            self._wrong(path, f"{named(path)}: expected {expected}, got {shown}{guess}")
            return _empty_value(kind)

    def _wrong(self, path: SettingPath, what: str) -> None:
        self.faults.append(Fault(path, what))
        self.wrong.add(path)


# ------------------------------------------------------------------------------------------------------ the schema


def _item_of_list(union: Any) -> Any:
    """The item type of the list in a union; None if the union has no list."""
    return next((get_args(one)[0] for one in get_args(union) if get_origin(one) is list), None)


@cache
def kinds_of(table: type[Struct]) -> dict[str, Any]:
    """The type of each setting of a table."""
    return get_type_hints(table, include_extras=True)


def unwrapped(kind: Any) -> tuple[Any, Meta | None]:
    """The type without `| None`, which TOML does not have, and without annotations; and its Meta."""
    meta = None
    while True:
        if get_origin(kind) is Annotated:
            kind, *metas = get_args(kind)
            meta = metas[0]
        elif get_origin(kind) in (Union, UnionType) and len(get_args(kind)) == 2 and NoneType in get_args(kind):
            kind = next(one for one in get_args(kind) if one is not NoneType)
        else:
            return kind, meta


def _is_table(kind: Any) -> bool:
    bare, _ = unwrapped(kind)
    return bool(_tagged(bare)) or (isinstance(bare, type) and issubclass(bare, Struct))


def _tagged(kind: Any) -> dict[str, type[Struct]]:
    """The Structs of a union by their `kind`; empty if it is not such a union."""
    if get_origin(kind) not in (Union, UnionType):
        return {}
    tables = [one for one in get_args(kind) if isinstance(one, type) and issubclass(one, Struct)]
    return {str(one.__struct_config__.tag): one for one in tables}


def _extra(meta: Meta | None, name: str) -> bool:
    return bool(meta is not None and (meta.extra or {}).get(name))


def _empty_table(kind: type[T]) -> T:
    """A table with an empty value for every required setting."""
    kinds = kinds_of(kind)
    return kind(
        **{field.name: _empty_value(kinds[field.name]) for field in msgspec.structs.fields(kind) if field.required}
    )


def _empty_value(kind: Any) -> Any:
    """An empty value of a type, which replaces an invalid one."""
    bare, _ = unwrapped(kind)
    if get_origin(bare) is Literal:
        return get_args(bare)[0]
    return {list: list, int: int, float: float, bool: bool}.get(get_origin(bare) or bare, str)()


# --------------------------------------------------------------------------------------------------- texts of errors


def _dotted(path: SettingPath) -> str:
    return ".".join(part for part in path if isinstance(part, str))


def _example(kind: Any, value: Any) -> str:
    """An example of a list of this type. It contains the written value, unless that is a secret."""
    if unwrapped(kind)[0] is Secret:
        return 'references, ["env:NAME"]'
    return f"texts, [{quoted(value)}]" if isinstance(value, str) else "texts"


def _expected(kind: Any) -> str:
    bare, meta = unwrapped(kind)
    if meta is not None and meta.description:
        return meta.description
    if get_origin(bare) is Literal:
        return "one of " + ", ".join(
            quoted(choice) if isinstance(choice, str) else str(choice) for choice in get_args(bare)
        )
    match inspect.type_info(Annotated[bare, meta] if meta is not None else bare):
        case inspect.IntType(ge=least, le=most) | inspect.FloatType(ge=least, le=most) as number:
            word = "a whole number" if isinstance(number, inspect.IntType) else "a number"
            return f"{word} from {least} to {most}" if least is not None and most is not None else word
        case inspect.BoolType():
            return "true or false"
    return "a text"


def _shown(value: Any) -> str:
    """An invalid value that is not a secret, for errors."""
    if isinstance(value, str):
        return f"the text {quoted(value)}"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() <= LONG_BITS):
        return str(value)
    return _type_name(value)


def _type_name(value: Any) -> str:
    """The type of a value in words, without the value."""
    if isinstance(value, bool):
        return "true or false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    names |= {date: "a date", datetime: "a date", time: "a time"}
    return names.get(type(value), "something else")


def _plural(key: str, kinds: Mapping[str, Any]) -> str:
    """`topics` for `topic`, and vice versa. It is preferred to a key of that name in another table."""
    return next((name for name in (f"{key}s", key.removesuffix("s")) if name != key and name in kinds), "")
