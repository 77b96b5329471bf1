"""Reads the Idempotency-Key header: a structured-field string (RFC 8941), as the IETF draft of the header defines it.

"order-1"            order-1
"order-1";v=2        order-1: parameters are checked and ignored
"say \\"hi\\""        say "hi"
order-1              order-1: many clients send the key without quotes, so a value that does not begin with a quote is
                     the key as it stands, up to its end, in UTF-8
"order-1             refused
order"1              refused
"""

from __future__ import annotations

import re

from semel.values.errors import MalformedEvent

_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_BARE_ITEM = "|".join(
    (
        _STRING,
        r"-?[0-9]{1,12}\.[0-9]{1,3}",
        r"-?[0-9]{1,15}",
        r"[A-Za-z*][-!#$%&'*+.^_`|~0-9A-Za-z:/]*",
        r":[A-Za-z0-9+/=]*:",
        r"\?[01]",
    )
)
_PARAMETER = rf"; *[a-z*][-_.*a-z0-9]*(?:=(?:{_BARE_ITEM}))?"
_ITEM = re.compile(rf" *({_STRING})(?:{_PARAMETER})* *")
_ESCAPED = re.compile(r"\\(.)")


def read_key(value: bytes) -> str:
    """The key in the header. Raises MalformedEvent."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise MalformedEvent("Idempotency-Key: is not UTF-8") from None
    if '"' not in text:
        return text
    found = _ITEM.fullmatch(text)
    if found is None:
        raise MalformedEvent('Idempotency-Key: expected a key in quotes, "order-1", or without any quote')
    return _ESCAPED.sub(r"\1", found[1][1:-1])
