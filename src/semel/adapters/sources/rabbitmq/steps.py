"""The steps between which a consumer may die. The crash tests kill it at each of them."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TypeAlias


class Step(StrEnum):
    """In the order of the flow; what the engine does lies between the first and the others."""

    AFTER_RECEIVE = "after_receive"
    BEFORE_WAIT = "before_wait"
    AFTER_WAIT = "after_wait"  # the copy that waits is there, and its original is too
    BEFORE_LETTER = "before_letter"
    AFTER_LETTER = "after_letter"  # and before its message is acknowledged
    BEFORE_BROKER_ACK = "before_broker_ack"
    AFTER_BROKER_ACK = "after_broker_ack"


Observer: TypeAlias = Callable[[str], None]
