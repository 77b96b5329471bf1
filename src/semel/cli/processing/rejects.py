"""What is no event, kept with its reason: a line of JSON for each."""

from __future__ import annotations

import base64
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from semel.cli.processing.documents import Document
from semel.values.errors import ConfigError


class Rejects:
    """A file that is only added to. Written before anybody is told that it was; synced before progress is."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.added = 0
        self._synced = 0
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as error:
            raise ConfigError(f"--rejects {path}: it cannot be written: {error.strerror}") from None

    def add(self, name: str, document: Document, reason: str) -> None:
        """Raises OSError."""
        line: dict[str, Any] = {"file": name, "line": document.line, "byte": document.start}
        size = document.end - document.start
        line |= {"bytes": size, "reason": reason, **_body(document.body)}
        if len(document.body) < size:
            line["cut"] = True  # all of it is in the file, at that byte
        self._write(json.dumps(line).encode() + b"\n")
        self.added += 1

    def _write(self, line: bytes) -> None:
        """All of it, or nothing."""
        begin = os.fstat(self._file.fileno()).st_size
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with suppress(OSError):
                self._file.truncate(begin)
            raise

    def sync(self) -> None:
        if self._synced < self.added:
            os.fsync(self._file.fileno())
            self._synced = self.added

    def close(self) -> None:
        self._file.close()


def _body(body: bytes) -> dict[str, str]:
    try:
        return {"body": body.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(body).decode()}
