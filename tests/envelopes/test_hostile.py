"""Bodies that are wrong, or that are only there to hurt: refused clearly, quickly and in little memory."""

from __future__ import annotations

import json
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from semel.envelopes import decode
from semel.values import keys
from semel.values.errors import MalformedEvent

TIME_MAX_S = 0.050
MEMORY_MAX_BYTES = 20_000_000
MIB = 1024 * 1024


def admit(raw: bytes) -> tuple[str, ...]:
    """What the engine does before any claim."""
    event = decode(raw)
    _ = event.document
    return keys.checked(keys.event(event))


def refusal(raw: bytes) -> str:
    with pytest.raises(MalformedEvent) as caught:
        admit(raw)
    return str(caught.value)


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MEMORY_MAX_BYTES
    finally:
        tracemalloc.stop()


def within(value: bytes) -> bytes:
    """A Genesys event with this deep in its body."""
    ids = b'"eventTime":1,"conversationId":"c","participantId":"p","sessionId":"s"'
    body = b"{" + ids + b',"deep":[{"v":' + value + b"}]}"
    detail = b'{"topicName":"v2.detail.events.conversation.c.acw","eventBody":' + body + b"}"
    return b'{"id":"i","detail-type":"t","source":"aws.partner/genesys.com/cloud/o/s","detail":' + detail + b"}"


def webhook(value: bytes, own_id: bytes = b'"i"') -> bytes:
    return b'{"id":' + own_id + b',"type":"t","data":' + value + b"}"


def test_the_frames_of_these_tests_are_events_themselves() -> None:
    assert admit(within(b"1"))
    assert admit(webhook(b"1"))


WRONG_ANYWHERE = {
    "a duplicate name": (b'{"x":1,"y":2,"x":3}', "the name 'x' occurs twice"),
    "a duplicate name spelled otherwise": (b'{"x":1,"\\u0078":3}', "the name 'x' occurs twice"),
    "NaN": (b"NaN", "NaN"),
    "Infinity": (b"Infinity", "Infinity"),
    "-Infinity": (b"-Infinity", "Infinity"),
    "1e999": (b"1e999", "out of range"),
    "-1e999": (b"-1e999", "out of range"),
    "an integer past 64 bits": (b"18446744073709551616", "does not fit into 64 bits"),
    "a negative integer past 64 bits": (b"-9223372036854775809", "does not fit into 64 bits"),
    "an integer of 5000 digits": (b"9" * 5000, "does not fit into 64 bits"),
    "an escaped lone surrogate": (b'"a\\ud800b"', "surrogate"),
    "an escaped lone low surrogate": (b'"\\udc00"', "surrogate"),
    "a lone surrogate in a name": (b'{"\\ud800":1}', "surrogate"),
    "a raw lone surrogate": (b'"\xed\xa0\x80"', "not UTF-8"),
    "an escaped NUL": (b'"a\\u0000b"', "NUL"),
    "an escaped NUL in a name": (b'{"a\\u0000":1}', "NUL"),
    "a raw NUL": (b'"a\x00b"', "not JSON at byte"),
    "a raw line feed": (b'"a\nb"', "not JSON at byte"),
    "invalid UTF-8": (b'"\xff"', "not UTF-8 at byte"),
    "overlong UTF-8": (b'"\xc0\xaf"', "not UTF-8 at byte"),
    "a leading zero": (b"01", "not JSON at byte"),
    "a comma too many": (b"[1,]", "not JSON at byte"),
    "single quotes": (b"'x'", "not JSON at byte"),
    "a comment": (b"/* */1", "not JSON at byte"),
    "100,000 nested arrays": (b"[" * 100_000 + b"]" * 100_000, "nests deeper than 64"),
    "100,000 nested objects": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests deeper than 64"),
    "100,000 arrays that never close": (b"[" * 100_000, "nests deeper than 64"),
    "100 nested arrays": (b"[" * 100 + b"]" * 100, "nests deeper than 64"),
    "too many names": (b"{" + b",".join(b'"%d":1' % n for n in range(80_000)) + b"}", "more than 50,000 values"),
    "too many arrays": (b"[" + b",".join([b"[" * 50 + b"]" * 50] * 10_000) + b"]", "more than 50,000 values"),
    "too many texts": (b"[" + b",".join([b'"{"'] * 250_000) + b"]", "more than 50,000 values"),
}


@pytest.mark.parametrize("frame", [within, webhook], ids=["genesys", "webhook"])
@pytest.mark.parametrize("name", WRONG_ANYWHERE)
def test_invalid_json_is_refused_in_every_place_fast_and_with_little_memory(name: str, frame: object) -> None:
    value, message = WRONG_ANYWHERE[name]
    raw = frame(value)  # type: ignore[operator]
    assert message in refusal(raw)
    fastest = min(_seconds(raw) for _ in range(3))  # a busy machine is no slowness of ours
    assert fastest < TIME_MAX_S
    with little_memory():
        refusal(raw)


def _seconds(raw: bytes) -> float:
    start = time.process_time()
    refusal(raw)
    return time.process_time() - start


