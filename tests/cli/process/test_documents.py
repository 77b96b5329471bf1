"""Where documents begin and end, whatever is between them and however the bytes come."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cli.process_input import CUT_OFF, OPEN_LIST, START, Document, FilePosition, Splitter

SMALL = 200  # bytes: a limit that tests reach


def split(
    content: bytes, chunk: int | None = None, place: FilePosition = START, **options: Any
) -> tuple[list[Document], Document | None]:
    file = io.BytesIO(content)
    file.seek(place.at)
    splitter = Splitter(lambda size: file.read(chunk or size), place, **options)
    found = []
    while (document := splitter.next()) is not None:
        found.append(document)
        assert len(found) <= len(content), "it makes no way"
    return found, splitter.cut_off


def bodies(content: bytes, **options: Any) -> list[bytes]:
    return [document.body for document in split(content, **options)[0]]


@pytest.mark.parametrize(
    ("content", "expected"),
    {
        "lines": (b'{"a":1}\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        "no end of line at the end": (b'{"a":1}\n{"b":2}', [b'{"a":1}', b'{"b":2}']),
        "nothing between": (b'{"a":1}{"b":"}{"}', [b'{"a":1}', b'{"b":"}{"}']),
        "lines of Windows": (b'{"a":1}\r\n\r\n{"b":2}\r\n', [b'{"a":1}', b'{"b":2}']),
        "a byte order mark": (b'\xef\xbb\xbf{"a":1}\n', [b'{"a":1}']),
        "two files put together": (b'\xef\xbb\xbf{"a":1}\n\xef\xbb\xbf{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        "laid out": (
            b'{\n  "a": [\n    1\n  ]\n}\n{\n  "b": 2\n}\n',
            [b'{\n  "a": [\n    1\n  ]\n}', b'{\n  "b": 2\n}'],
        ),
        "a list on one line": (b'[{"a":1},{"b":2}]', [b'{"a":1}', b'{"b":2}']),
        "a list of lines": (b'[\n{"a":1},\n{"b":2}\n]\n', [b'{"a":1}', b'{"b":2}']),
        "a list, and more": (b'[{"a":1}]\n{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        "an empty list": (b"[]", []),
        "a list further down is a document": (b'{"a":1}\n[{"b":2}]\n', [b'{"a":1}', b'[{"b":2}]']),
        "text sequences": (b'\x1e{"a":1}\n\x1e{"b":2}\n', [b'{"a":1}', b'{"b":2}']),
        "empty": (b"", []),
        "blank": (b"\n \r\n\t\n", []),
        "brackets and quotes in strings": (b'{"a":"\\"}{[\\\\"}{"b":2}', [b'{"a":"\\"}{[\\\\"}', b'{"b":2}']),
    }.values(),
)
def test_documents_are_found_in_every_layout(content: bytes, expected: list[bytes]) -> None:
    for chunk in (None, 1, 2, 3, 7):
        found, cut_off = split(content, chunk)
        assert [document.body for document in found] == expected
        assert [document.broken for document in found] == [""] * len(expected)
        assert cut_off is None
        for document in found:
            assert content[document.start : document.end] == document.body
            assert content[: document.start].count(b"\n") + 1 == document.line


@pytest.mark.parametrize(
    ("content", "expected"),
    {
        "words": (b'no JSON\n{"b":2}\n', [b"no JSON", b'{"b":2}']),
        "a bracket too few": (b'{"a":1\n{"b":2}\n', [b'{"a":1', b'{"b":2}']),
        "an opening bracket alone": (b'{\n{"b":2}\n', [b"{", b'{"b":2}']),
        "a string without an end": (b'{"a":"x\n{"b":2}\n', [b'{"a":"x', b'{"b":2}']),
        "garbage behind a document": (b'{"a":1}x{"c":3}\n{"b":2}\n', [b'{"a":1}', b'x{"c":3}', b'{"b":2}']),
        "garbage before a document": (b'x{"c":3}{"d":4}\n{"b":2}\n', [b'x{"c":3}{"d":4}', b'{"b":2}']),
        "NUL": (b'\x00\x00\x00\x00\n{"b":2}\n', [b"\x00\x00\x00\x00", b'{"b":2}']),
        "too deep": (b"[[" * 3000 + b'\n{"b":2}\n', [b"[[" * 3000, b'{"b":2}']),
        "half a surrogate pair": (b'{"a":"\\ud800"}\n{"b":2}\n', [b'{"a":"\\ud800"}', b'{"b":2}']),
    }.values(),
)
def test_what_is_no_json_ends_with_its_line_and_the_next_line_is_a_new_beginning(
    content: bytes, expected: list[bytes]
) -> None:
    content = b'{"first":0}\n' + content
    for chunk in (None, 1, 3):
        found, cut_off = split(content, chunk)
        assert [document.body for document in found] == [b'{"first":0}', *expected]
        assert [bool(document.broken) for document in found].count(True) == 1
        assert cut_off is None


def test_no_part_of_a_broken_event_is_taken_for_an_event() -> None:
    broken = b'{\n  "id": "outer" "type": "x",\n  "participants": [\n    {"id": "inner", "type": "x"}\n  ]\n}'
    good = b'{"id": "good", "type": "x"}'
    for before, after in ((b"", b"\n"), (b"[\n", b",\n")):
        content = before + broken + after + good + b"\n" + (b"]\n" if before else b"")
        found, _ = split(content)
        assert [json.loads(one.body)["id"] for one in found if not one.broken] == ["good"]
        assert "JSON" in found[0].broken
        assert found[0].body.startswith(b'{\n  "id": "outer"')


def test_the_indented_members_of_a_list_are_found_behind_a_broken_one() -> None:
    content = b'[\n  {\n    "a" 1\n  },\n  {\n    "b": 2\n  }\n]\n'
    found, cut_off = split(content)
    assert [bool(one.broken) for one in found] == [True, False]
    assert json.loads(found[1].body) == {"b": 2}
    assert cut_off is None


@pytest.mark.parametrize(
    "content", [b'{"a":1}\n{"b":', b'{"a":1}{"b":{"c":2}', b'{"a":1}\n{\n "b": 2,\n', b'{"a":1}\n{"b":"x']
)
def test_what_the_file_ends_in_the_middle_of_is_told_and_not_taken(content: bytes) -> None:
    for chunk in (None, 1):
        found, cut_off = split(content, chunk)
        assert [one.body for one in found] == [b'{"a":1}']
        assert cut_off is not None
        assert cut_off.broken == CUT_OFF
        assert content[cut_off.start :].strip() == cut_off.body.strip()


def test_a_list_without_its_end_is_told() -> None:
    found, cut_off = split(b'[{"a":1},\n')
    assert [one.body for one in found] == [b'{"a":1}']
    assert cut_off is not None
    assert cut_off.broken == OPEN_LIST


def test_it_goes_on_where_a_file_has_grown() -> None:
    content = bytearray(b'{"a":1}\n{"b"')
    at = 0

    def read(size: int) -> bytes:
        nonlocal at
        more = bytes(content[at : at + size])
        at += len(more)
        return more

    splitter = Splitter(read)
    first = splitter.next()
    assert first is not None
    assert splitter.next() is None
    assert splitter.cut_off is not None
    content += b":2}\n"
    second = splitter.next()
    assert second is not None
    assert (second.body, second.line) == (b'{"b":2}', 2)
    assert splitter.next() is None


def test_of_a_document_above_the_limit_only_the_beginning_is_kept_and_its_place() -> None:
    large = b'{"a":"' + b"x" * 5 * SMALL + b'"}'
    for content in (large + b'\n{"b":2}\n', b'{"z":0}' + large + b'\n{"b":2}\n', b"x" * 5 * SMALL + b'\n{"b":2}\n'):
        for chunk in (None, 64):
            found, cut_off = split(content, chunk, largest=SMALL)
            *_, too_large, good = found
            assert good.body == b'{"b":2}'
            assert good.line == 2
            assert cut_off is None
            assert len(too_large.body) <= SMALL + 1
            assert f"{SMALL} bytes" in too_large.broken
            assert content[too_large.start : too_large.end] == content[: content.index(b"\n")][too_large.start :]


def test_a_document_of_just_the_limit_is_taken() -> None:
    body = b'{"a":"' + b"x" * (SMALL - 8) + b'"}'
    assert len(body) == SMALL
    for content in (body + b"\n", body, body + b'{"b":2}'):
        found, _ = split(content, largest=SMALL)
        assert (found[0].body, found[0].broken) == (body, "")


def test_beginnings_without_ends_do_not_take_for_ever() -> None:
    """Each would be a reason to look through all that follows: as many bytes as there are, squared."""
    for line in (b'{"a":1\n', b'{"a":[\n', b'{"a":"b",\n', b'{"a":{\n', b"[1,\n", b'{"a":"\n'):
        found, cut_off = split(b'{"first":0}\n' + line * 5_000)
        assert len(found) + (cut_off is not None) >= 1


_texts = st.text(st.sampled_from('ab"\\{}[],:\n\u00e9\u6f22\U0001f4de'), max_size=8)
_values = st.recursive(st.integers() | _texts | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
_documents = st.dictionaries(_texts, _values, max_size=4)
_written = st.tuples(_documents, st.sampled_from([None, 2]), st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], indent=drawn[1], ensure_ascii=drawn[2]).encode()
)


@given(
    st.lists(st.tuples(_written, st.sampled_from([b"\n", b"", b"\r\n", b" ", b"\n\n"])), max_size=6), st.integers(1, 40)
)
def test_documents_of_any_kind_are_found_again(written: list[tuple[bytes, bytes]], chunk: int) -> None:
    content = b"".join(body + between for body, between in written)
    found, cut_off = split(content, chunk)
    assert [msgspec.json.decode(one.body) for one in found] == [json.loads(body) for body, _ in written]
    assert cut_off is None
    assert [one.broken for one in found] == [""] * len(written)


@given(
    st.lists(st.sampled_from([b'{"a":1}', b"{", b"}", b'"', b"\n", b" ", b"[", b"]", b",", b"\\", b"x", b"\x00", b"1"]))
)
def test_garbage_is_split_the_same_way_however_it_comes_and_from_any_place_on(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    found, cut_off = split(content)
    assert split(content, 1) == (found, cut_off)
    ends = [0, *[one.end for one in found]]
    assert all(end <= one.start for end, one in zip(ends, found, strict=False)), "documents do not overlap"
    for at, one in enumerate(found):
        assert split(content, place=one.before)[0] == found[at:]
        assert split(content, place=one.after)[0] == found[at + 1 :]
