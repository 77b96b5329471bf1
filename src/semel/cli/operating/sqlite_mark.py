"""Tells a ledger from any other file without opening it: opening would make a ledger of it.

SQLite keeps the mark of the application, "SEML", on the first page of the file. A young ledger that is in use has that
page in its write-ahead log alone: https://www.sqlite.org/fileformat2.html#the_write_ahead_log
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

MAGIC = b"SQLite format 3\0"
MARK = b"SEML"
MARK_AT = 68  # in the first page

LOG_MAGICS = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
LOG_HEADER_BYTES = 32
FRAME_HEADER_BYTES = 24  # it begins with the number of the page that follows
PAGE_MIN_BYTES, PAGE_MAX_BYTES = 512, 65_536


def is_ours(file: Path) -> bool:
    """Raises OSError when the file cannot be read."""
    with file.open("rb") as opened:
        header = opened.read(MARK_AT + len(MARK))
    if header and not header.startswith(MAGIC):
        return False
    return header.endswith(MARK) or _is_marked_in_log(file.with_name(f"{file.name}-wal"))


def _is_marked_in_log(file: Path) -> bool:
    try:
        with file.open("rb") as log:
            header = log.read(LOG_HEADER_BYTES)
            page_bytes = int.from_bytes(header[8:12], "big")
            sound = header[:4] in LOG_MAGICS and PAGE_MIN_BYTES <= page_bytes <= PAGE_MAX_BYTES
            return sound and _any_marked_frame(log, page_bytes)
    except FileNotFoundError:
        return False


def _any_marked_frame(log: BinaryIO, page_bytes: int) -> bool:
    at = LOG_HEADER_BYTES
    while len(frame := _read(log, at, FRAME_HEADER_BYTES)) == FRAME_HEADER_BYTES:
        at += FRAME_HEADER_BYTES
        if frame[:4] == b"\0\0\0\1" and _read(log, at + MARK_AT, len(MARK)) == MARK:
            return True
        at += page_bytes
    return False


def _read(file: BinaryIO, at: int, size: int) -> bytes:
    file.seek(at)
    return file.read(size)
