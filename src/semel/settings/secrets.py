"""A secret in the hands of the program: it can be used, and it does not show itself."""

from __future__ import annotations

from hmac import compare_digest
from typing import final

SENSITIVE = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"))
"""Headers whose values are secrets."""


@final
class Secret:
    """What a reference pointed at. Not a text: joining, slicing, comparing and encoding must not be ways to show it.

    `reveal` is the one way to the value, and easy to search for. `reference` says where the value came from
    ("env:NAME", "file:path"), and may be shown; it is empty for a value that stood in the file itself.
    """

    __slots__ = ("_value", "reference")

    def __init__(self, value: str, reference: str = "") -> None:
        self._value = value
        self.reference = reference

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return f"Secret({self.reference or '…'})"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash(self._value)  # salted in each process: it tells nothing outside
