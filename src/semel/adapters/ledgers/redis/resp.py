"""Commands as the bytes that are sent (RESP). Packed here: the client's way costs more than the script does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

END = b"\r\n"
LENGTHS = [b"$%d\r\n" % length for length in range(1024)]


def length_of(part: bytes) -> bytes:
    size = len(part)
    return LENGTHS[size] if size < 1024 else b"$%d\r\n" % size


def command(*parts: bytes | str | int) -> bytes:
    """One command of few parts."""
    out = [b"*%d\r\n" % len(parts)]
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        out += (length_of(data), data, END)
    return b"".join(out)


def script_call(sha: bytes, keys: Sequence[bytes], head: Iterable[bytes], arguments: Sequence[bytes]) -> bytes:
    """EVALSHA. `arguments` have their length and end already."""
    front = list(head)
    parts = 3 + len(keys) + len(front) + len(arguments)
    count = b"%d" % len(keys)
    return b"".join(
        [
            b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$%d\r\n%b\r\n" % (parts, sha, len(count), count),
            *[LENGTHS[len(key)] + key + END for key in keys],
            *[argument(part) for part in front],
            *arguments,
        ]
    )


def argument(part: bytes) -> bytes:
    return length_of(part) + part + END
