"""The strict parser against Python's own, with documents nobody thought of."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.envelopes import decode
from semel.values.errors import MalformedEvent
from semel.values.strict_json import canonical, parse

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5), max_leaves=30
)
spellings = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:\r")])


def strictly(raw: bytes) -> Any:
    """What a strict reading by Python's own parser gives; ValueError where it refuses."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) != len(pairs):
            raise ValueError
        return dict(pairs)

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    value = json.loads(raw.decode("utf-8"), object_pairs_hook=unique, parse_constant=refuse)
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()  # half a surrogate pair cannot be
    if "\\u0000" in text.replace("\\\\", ""):
        raise ValueError
    if any(not -(2**63) <= number < 2**64 for number in integers(value)):
        raise ValueError
    return value


def integers(value: Any) -> list[int]:
    if isinstance(value, (dict, list)):
        return [n for item in (value.values() if isinstance(value, dict) else value) for n in integers(item)]
    return [value] if type(value) is int else []


@given(documents, spellings, st.booleans())
def test_json_written_by_python_is_read_back(document: Any, spelling: tuple[str, str], escaped: bool) -> None:
    assert parse(json.dumps(document, separators=spelling, ensure_ascii=escaped).encode()) == document


@given(documents, spellings, st.booleans())
def test_all_spellings_of_a_value_have_one_canonical_form(
    document: Any, spelling: tuple[str, str], escaped: bool
) -> None:
    raw = json.dumps(document, separators=spelling, ensure_ascii=escaped).encode()
    assert canonical(parse(raw)) == canonical(document)


@given(documents, st.dictionaries(texts, scalars, min_size=1, max_size=5), st.data())
def test_a_duplicate_name_is_always_refused(around: Any, members: dict[str, Any], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(members)))
    pairs = [json.dumps(other) + ":" + json.dumps(value) for other, value in members.items()]
    spelled = data.draw(st.sampled_from([json.dumps(name), json.dumps(name, ensure_ascii=False), all_escaped(name)]))
    pairs.insert(data.draw(st.integers(0, len(pairs))), f"{spelled}:{json.dumps(data.draw(scalars))}")
    raw = f'[{json.dumps(around)},{{"x":{{{",".join(pairs)}}}}}]'.encode()
    with pytest.raises(MalformedEvent, match="twice"):
        parse(raw)


def all_escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    return '"' + "".join(f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2)) + '"'


STRUCTURE = [b"{", b"}", b"[", b"]", b",", b":", b'"', b'"a"', b'"a":', b'"id":"x"', b'"detail":', b" ", b"\n"]
ESCAPES = [
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\\udc00",
    b"\x00",
    b"\x7f",
    b"\xff",
    b"\xed\xa0\x80",
    b"\xc3\xa9",
    b"\xef\xbb\xbf",
]
NUMBERS = [b"1", b"-", b"0", b"-0", b".5", b"e9", b"e999", b"9" * 19, b"18446744073709551616", b"NaN", b"true", b"null"]
fragments = st.sampled_from([*STRUCTURE, *ESCAPES, *NUMBERS])


@given(st.lists(fragments, max_size=14).map(b"".join))
def test_it_reads_exactly_what_a_strict_reader_reads(raw: bytes) -> None:
    try:
        expected = strictly(raw)
    except (ValueError, OverflowError):
        with pytest.raises(MalformedEvent):
            parse(raw)
    else:
        assert parse(raw) == expected


@given(documents, st.lists(st.tuples(st.integers(0, 400), fragments), min_size=1, max_size=3))
def test_a_damaged_document_is_read_as_a_strict_reader_would(document: Any, damage: list[tuple[int, bytes]]) -> None:
    raw = json.dumps(document, separators=(",", ":")).encode()
    for place, fragment in damage:
        at = place % (len(raw) + 1)
        raw = raw[:at] + fragment + raw[at:]
    test_it_reads_exactly_what_a_strict_reader_reads.hypothesis.inner_test(raw)  # type: ignore[attr-defined]


OUTER = ["id", "type", "detail", "detail-type", "source", "topicName", "eventBody", "data", "channel", "specversion"]
INNER = ["eventId", "interactionId", "eventTime", "participantId", "sessionId", "createdTime", "time", "transcripts"]
TELLING = ["1.0", "v2.audits.x", "v2.users.u", "a.transcription", "a.attributes", "channel.metadata"]
names = st.sampled_from([*OUTER, *INNER])
lookalikes = st.recursive(
    scalars | st.sampled_from(TELLING),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=8),
    max_leaves=25,
)


@given(st.dictionaries(names, lookalikes, max_size=10))
def test_decode_answers_every_object_with_an_event_or_a_refusal(document: dict[str, Any]) -> None:
    try:
        event = decode(json.dumps(document).encode())
    except MalformedEvent:
        return
    assert event.shape
    assert event.type
    assert all(event.identity)
    assert event.document == ({event.root: document} if event.root else document)
    event.payload()
