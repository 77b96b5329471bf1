"""The options of providers: the types and the fields that several kinds share, their validation, and the contract that
results from them. Each kind declares its own options as a Struct beside its provider.

A field's annotation holds its type, its description for errors, and a help text. Errors name the provider and the
option. They never contain a value, because a secret may be in the wrong option.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_network
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import asdict, replace

from semel.providers.rendering import parse_address
from semel.values.delivery_state import Contract, Key
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS, POLICIES
from semel.values.secret import Secret


class Check(NamedTuple):
    """A check of a value that a type cannot express."""

    accepts: Callable[[Any], bool]


def _is_address(value: str) -> bool:
    try:
        return value.isprintable() and bool(parse_address(value, "?"))
    except ConfigError:
        return False


def _are_hosts_or_ranges(values: list[str]) -> bool:
    """Any other text would match nothing, without an error."""
    for value in values:
        try:
            msgspec.convert(value, Host)
        except msgspec.ValidationError:
            try:
                ip_network(value, strict=False)
            except ValueError:
                return False
    return True


Text = Annotated[str, Meta(min_length=1, description="a text"), Check(str.isprintable)]
SecretValue = Annotated[Secret, Meta(description='a secret: "env:NAME" or "file:path"')]
Number = Annotated[float, Meta(ge=0, lt=2**31, description="a number, 0 or more")]
Positive = Annotated[float, Meta(gt=0, lt=2**31, description="a number above 0")]
Count = Annotated[int, Meta(gt=0, lt=2**31, description="a whole number above 0")]
Flag = Annotated[bool, Meta(description="true or false")]
Port = Annotated[int, Meta(gt=0, lt=2**16, description="a port: 1 to 65535")]
Host = Annotated[
    str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,253}\Z", description="a text of letters, digits, dots and dashes")
]
UrlPath = Annotated[str, Meta(pattern="^/", description="a path that begins with /"), Check(str.isprintable)]
Address = Annotated[
    str, Meta(description="an address: name@example.com, or Name <name@example.com>"), Check(_is_address)
]
Texts = Annotated[
    list[str],
    Meta(min_length=1, description="a list of texts, at least one"),
    Check(lambda values: all(value.isprintable() for value in values)),
]
HostsOrRanges = Annotated[
    list[str], Meta(description="a list of hosts, or of ranges such as 10.0.0.0/8"), Check(_are_hosts_or_ranges)
]
Statuses = Annotated[list[Annotated[int, Meta(ge=200, lt=600)]], Meta(description="a list of HTTP statuses")]
Document = Annotated[dict[str, Any], Meta(description="an object")]
SecretHeaders = Annotated[
    dict[Annotated[str, Meta(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}\Z")], Secret],
    Meta(description="an object of secrets, by the name of their header"),
]
Channel = Literal["sms", "email", "voice", "message", "event"]
Policy = Literal["hold", "presume_sent", "resend", "give_up"]


class ProviderOptions(Struct, frozen=True, kw_only=True):
    """Options of every provider. All times are seconds. None keeps the value of the kind's contract."""

    channels: (
        Annotated[
            list[Channel],
            Meta(min_length=1, description=f"a list of {', '.join(CHANNELS)}"),
            "channels that this provider sends",
        ]
        | None
    ) = None
    timeout: Annotated[Positive, "seconds for one message, including authentication"] | None = None
    per_second: Annotated[Number, "sends per second and tenant, of all processes together; 0: no limit"] | None = None
    concurrency: Annotated[Count, "concurrent requests in each process"] | None = None
    policy: (
        Annotated[Policy, Meta(description=f"one of {', '.join(POLICIES)}"), "final resolution of an unknown outcome"]
        | None
    ) = None
    policy_after: Annotated[Positive, "seconds from the crossing to that resolution"] | None = None
    tenants: (
        Annotated[Texts, 'tenants that may send through it; "" is the default tenant; all tenants if left out'] | None
    ) = None
    senders: (
        Annotated[Texts, "senders that a notification may name besides `sender`; any sender if left out"] | None
    ) = None
    allow: Annotated[HostsOrRanges, "internal hosts and networks that may be called"] = []


class HttpOptions(ProviderOptions, frozen=True, kw_only=True):
    refusals: Annotated[Statuses, "statuses that prove that the message was not accepted and never will be"] | None = (
        None
    )
    retriable: Annotated[Statuses, "statuses that prove that this attempt was not accepted"] | None = None


