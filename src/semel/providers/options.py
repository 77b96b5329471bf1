"""Option types of providers, their validation, and the contract that results from them.

Errors name the provider and the option. They never contain a value, because a secret may be in the wrong option.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_network
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from semel.providers.rendering import parse_address
from semel.values.delivery_state import Contract, Key
from semel.values.errors import ConfigError
from semel.values.notification import CHANNELS, POLICIES
from semel.values.secret import Secret

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)


class ValueType(NamedTuple):
    """The type of an option's value: its description in errors, and its check."""

    description: str
    accepts: Callable[[Any], bool]


class Option(NamedTuple):
    type: ValueType
    help: str
    required: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _is_status(value: Any) -> bool:
    return _is_whole(value) and 200 <= value < 600


def _is_secret(value: Any) -> bool:
    return isinstance(value, Secret)


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and _HOST.fullmatch(value) is not None


def _is_allowed(value: Any) -> bool:
    """Accepts a host or an address range. Any other text would match nothing, without an error."""
    try:
        return isinstance(value, str) and (_is_host(value) or bool(ip_network(value, strict=False)))
    except ValueError:
        return False


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.isprintable() and bool(parse_address(value, "?"))
    except ConfigError:
        return False


TEXT = ValueType("a text", lambda value: isinstance(value, str) and bool(value) and value.isprintable())
SECRET = ValueType('a secret: "env:NAME" or "file:path"', _is_secret)
NUMBER = ValueType("a number, 0 or more", _is_number)
ABOVE_0 = ValueType("a number above 0", lambda value: _is_number(value) and value > 0)
WHOLE = ValueType("a whole number above 0", lambda value: _is_whole(value) and value > 0)
FLAG = ValueType("true or false", lambda value: isinstance(value, bool))
PORT = ValueType("a port: 1 to 65535", lambda value: _is_whole(value) and 0 < value < 2**16)
HOST = ValueType("a text of letters, digits, dots and dashes", _is_host)
PATH = ValueType("a path that begins with /", lambda value: TEXT.accepts(value) and value.startswith("/"))
ADDRESS = ValueType("an address: name@example.com, or Name <name@example.com>", _is_address)
ALLOWED = ValueType(
    "a list of hosts, or of ranges such as 10.0.0.0/8",
    lambda value: _is_list(value) and all(_is_allowed(one) for one in value),
)
STATUSES = ValueType("a list of HTTP statuses", lambda value: _is_list(value) and all(_is_status(one) for one in value))
OBJECT = ValueType("an object", _is_object)
SECRETS = ValueType(
    "an object of secrets, by the name of their header",
    lambda value: (
        _is_object(value)
        and all(_HEADER.fullmatch(name) for name in value)
        and all(_is_secret(one) for one in value.values())
    ),
)


TEXTS = ValueType(
    "a list of texts, at least one",
    lambda value: _is_list(value) and bool(value) and all(isinstance(one, str) and one.isprintable() for one in value),
)


def one_of(*allowed: str) -> ValueType:
    return ValueType(f"one of {', '.join(allowed)}", lambda value: value in allowed)


def mapping_to(*allowed: str) -> ValueType:
    return ValueType(
        f"an object that maps each word to one of {', '.join(allowed)}",
        lambda value: _is_object(value) and all(item in allowed for item in value.values()),
    )


def list_of(*allowed: str) -> ValueType:
    return ValueType(
        f"a list of {', '.join(allowed)}",
        lambda value: _is_list(value) and bool(value) and all(item in allowed for item in value),
    )


def check_options(name: str, kind: str, known: Mapping[str, Option], options: Mapping[str, Any]) -> None:
    """Raises ConfigError for an unknown option, a missing option, or a value of the wrong type."""
    where = f"provider {name!r} ({kind})"
    for unknown in sorted(options.keys() - known.keys()):
        near = get_close_matches(unknown, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(sorted(known))}"
        raise ConfigError(f"{where}: there is no option {unknown!r}: {hint}")
    for option_name, option in known.items():
        if option_name not in options:
            if option.required:
                raise ConfigError(f"{where}: {option_name} is missing: {option.help}")
        elif not option.type.accepts(options[option_name]):
            raise ConfigError(f"{where}: {option_name}: expected {option.type.description} ({option.help})")


CONTRACT_FIELDS = {  # options that are fields of the contract; all times are seconds
    "timeout": "timeout_s",
    "per_second": "per_second",
    "concurrency": "concurrency",
    "settle": "settle_s",
    "policy": "policy",
    "policy_after": "policy_after_s",
}


class ProviderOptions(Struct, frozen=True):
    """The checked options of one provider, and the contract that they result in."""

    contract: Contract
    values: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def get(self, name: str, default: Any) -> Any:
        return self.values.get(name, default)

    def keywords(self, *names: str) -> dict[str, Any]:
        """Keyword arguments for the provider's constructor: contract, allow, and those of `names` that are set.
        Options that are not set keep the constructor's default."""
        return {
            "contract": self.contract,
            "allow": tuple(self.get("allow", ())),
            **{name: self.values[name] for name in names if name in self.values},
        }


