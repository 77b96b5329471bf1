"""The attempt log of a key: its failed attempts.

A store keeps the attempts of one key as bytes, in order: 8 at_ms | 4 attempt | 2 size | reason, big-endian. The grant
makes room for the next attempt, so that a settlement only appends and need not read.
"""

from __future__ import annotations

from struct import Struct as Layout

from msgspec import Struct

TRIED_MAX = 16  # of one key: the first and the newest ones
REASON_MAX = 500  # characters of one attempt's reason

_HEAD = Layout(">QIH")


class FailedAttempt(Struct, frozen=True, array_like=True):
    """One failed attempt. An attempt whose process died leaves none."""

    attempt: int
    at_ms: int  # UTC
    reason: str


def cut(reason: str) -> bytes:
    """The stored part of a reason. Lone surrogates are replaced, because no store can write them."""
    if len(reason) > REASON_MAX:
        reason = reason[: REASON_MAX - 1] + "…"
    return reason.encode(errors="replace")


def line(attempt: int, at_ms: int, reason: str) -> bytes:
    """One attempt, to append to the earlier ones."""
    text = cut(reason)
    return _HEAD.pack(at_ms, attempt, len(text)) + text


def lines(kept: bytes) -> list[bytes]:
    """Split the stored log into attempts."""
    found: list[bytes] = []
    at = 0
    while at < len(kept):
        size = _HEAD.size + _HEAD.unpack_from(kept, at)[2]
        found.append(kept[at : at + size])
        at += size
    return found


def load(kept: bytes | None) -> tuple[FailedAttempt, ...]:
    return tuple([_load(one) for one in lines(kept)]) if kept else ()


def _load(one: bytes) -> FailedAttempt:
    at_ms, attempt, _ = _HEAD.unpack_from(one)
    return FailedAttempt(attempt, at_ms, one[_HEAD.size :].decode(errors="replace"))


def with_room(kept: bytes) -> bytes:
    """Drop attempts between the first and the newest, so that one more fits."""
    if not kept:
        return kept
    found = lines(kept)
    return kept if len(found) < TRIED_MAX else b"".join([found[0], *found[2 - TRIED_MAX :]])


def one_more(before: tuple[FailedAttempt, ...], attempt: int, at_ms: int, reason: str) -> bytes:
    """The log for a dead-letter store, which gets the earlier attempts with the dead letter."""
    kept = b"".join([line(one.attempt, one.at_ms, one.reason) for one in before[:1] + before[1:][2 - TRIED_MAX :]])
    return kept + line(attempt, at_ms, reason)
