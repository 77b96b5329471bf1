"""The steps between which a consumer may die. The crash tests kill it at each of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """In the order of the flow; what the engine does lies between the first and the others."""

    AFTER_RECEIVE = "after_receive"
    WAITING = "waiting"  # a message that is to be tried again waits in memory
    BEFORE_COMMIT = "before_commit_of_offsets"
    AFTER_COMMIT = "after_commit_of_offsets"
    BEFORE_LETTER = "before_letter"
    AFTER_LETTER = "after_letter"  # it is durable, and its message not settled


Observer: TypeAlias = Callable[[str], None]