SENDER_HELP = "sender number or address for notifications without one"
Sender = Annotated[Text, SENDER_HELP]
MailSender = Annotated[Address, SENDER_HELP]
PublicUrl = Annotated[Text, "replaces the provider's public URL"]
Extra = Annotated[Document, "fields that are added to every request body"]
UnverifiedPath = Annotated[UrlPath, "path after the URL; the default is unverified"]
KeyPath = Annotated[Text, "path of the key in the body"]
KeyWindow = Annotated[Positive, "seconds during which the provider honours the key"]
TextMax = Annotated[Count, "maximum characters of a text"]


class JsonOptions(HttpOptions, frozen=True, kw_only=True):
    """Options of a provider with one path and one JSON document."""

    url: PublicUrl = ""
    path: Annotated[UrlPath, "path after the URL; replaces the provider's own"] = ""
    extra: Extra = {}


class Option(NamedTuple):
    """One option of a kind, for validation and documentation."""

    type: Any
    description: str
    help: str
    checks: tuple[Check, ...]
    required: bool


def options_of(kind: type[ProviderOptions]) -> dict[str, Option]:
    """The options of a kind, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: _option(hints[field.name], field.required) for field in msgspec.structs.fields(kind)}


def _option(hint: Any, required: bool) -> Option:
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (member for member in get_args(hint) if member is not NoneType)
    _, *notes = get_args(hint)
    (description,) = (note.description or "" for note in notes if isinstance(note, Meta) and note.description)
    (help,) = (note for note in notes if isinstance(note, str))
    return Option(hint, description, help, tuple(note for note in notes if isinstance(note, Check)), required)


OptionsT = TypeVar("OptionsT", bound=ProviderOptions)


def parse_options(struct: type[OptionsT], name: str, kind: str, values: Mapping[str, Any]) -> OptionsT:
    """Raises ConfigError for an unknown option, a missing option, or a value of the wrong type."""
    where, known = f"provider {name!r} ({kind})", options_of(struct)
    for unknown in sorted(values.keys() - known.keys()):
        near = get_close_matches(unknown, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(sorted(known))}"
        raise ConfigError(f"{where}: there is no option {unknown!r}: {hint}")
    parsed = {}
    for option_name, option in known.items():
        if option_name in values:
            try:
                parsed[option_name] = value = msgspec.convert(values[option_name], option.type)
                accepted = all(check.accepts(value) for check in option.checks)
            except msgspec.ValidationError:
                accepted = False
            if not accepted:
                raise ConfigError(f"{where}: {option_name}: expected {option.description} ({option.help})")
        elif option.required:
            raise ConfigError(f"{where}: {option_name} is missing: {option.help}")
    return struct(**parsed)


CONTRACT_FIELDS = {  # options that are fields of the contract
    "timeout": "timeout_s",
    "per_second": "per_second",
    "concurrency": "concurrency",
    "settle": "settle_s",
    "policy": "policy",
    "policy_after": "policy_after_s",
}


def contract_of(base: Contract, name: str, parsed: ProviderOptions) -> Contract:
    """Apply the options to the built-in contract of a kind. Raises ConfigError."""
    options = {option: value for option, value in asdict(parsed).items() if value is not None}
    changes = {field: options[option] for option, field in CONTRACT_FIELDS.items() if option in options}
    for field in ("refusals", "retriable", "tenants"):
        if field in options:
            changes[field] = frozenset(options[field])
    if "channels" in options:
        if unsupported := [channel for channel in options["channels"] if channel not in base.channels]:
            supported = ", ".join(base.channels)
            raise ConfigError(f"provider {name!r}: channels: it sends {supported}, not {unsupported[0]}")
        changes["channels"] = tuple(options["channels"])
    if "senders" in options:
        changes["senders"] = frozenset([*options["senders"], *([options["sender"]] if options.get("sender") else [])])
    contract = replace(base, name=name, **changes)
    if both := contract.refusals & contract.retriable:
        raise ConfigError(f"provider {name!r}: {min(both)} is both in refusals and in retriable")
    if (window_s := options.get("key_window")) is None:
        return contract
    if contract.key is not None:
        if window_s > contract.key.window_s:
            raise ConfigError(
                f"provider {name!r}: key_window: the provider honours a key for {contract.key.window_s:g} s at most"
            )
        return replace(contract, key=replace(contract.key, window_s=window_s))
    header, path = options.get("key_header", ""), options.get("key_path", "")
    if not (header or path):
        raise ConfigError(f"provider {name!r}: key_window needs key_header or key_path, the place of the key")
    return replace(contract, key=Key(header=header, path=path, window_s=window_s))
