"""What a relay did, written down as it does it, where it can be read after any death of it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

Deed: TypeAlias = Literal[
    "take",  # word: "vanished" if another relay had left it behind
    "ask",  # to cross
    "gate",  # word: what the outbox said
    "send",  # word: the slot of its rate, in ms
    "hear",  # word: what was concluded; number: s
    "record",  # word: what was to be recorded
    "held",  # word: True if it was, False if its token was an old one
    "busy",  # word: a provider; number: requests at this moment
]


class Line(Struct, frozen=True):
    who: str  # the process
    deed: Deed
    id: str
    token: int
    at: float  # Unix time
    word: str = ""
    number: float = 0.0


class Diary:
    """One line is one write: it is in the page cache at once, and that outlives whoever wrote it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, deed: Deed, id: bytes, token: int, word: str = "", number: float = 0.0) -> None:
        os.write(self._file, f"{deed} {id.hex() or '-'} {token} {time.time()} {number} {word}\n".encode())


def read(folder: Path) -> Iterator[Line]:
    """Of all processes, each in its order."""
    for path in sorted(folder.glob("diary-*")):
        for line in path.read_text().splitlines():
            deed, id, token, at, number, *word = line.split(" ", 5)
            yield Line(path.name, deed, id, int(token), float(at), word[0] if word else "", float(number))  # type: ignore[arg-type]
