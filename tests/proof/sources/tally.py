"""What a process has done so far, where it can be read after any death of it: a file that is mapped into memory."""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

NAMES = ("handed", "answered", "runs")  # deliveries by the source, answers to it, handlers that began
_NUMBERS = struct.Struct(f"{len(NAMES)}Q")


class Tally:
    """Numbers that only grow. A write is in the page cache at once, and that outlives whoever wrote it."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_NUMBERS.size))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _NUMBERS.size)
        self._numbers = dict(zip(NAMES, _NUMBERS.unpack(self._map[:]), strict=True))

    def add(self, name: str, number: int = 1) -> None:
        self._numbers[name] += number
        self._map[:] = _NUMBERS.pack(*self._numbers.values())

    def read(self) -> dict[str, int]:
        return dict(zip(NAMES, _NUMBERS.unpack(self._map[:]), strict=True))

    @property
    def in_hand(self) -> int:
        """Deliveries that the source has handed over, and that nobody has answered."""
        told = self.read()
        return told["handed"] - told["answered"]
