"""The steps between which a consumer may die. The crash tests kill it at each of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """In the order of the flow; what the engine does lies between the first and the others."""

    BEFORE_RECEIVE = "before_receive"
    AFTER_RECEIVE = "after_receive"
    BEFORE_DELETE = "before_delete"
    AFTER_DELETE = "after_delete"
    BEFORE_RETURN = "before_return"
    AFTER_RETURN = "after_return"
    BEFORE_LETTER = "before_letter"
    AFTER_LETTER = "after_letter"  # and before its message is deleted


Observer: TypeAlias = Callable[[str], None]