def contract_of(known: Contract, name: str, options: Mapping[str, Any]) -> Contract:
    """Apply the options to the built-in contract of a kind. Raises ConfigError."""
    contract = replace(known, name=name)
    contract = replace(contract, **{field: options[name] for name, field in CONTRACT_FIELDS.items() if name in options})
    if "channels" in options:
        if unsupported := [channel for channel in options["channels"] if channel not in contract.channels]:
            supported = ", ".join(contract.channels)
            raise ConfigError(f"provider {name!r}: channels: it sends {supported}, not {unsupported[0]}")
        contract = replace(contract, channels=tuple(options["channels"]))
    for field in ("refusals", "retriable"):
        if field in options:
            contract = replace(contract, **{field: frozenset(options[field])})
    if "tenants" in options:
        contract = replace(contract, tenants=frozenset(options["tenants"]))
    if "senders" in options:
        own = [options["sender"]] if "sender" in options else []
        contract = replace(contract, senders=frozenset([*options["senders"], *own]))
    if both := contract.refusals & contract.retriable:
        raise ConfigError(f"provider {name!r}: {min(both)} is both in refusals and in retriable")
    if (window_s := options.get("key_window")) is None:
        return contract
    header, path = options.get("key_header", ""), options.get("key_path", "")
    if contract.key is not None:
        if window_s > contract.key.window_s:
            raise ConfigError(
                f"provider {name!r}: key_window: the provider honours a key for {contract.key.window_s:g} s at most"
            )
        return replace(contract, key=replace(contract.key, window_s=window_s))
    if known.name == "http" and not (header or path):
        raise ConfigError(f"provider {name!r}: key_window needs key_header or key_path, the place of the key")
    if not (header or path):
        path = "idempotencyKey"
    return replace(contract, key=Key(header=header, path=path, window_s=window_s))


# Options that several kinds share. Options of a single kind are in `registry.KINDS`.

COMMON = {
    "channels": Option(list_of(*CHANNELS), "channels that this provider sends"),
    "timeout": Option(ABOVE_0, "seconds for one message, including authentication"),
    "per_second": Option(NUMBER, "sends per second and tenant, of all processes together; 0: no limit"),
    "concurrency": Option(WHOLE, "concurrent requests in each process"),
    "policy": Option(one_of(*POLICIES), "final resolution of an unknown outcome"),
    "policy_after": Option(ABOVE_0, "seconds from the crossing to that resolution"),
    "tenants": Option(TEXTS, 'tenants that may send through it; "" is the default tenant; all tenants if left out'),
    "senders": Option(TEXTS, "senders that a notification may name besides `sender`; any sender if left out"),
    "allow": Option(ALLOWED, "internal hosts and networks that may be called"),
}
HTTP = {
    **COMMON,
    "refusals": Option(STATUSES, "statuses that prove that the message was not accepted and never will be"),
    "retriable": Option(STATUSES, "statuses that prove that this attempt was not accepted"),
}
URL = {"url": Option(TEXT, "replaces the provider's public URL")}
SENDER = {"sender": Option(TEXT, "sender number or address for notifications without one")}
MAIL_SENDER = {"sender": Option(ADDRESS, SENDER["sender"].help)}
SHAPE = {
    "path": Option(PATH, "path after the URL; replaces the provider's own"),
    "extra": Option(OBJECT, "fields that are added to every request body"),
}
UNVERIFIED_PATH = {"path": Option(PATH, "path after the URL; the default is unverified")}
KEY_WINDOW = {"key_window": Option(ABOVE_0, "seconds during which the provider honours the key")}
TEXT_MAX = {"text_max": Option(WHOLE, "maximum characters of a text")}
GENESYS = {
    **HTTP,
    "region": Option(HOST, "domain of the region, such as mypurecloud.de", required=False),
    "url": Option(TEXT, "https://api.…; the region's by default"),
    "login_url": Option(TEXT, "https://login.…; the region's by default"),
    "client_id": Option(TEXT, "of an OAuth client with client credentials", required=True),
    "client_secret": Option(SECRET, "of that client", required=True),
    "extra": SHAPE["extra"],
}
CXONE = {
    **HTTP,
    "url": Option(TEXT, "URL of the tenant's API", required=True),
    "token_url": Option(TEXT, "token endpoint for the access key", required=True),
    "access_key_id": Option(TEXT, "of a back-end application", required=True),
    "access_key_secret": Option(SECRET, "of that key", required=True),
    "client_id": Option(TEXT, "of the application, if its token request needs one"),
    "client_secret": Option(SECRET, "of the application"),
    "reference_at": Option(TEXT, "path of the message id in the response; the default is unverified"),
}
