"""A disk that can lose its power: a layer under SQLite that knows what was synced, and what may still be forgotten."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

LAYER = "a disk that can lose its power"


@dataclass
class Image:
    """One file. A sync makes everything before it durable; of what was written since, any part may survive."""

    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[tuple[int, bytes | None]] = field(default_factory=list)  # offset and data; None: cut off there
    syncs: int = 0

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, change)
        self.unsynced = []
        self.syncs += 1

    def after_power_loss(self, dice: random.Random | None) -> bytes:
        """Without dice nothing survives that was not synced; with them, some of it, the later without the earlier."""
        left = bytearray(self.durable)
        for change in self.unsynced:
            if dice is not None and dice.random() < 0.5:
                _apply(left, change)
        return bytes(left)


def _apply(content: bytearray, change: tuple[int, bytes | None]) -> None:
    offset, data = change
    if data is None:
        del content[offset:]
        return
    content.extend(bytes(max(0, offset - len(content))))
    content[offset : offset + len(data)] = data


class Disk(apsw.VFS):
    """All files that are opened through it, by path."""

    def __init__(self, below: str) -> None:
        self.images: dict[str, Image] = {}
        self.below = below
        self.lock = threading.Lock()  # several connections, on threads of their own
        super().__init__(LAYER, below, makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 (apsw's name)
        path = str(name.filename() if isinstance(name, apsw.URIFilename) else name)
        with self.lock:
            image = self.images.setdefault(path, Image())
        return Recorded(self, image, name, flags)

    def lose_power(self, path: Path, into: Path, dice: random.Random | None) -> Path:
        """What a machine finds that is switched on again: the database and its log, in another folder."""
        into.mkdir()
        with self.lock:
            for suffix in ("", "-wal"):
                image = self.images.get(f"{path}{suffix}")
                if image is not None:
                    (into / f"{path.name}{suffix}").write_bytes(image.after_power_loss(dice))
        return into / path.name


class Recorded(apsw.VFSFile):
    def __init__(self, disk: Disk, image: Image, name: Any, flags: list[int]) -> None:
        self._lock = disk.lock
        self._image = image
        super().__init__(disk.below, name, flags)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 (apsw's name)
        with self._lock:
            super().xWrite(data, offset)
            self._image.unsynced.append((offset, bytes(data)))

    def xTruncate(self, newsize: int) -> None:  # noqa: N802 (apsw's name)
        with self._lock:
            super().xTruncate(newsize)
            self._image.unsynced.append((newsize, None))

    def xSync(self, flags: int) -> None:  # noqa: N802 (apsw's name)
        with self._lock:
            super().xSync(flags)
            self._image.sync()


@contextmanager
def such_a_disk() -> Iterator[Disk]:
    """Every database of this process that is opened in the block is on it."""
    usual = apsw.vfs_names()[0]
    disk = Disk(usual)
    try:
        yield disk
    finally:
        apsw.set_default_vfs(usual)
        disk.unregister()
