"""A secret value that can be used, and that never appears in a text by accident."""

from __future__ import annotations

from hmac import compare_digest
from typing import final

SENSITIVE = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key", "x-auth-token"))
"""Headers whose values are secrets."""


@final
class Secret:
    """The value behind a reference. It is not a `str`, so that joining, slicing and encoding cannot expose it.

    `reveal` is the only access to the value. `reference` is the origin of the value ("env:NAME", "file:path") and may
    be shown. It is empty for a value that is written in the settings file itself.
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
        return hash(self._value)  # salted per process, so it reveals nothing to another one
