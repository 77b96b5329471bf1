"""Strict JSON parsing.

`parse` refuses documents that two parsers could read differently (duplicate names, integers past 64 bits, NaN, lone
surrogates, NUL) and documents that exceed a bound (depth, number of values, size). The common case is checked without a
look at each value: a document that encodes back to its own bytes has no duplicate name and no unusual spelling. Other
documents go through the slow parser, which explains what is wrong.
"""

from __future__ import annotations

import json
from itertools import accumulate
from typing import Any, NoReturn

import msgspec

from semel.values.errors import MalformedEvent

DOCUMENT_MAX_BYTES = 1024 * 1024  # the largest message of EventBridge and SQS
DEPTH_MAX = 64  # real events nest less than ten deep
VALUES_MAX = 50_000  # a decoded value costs about 100 bytes, an object 200: 10 MB at most

# Decodes JSON from outside without types. msgspec needs 8 µs for a number such as 3e292, and a sender may write 43,000
# of them into 256 KB. Python's own conversion takes 0.2 µs for every number with a point or an exponent. A number out
# of range becomes infinite here; `parse` refuses it.
decode_any = msgspec.json.Decoder(float_hook=float).decode

_encode = msgspec.json.Encoder().encode
_pack = msgspec.msgpack.Encoder().encode
_pack_sorted = msgspec.msgpack.Encoder(order="sorted").encode

_NO_STRUCTURE = bytes(byte for byte in range(256) if byte not in b'{}[],"')
_STEP = {**dict.fromkeys(b"{[", 1), **dict.fromkeys(b"}]", -1)}
_QUOTES_MAX = 4 * VALUES_MAX  # two around each value, two around its name
_TOO_MANY = f"the body has more than {VALUES_MAX:,} values"
_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


def parse(raw: bytes) -> Any:
    """Parse a document. Raises MalformedEvent, which says what is wrong and where."""
    check_size(raw)
    check_bounds(raw)
    try:
        value = decode_any(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        explain(raw, error)
    if _encode(value) != raw or (b"\\" in raw and b"\\u0000" in raw) or not _fits_msgpack(value):
        del value  # two copies of the largest document would be too much
        return _walk(raw)
    return value


def canonical(value: Any) -> bytes:
    """The canonical encoding of a value, for digests: independent of the order of names, white space and escapes. It is
    MessagePack, which is faster to write than JSON."""
    return _pack_sorted(value)


def check_size(raw: bytes) -> None:
    if len(raw) > DOCUMENT_MAX_BYTES:
        raise MalformedEvent(f"the body has {len(raw):,} bytes; the limit is {DOCUMENT_MAX_BYTES:,}")


def explain(raw: bytes, error: Exception) -> NoReturn:
    """Raise MalformedEvent with what is wrong and where, after a parser has refused a document."""
    if not raw.strip():
        raise MalformedEvent("the body is empty") from None
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff") or raw[:4].count(0) >= 2:
        raise MalformedEvent("not JSON at byte 0: the body is UTF-16 or UTF-32, expected UTF-8") from None
    if raw[:3] == b"\xef\xbb\xbf":
        raise MalformedEvent("not JSON at byte 0: the body begins with a byte order mark") from None
    if isinstance(error, RecursionError):
        raise MalformedEvent(f"the body nests deeper than {DEPTH_MAX} levels") from None
    check_bounds(raw)
    _walk(raw)
    raise MalformedEvent(f"not JSON: {error}") from None


def check_bounds(raw: bytes) -> None:
    """Check depth and number of values. For nearly all documents, counting brackets and commas is enough."""
    openings = raw.count(b"{") + raw.count(b"[")
    if openings <= DEPTH_MAX and (len(raw) <= VALUES_MAX or openings + raw.count(b",") <= VALUES_MAX):
        return
    brackets, commas = _structure(raw)
    # Within the limit there is at most one closing bracket for each value, so the rest need not be checked.
    steps = map(_STEP.__getitem__, brackets[: 2 * VALUES_MAX])
    if max(accumulate(steps), default=0) > DEPTH_MAX:
        raise MalformedEvent(f"the body nests deeper than {DEPTH_MAX} levels")
    if commas + brackets.count(b"{") + brackets.count(b"[") > VALUES_MAX:
        raise MalformedEvent(_TOO_MANY)


def _structure(raw: bytes) -> tuple[bytes, int]:
    """The brackets outside of strings, and the number of commas there."""
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    # Two quotes with nothing between them change nothing for what follows: without them the split is small.
    quoted = unescaped.translate(None, _NO_STRUCTURE).replace(b'""', b"")
    if quoted.count(b'"') > _QUOTES_MAX:
        raise MalformedEvent(_TOO_MANY)
    outside = b"".join(quoted.split(b'"')[::2])
    return outside.translate(None, b","), outside.count(b",")


def _fits_msgpack(value: Any) -> bool:
    """Whether all integers fit into 64 bits: the encoder of MessagePack refuses larger ones."""
    try:
        _pack(value)
    except OverflowError:
        return False
    return True


def _walk(raw: bytes) -> Any:
    """The slow parser, which explains every refusal. Raises MalformedEvent."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MalformedEvent(f"not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_unique_names,
            parse_constant=_no_constant,
            parse_int=_fits_64_bits,
            parse_float=_is_finite,
        )
    except json.JSONDecodeError as error:
        byte = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise MalformedEvent(f"not JSON at byte {byte}: {error.msg[:1].lower()}{error.msg[1:]}") from None
    except RecursionError:
        raise MalformedEvent(f"the body nests deeper than {DEPTH_MAX} levels") from None
    if b"\\" in raw:
        _check_text(value)
    return value


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise MalformedEvent(f"the name {_show(name)} occurs twice in one object")
    return members


def _no_constant(constant: str) -> NoReturn:
    raise MalformedEvent(f"{constant} is not a JSON number")


def _fits_64_bits(digits: str) -> int:
    if len(digits) > 20 or not _INT_MIN <= int(digits) <= _INT_MAX:
        raise MalformedEvent(f"the integer {digits[:24]}… does not fit into 64 bits")
    return int(digits)


def _is_finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise MalformedEvent(f"the number {digits[:24]} is out of range")
    return number


def _check_text(value: Any) -> None:
    """No NUL and no half of a surrogate pair in any string: databases and other languages refuse both."""
    waiting = [value]
    while waiting:
        item = waiting.pop()
        if isinstance(item, str):
            if "\0" in item:
                raise MalformedEvent(f"the text {_show(item)} contains NUL")
            if not item.isascii() and _has_half_a_pair(item):
                raise MalformedEvent(f"the text {_show(item)} contains half a surrogate pair")
        elif isinstance(item, dict):
            waiting.extend(item)
            waiting.extend(item.values())
        elif isinstance(item, list):
            waiting.extend(item)


def _has_half_a_pair(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _show(text: str) -> str:
    return ascii(text if len(text) <= 40 else text[:40] + "…")
