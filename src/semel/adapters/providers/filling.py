"""Documents with gaps: how a person writes the body of a request whose shape is theirs to know.

    {"to": "{recipient}", "text": "{body}", "meta": {"reference": "{id}", "note": "for {kind}"}}

A text that is one gap becomes the value itself, a document too; a gap within a text becomes text. "{{" is a brace.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from semel.values.errors import ConfigError
from semel.values.outbox import Dispatch

GAPS = ("id", "recipient", "body", "subject", "sender", "template", "kind", "key", "tenant", "channel")
DEPTH_MAX = 20
_GAP = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")


def check(template: Any, what: str, depth: int = 0) -> None:
    """Raises ConfigError for gaps that nothing would fill: at the start, not at the first message."""
    if depth > DEPTH_MAX:
        raise ConfigError(f"{what}: nested more than {DEPTH_MAX} deep")
    match template:
        case str():
            for found in _GAP.finditer(template):
                if found[0] in ("{{", "}}"):
                    continue
                if found[1] is None or not _is_gap(found[1]):
                    raise ConfigError(
                        f"{what}: {found[0]!r} is no gap: expected one of {{{'}, {'.join(GAPS)}}} or {{data.NAME}}"
                    )
        case Mapping():
            for name, value in template.items():
                if not isinstance(name, str):
                    raise ConfigError(f"{what}: names are texts")
                check(value, what, depth + 1)
        case list() | tuple():
            for value in template:
                check(value, what, depth + 1)
        case None | bool() | int() | float():
            pass
        case _:
            raise ConfigError(f"{what}: {type(template).__name__} cannot be written as JSON")


def _is_gap(name: str) -> bool:
    return name in GAPS or (name.startswith("data.") and len(name) > len("data."))


def fill(template: Any, dispatch: Dispatch, sender: str) -> Any:
    """The document for one message. Raises ConfigError where the message has no value for a gap."""
    match template:
        case str():
            whole = _GAP.fullmatch(template)
            if whole is not None and whole[1] is not None:
                return _value(whole[1], dispatch, sender)
            return _GAP.sub(lambda found: _as_text(found, dispatch, sender), template)
        case Mapping():
            return {name: fill(value, dispatch, sender) for name, value in template.items()}
        case list() | tuple():
            return [fill(value, dispatch, sender) for value in template]
    return template


def _as_text(found: re.Match[str], dispatch: Dispatch, sender: str) -> str:
    if found[0] in ("{{", "}}"):
        return found[0][0]
    value = _value(found[1], dispatch, sender)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ConfigError(f"{{{found[1]}}} within a text: its value is neither a text nor a number")
    return str(value)


def _value(name: str, dispatch: Dispatch, sender: str) -> Any:
    said = dispatch.notification
    match name:
        case "id":
            return dispatch.id.hex()
        case "sender":
            return said.sender or sender
    if name.startswith("data."):
        wanted = name.removeprefix("data.")
        if wanted not in said.data:
            raise ConfigError(f"the notification's data has no {wanted!r}, which the provider's body needs")
        return said.data[wanted]
    return getattr(said, name)


def with_key(document: Mapping[str, Any], path: str, key: str) -> dict[str, Any]:
    """The document with a key at a path like "meta.idempotencyKey". One that stands there already is not ours to
    replace: whoever wrote it believes that it counts."""
    name, _, rest = path.partition(".")
    inner = document.get(name)
    if not rest:
        if inner is not None:
            raise ConfigError(f"the body has a {name!r} of its own: leave it out, Semel writes one")
        return {**document, name: key}
    if inner is not None and not isinstance(inner, Mapping):
        raise ConfigError(f"the body's {name!r} is no object, and a key belongs into it")
    return {**document, name: with_key(inner or {}, rest, key)}
