"""What can happen to a request, whichever provider it is for.

A lie has two halves: whether the message goes to the phone, and what the sender hears. Those after which the sender
cannot know are ambiguous, and are written down with what they were about.
"""

from __future__ import annotations

from typing import Literal, NamedTuple


class Lie(NamedTuple):
    delivers: bool
    hears: Literal["the answer", "nothing", "a reset", "500", "502", "503", "429", "400", "409", "silence", "a page"]
    ambiguous: bool


LIES: dict[str, Lie] = {
    "accept then drop": Lie(True, "nothing", True),
    "drop": Lie(False, "nothing", True),
    "accept then reset": Lie(True, "a reset", True),
    "reset": Lie(False, "a reset", True),
    "500 after sending": Lie(True, "500", True),
    "500": Lie(False, "500", True),
    "502 after sending": Lie(True, "502", True),
    "503 after sending": Lie(True, "503", True),
    "503": Lie(False, "503", True),
    "accept then stall": Lie(True, "silence", True),
    "stall": Lie(False, "silence", True),
    "a page": Lie(False, "a page", True),  # a proxy answers 200 in the provider's place
    "429": Lie(False, "429", False),
    "400": Lie(False, "400", False),
    "409": Lie(False, "409", False),  # the key is in progress
}
TRUTH = Lie(True, "the answer", False)
