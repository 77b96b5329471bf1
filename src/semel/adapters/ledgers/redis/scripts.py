"""The scripts of this folder, with the names that a server knows them by."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files

from msgspec import Struct

NAMES = ("claim", "settle", "renew", "purge", "decide", "undo")


class Script(Struct, frozen=True):
    source: bytes
    sha: bytes  # 40 hexadecimal digits


def _read(name: str) -> bytes:
    return files(__package__).joinpath("lua", f"{name}.lua").read_bytes()


def _script(name: str) -> Script:
    source = _read("record") + b"\n" + _read(name)
    return Script(source, sha1(source, usedforsecurity=False).hexdigest().encode())


SCRIPTS = {name: _script(name) for name in NAMES}
