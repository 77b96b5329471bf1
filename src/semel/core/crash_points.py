"""The boundaries of the flow: between any two of them the process may die.

The code announces each boundary to an observer, when it has one. The crash tests kill the process at every member of
this list, for every effect, and fail when a member is never reached.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Boundary(StrEnum):
    """In the order of the flow. `*_commit` are announced by ledgers that commit in this process."""

    BEFORE_CLAIM = "before_claim"
    BEFORE_COMMIT = "before_commit"
    AFTER_COMMIT = "after_commit"
    AFTER_CLAIM = "after_claim"
    HANDLER_START = "handler_start"
    HANDLER_END = "handler_end"
    BEFORE_SETTLE = "before_settle"
    AFTER_SETTLE = "after_settle"
    BEFORE_ACK = "before_ack"
    AFTER_ACK = "after_ack"


Observer: TypeAlias = Callable[[str], None]
