"""The options of a provider: what each is, and whether what was given is that. Errors name the provider and the option,
and never show a value: a secret in the wrong place stays one."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from ipaddress import ip_network
from typing import Any, NamedTuple

from semel.adapters.providers.saying import address_of
from semel.values.errors import ConfigError

_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", re.ASCII)
_HOST = re.compile(r"[A-Za-z0-9._:-]{1,253}", re.ASCII)


class Form(NamedTuple):
    """What a value has to be."""

    says: str
    holds: Callable[[Any], bool]


class Option(NamedTuple):
    form: Form
    says: str
    needed: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**31


def _is_whole(value: Any) -> bool:
    return _is_number(value) and isinstance(value, int)


def _is_status(value: Any) -> bool:
    return _is_whole(value) and 200 <= value < 600


def _is_secret(value: Any) -> bool:
    return callable(getattr(value, "reveal", None))


def _is_object(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(name, str) for name in value)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_host(value: Any) -> bool:
    return isinstance(value, str) and _HOST.fullmatch(value) is not None


def _is_allowed(value: Any) -> bool:
    """A host, or a range of addresses. What is neither would allow nothing, and nobody would know why."""
    try:
        return isinstance(value, str) and (_is_host(value) or bool(ip_network(value, strict=False)))
    except ValueError:
        return False


def _is_address(value: Any) -> bool:
    try:
        return isinstance(value, str) and value.isprintable() and bool(address_of(value, "?"))
    except ConfigError:
        return False


TEXT = Form("a text", lambda value: isinstance(value, str) and bool(value) and value.isprintable())
SECRET = Form('a secret: "env:NAME" or "file:path"', _is_secret)
NUMBER = Form("a number, 0 or more", _is_number)
ABOVE_0 = Form("a number above 0", lambda value: _is_number(value) and value > 0)
WHOLE = Form("a whole number above 0", lambda value: _is_whole(value) and value > 0)
FLAG = Form("true or false", lambda value: isinstance(value, bool))
PORT = Form("a port: 1 to 65535", lambda value: _is_whole(value) and 0 < value < 2**16)
HOST = Form("a text of letters, digits, dots and dashes", _is_host)
PATH = Form("a path that begins with /", lambda value: TEXT.holds(value) and value.startswith("/"))
ADDRESS = Form("an address: name@example.com, or Name <name@example.com>", _is_address)
ALLOWED = Form(
    "a list of hosts, or of ranges such as 10.0.0.0/8",
    lambda value: _is_list(value) and all(_is_allowed(one) for one in value),
)
STATUSES = Form("a list of HTTP statuses", lambda value: _is_list(value) and all(_is_status(one) for one in value))
OBJECT = Form("an object", _is_object)
SECRETS = Form(
    "an object of secrets, by the name of their header",
    lambda value: (
        _is_object(value)
        and all(_HEADER.fullmatch(name) for name in value)
        and all(_is_secret(one) for one in value.values())
    ),
)


TEXTS = Form(
    "a list of texts, at least one",
    lambda value: _is_list(value) and bool(value) and all(isinstance(one, str) and one.isprintable() for one in value),
)


def one_of(*words: str) -> Form:
    return Form(f"one of {', '.join(words)}", lambda value: value in words)


def words(*allowed: str) -> Form:
    return Form(
        f"an object with the meaning of each word: {', '.join(allowed)}",
        lambda value: _is_object(value) and all(one in allowed for one in value.values()),
    )


def lists(*allowed: str) -> Form:
    return Form(
        f"a list of {', '.join(allowed)}",
        lambda value: _is_list(value) and bool(value) and all(one in allowed for one in value),
    )


def check(name: str, kind: str, options: Mapping[str, Option], given: Mapping[str, Any]) -> None:
    """Raises ConfigError for what is unknown, missing, or something else than it has to be."""
    what = f"provider {name!r} ({kind})"
    for wrong in sorted(given.keys() - options.keys()):
        near = get_close_matches(wrong, options, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected some of {', '.join(sorted(options))}"
        raise ConfigError(f"{what}: there is no option {wrong!r}: {hint}")
    for called, option in options.items():
        if called not in given:
            if option.needed:
                raise ConfigError(f"{what}: {called} is missing: {option.says}")
        elif not option.form.holds(given[called]):
            raise ConfigError(f"{what}: {called}: expected {option.form.says} ({option.says})")