EVENT = within(b"1")
TWICE = b'{"id":"a","type":"t","id":"b"}'
WHOLE = {
    "nothing": (b"", "the body is empty"),
    "white space": (b" \r\n\t ", "the body is empty"),
    "a megabyte of white space": (b" " * MIB, "the body is empty"),
    "half an event": (EVENT[: len(EVENT) // 2], "not JSON at byte"),
    "an event and more": (EVENT + b"x", "not JSON at byte"),
    "two events": (EVENT + EVENT, "not JSON at byte"),
    "a duplicate name at the top": (TWICE, "the name 'id' occurs twice"),
    "a duplicate detail": (EVENT[:-1] + b',"detail":{}}', "the name 'detail' occurs twice"),
    "a duplicate name in detail": (EVENT[:-2] + b',"topicName":"x"}}', "the name 'topicName' occurs twice"),
    "a duplicate identity": (
        EVENT.replace(b'"sessionId":"s"', b'"sessionId":"s","sessionId":"r"'),
        "'sessionId' occurs",
    ),
    "UTF-16 LE with mark": (b"\xff\xfe" + EVENT.decode().encode("utf-16-le"), "UTF-16"),
    "UTF-16 BE with mark": (b"\xfe\xff" + EVENT.decode().encode("utf-16-be"), "UTF-16"),
    "UTF-16 LE": (EVENT.decode().encode("utf-16-le"), "UTF-16"),
    "UTF-16 BE": (EVENT.decode().encode("utf-16-be"), "UTF-16"),
    "UTF-32": (EVENT.decode().encode("utf-32"), "UTF-16 or UTF-32"),
    "UTF-8 with mark": (b"\xef\xbb\xbf" + EVENT, "byte order mark"),
    "nested arrays at the top": (b"[" * 100_000 + b"]" * 100_000, "nests deeper"),
    "nested objects at the top": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nests deeper"),
    "nested details": (b'{"detail":' * 50_000 + b"1" + b"}" * 50_000, "nests deeper"),
    "a million names": (b"{" + b'"name":0,' * 1_000_000 + b"}", "the limit is 1,048,576"),
    "many names": (b"{" + b",".join(b'"%d":0' % n for n in range(99_000)) + b"}", "more than 50,000 values"),
    "many names cut short": (b"{" + b",".join(b'"%d":0' % n for n in range(99_000)), "more than 50,000 values"),
    "ten megabytes": (webhook(b'"' + b"x" * (10 * MIB) + b'"'), "the limit is 1,048,576"),
    "a megabyte of quotes": (b'"' * MIB, "not JSON at byte"),
    "a megabyte of backslashes": (b'"' + b"\\" * (MIB - 1), "not JSON at byte"),
    "an id of 300 characters": (webhook(b"1", b'"' + b"x" * 300 + b'"'), "an id of 300 characters; the limit is 255"),
    "an id with a tab": (webhook(b"1", b'"a\\tb"'), "control character '\\t'"),
    "an id with DEL": (webhook(b"1", b'"a\x7fb"'), "control character '\\x7f'"),
    "an id with a C1 control": (webhook(b"1", '"a\x85b"'.encode()), "control character '\\x85'"),
    "an id with NUL": (webhook(b"1", b'"\\u0000"'), "NUL"),
    "an id past 64 bits": (webhook(b"1", b"9" * 30), "does not fit into 64 bits"),
    "an id that is a deep array": (webhook(b"1", b"[" * 100_000 + b"]" * 100_000), "nests deeper"),
    "an empty id": (webhook(b"1", b'""'), "no event id: expected one at id,"),
    "an id of blanks in a list": (webhook(b"1", b'["i"]'), "no event id: expected one at id,"),
    "a topic of 300 characters": (EVENT.replace(b"conversation.c.acw", b"x" * 300), "the limit is 255"),
    "a session with a line feed": (EVENT.replace(b'"sessionId":"s"', b'"sessionId":"\\n"'), "control character '\\n'"),
}


@pytest.mark.parametrize("name", WHOLE)
def test_a_body_is_refused_when_it_is(name: str) -> None:
    raw, message = WHOLE[name]
    assert message in refusal(raw)
    assert min(_seconds(raw) for _ in range(3)) < TIME_MAX_S
    with little_memory():
        refusal(raw)


def test_an_error_is_short_and_printable_whatever_was_in_the_body() -> None:
    for raw, _ in [*WHOLE.values(), *((webhook(value), "") for value, _ in WRONG_ANYWHERE.values())]:
        message = refusal(raw)
        assert message.isprintable()
        assert len(message) < 600


def test_a_large_but_honest_body_is_admitted() -> None:
    with little_memory():
        assert admit(webhook(b'"' + b"x" * (MIB - 100) + b'"')) == ("", "i")
        assert admit(webhook(json.dumps([{"n": n} for n in range(20_000)]).encode())) == ("", "i")


@pytest.mark.parametrize("text", ["é", "日本", "🎧", "a b", "\\u00e9", "\\ud83d\\ude00", '\\"', "\\\\u0000"])
def test_an_id_in_any_script_is_admitted(text: str) -> None:
    assert admit(webhook(b"1", f'"{text}"'.encode())) == ("", json.loads(f'"{text}"'))


def test_the_largest_and_smallest_integers_of_64_bits_are_admitted() -> None:
    for number in (b"18446744073709551615", b"-9223372036854775808", b"9223372036854775807"):
        assert admit(webhook(number))
