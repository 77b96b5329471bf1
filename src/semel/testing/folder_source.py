"""A source for tests and demos: a folder with one JSON document per file.

A file stays until it is acknowledged, so the next reader receives everything that a killed reader did not acknowledge.
Readers do not coordinate: two readers of one folder receive the same messages, as with any at-least-once source.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import Any

from semel.ports import Delivery

AT_MOST = 100  # the limit of deliveries per receive
PATIENCE_S = 60.0  # how long `receive` waits for hidden messages; longer than the backoffs of tests
LOOK_AGAIN_S = 0.02  # another reader may empty the folder meanwhile
REJECTED = "rejected"


class FolderDelivery(Delivery):
    """One file."""

    def __init__(self, source: FolderSource, name: str, body: bytes) -> None:
        self.name = name
        self.body = body
        self.tenant = source.tenant
        self._source = source

    async def ack(self) -> None:
        self._source._remove(self.name)

    async def retry(self, after_s: float) -> None:
        self._source._hide(self.name, after_s)

    async def reject(self, reason: str) -> None:
        self._source._reject(self.name, reason)


class FolderSource:
    """Delivers `*.json` in the order of their names, and ends when no file is left.

    A message that is returned with a delay is hidden from this reader until it is due. If only hidden files are left,
    `receive` waits for them, at most `patience_s`. Then the source ends, and the files stay in the folder.
    """

    def __init__(
        self, path: str | Path, *, tenant: str = "", at_most: int = AT_MOST, patience_s: float = PATIENCE_S
    ) -> None:
        if at_most < 1 or patience_s < 0:
            raise ValueError(f"at_most={at_most!r}, patience_s={patience_s!r}: at least 1 and at least 0")
        self.path = Path(path)
        self.tenant = tenant
        self._at_most = at_most
        self._patience_s = patience_s
        self._hidden: dict[str, float] = {}  # name → monotonic time when it is visible again; inf while in flight
        self.path.mkdir(parents=True, exist_ok=True)

    async def receive(self, limit: int) -> list[Delivery]:
        ends = time.monotonic() + self._patience_s
        while True:
            deliveries = self._take(min(limit, self._at_most))
            if deliveries or not self._hidden or time.monotonic() >= ends:
                return deliveries
            await asyncio.sleep(LOOK_AGAIN_S)

    def put(self, name: str, document: bytes | Mapping[str, Any]) -> None:
        """Add a message atomically, as the file `name`.json."""
        if not name or name.startswith(".") or Path(name).name != name:
            raise ValueError(f"{name!r} cannot be the name of a file")
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        _write_whole(self.path / f"{name}.json", body)

    def left(self) -> list[str]:
        """The names of all unacknowledged messages, hidden or not, without `.json`."""
        return [name.removesuffix(".json") for name in self._names()]

    def rejected(self) -> dict[str, str]:
        """The rejected messages with their reasons."""
        return {path.stem: path.read_text("utf-8") for path in sorted((self.path / REJECTED).glob("*.reason"))}

    def _names(self) -> list[str]:
        return sorted(name for name in os.listdir(self.path) if name.endswith(".json") and not name.startswith("."))

    def _take(self, limit: int) -> list[Delivery]:
        now = time.monotonic()
        names = self._names()
        self._hidden = {name: self._hidden[name] for name in names if name in self._hidden}
        deliveries: list[Delivery] = []
        for name in names:
            if len(deliveries) == limit:
                break
            if self._hidden.get(name, 0.0) > now:
                continue
            try:
                body = (self.path / name).read_bytes()
            except FileNotFoundError:
                continue  # another reader was faster
            self._hidden[name] = inf
            deliveries.append(FolderDelivery(self, name, body))
        return deliveries

    def _remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)
        self._hidden.pop(name, None)

    def _hide(self, name: str, after_s: float) -> None:
        self._hidden[name] = time.monotonic() + after_s

    def _reject(self, name: str, reason: str) -> None:
        """Write the reason first: a crash between the two writes leaves the message in place."""
        aside = self.path / REJECTED
        aside.mkdir(exist_ok=True)
        _write_whole((aside / name).with_suffix(".reason"), reason.encode())
        with suppress(FileNotFoundError):  # another reader was faster
            os.replace(self.path / name, aside / name)
        self._hidden.pop(name, None)


def _write_whole(path: Path, body: bytes) -> None:
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(body)
    os.replace(unfinished, path)
