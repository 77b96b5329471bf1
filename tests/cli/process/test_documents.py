"""The splitter: where documents begin and end, in every layout and for every size of a read."""

from __future__ import annotations

import io
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.cli.process_input import CUT_OFF, OPEN_LIST, Document, Splitter

SMALL = 200  # bytes: a limit that tests reach


def split(content: bytes, chunk: int | None = None, **options: Any) -> tuple[list[Document], Document | None]:
    file = io.BytesIO(content)
    splitter = Splitter(lambda size: file.read(chunk or size), **options)
    documents = []
    while (document := splitter.next()) is not None:
        documents.append(document)
        assert len(documents) <= len(content), "the splitter makes no progress"
    return documents, splitter.cut_off


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
        documents, cut_off = split(content, chunk)
        assert [document.body for document in documents] == expected
        assert [document.error for document in documents] == [""] * len(expected)
        assert cut_off is None
        for document in documents:
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
def test_text_that_is_not_json_ends_with_its_line_and_the_next_line_is_a_new_document(
    content: bytes, expected: list[bytes]
) -> None:
    content = b'{"first":0}\n' + content
    for chunk in (None, 1, 3):
        documents, cut_off = split(content, chunk)
        assert [document.body for document in documents] == [b'{"first":0}', *expected]
        assert [bool(document.error) for document in documents].count(True) == 1
        assert cut_off is None


def test_no_part_of_a_broken_event_is_taken_for_an_event() -> None:
    broken = b'{\n  "id": "outer" "type": "x",\n  "participants": [\n    {"id": "inner", "type": "x"}\n  ]\n}'
    good = b'{"id": "good", "type": "x"}'
    for before, after in ((b"", b"\n"), (b"[\n", b",\n")):
        content = before + broken + after + good + b"\n" + (b"]\n" if before else b"")
        documents, _ = split(content)
        assert [json.loads(document.body)["id"] for document in documents if not document.error] == ["good"]
        assert "JSON" in documents[0].error
        assert documents[0].body.startswith(b'{\n  "id": "outer"')


def test_indented_members_of_a_list_are_found_after_a_broken_one() -> None:
    content = b'[\n  {\n    "a" 1\n  },\n  {\n    "b": 2\n  }\n]\n'
    documents, cut_off = split(content)
    assert [bool(document.error) for document in documents] == [True, False]
    assert json.loads(documents[1].body) == {"b": 2}
    assert cut_off is None


@pytest.mark.parametrize(
    "content", [b'{"a":1}\n{"b":', b'{"a":1}{"b":{"c":2}', b'{"a":1}\n{\n "b": 2,\n', b'{"a":1}\n{"b":"x']
)
def test_an_incomplete_document_at_the_end_is_reported_and_not_returned(content: bytes) -> None:
    for chunk in (None, 1):
        documents, cut_off = split(content, chunk)
        assert [document.body for document in documents] == [b'{"a":1}']
        assert cut_off is not None
        assert cut_off.error == CUT_OFF
        assert content[cut_off.start :].strip() == cut_off.body.strip()


def test_a_list_without_its_end_is_reported() -> None:
    documents, cut_off = split(b'[{"a":1},\n')
    assert [document.body for document in documents] == [b'{"a":1}']
    assert cut_off is not None
    assert cut_off.error == OPEN_LIST


def test_only_the_beginning_and_the_position_of_a_document_above_the_limit_are_kept() -> None:
    large = b'{"a":"' + b"x" * 5 * SMALL + b'"}'
    for content in (large + b'\n{"b":2}\n', b'{"z":0}' + large + b'\n{"b":2}\n', b"x" * 5 * SMALL + b'\n{"b":2}\n'):
        for chunk in (None, 64):
            documents, cut_off = split(content, chunk, largest=SMALL)
            *_, too_large, good = documents
            assert good.body == b'{"b":2}'
            assert good.line == 2
            assert cut_off is None
            assert len(too_large.body) <= SMALL + 1
            assert f"{SMALL} bytes" in too_large.error
            assert content[too_large.start : too_large.end] == content[: content.index(b"\n")][too_large.start :]


def test_a_document_of_exactly_the_limit_is_returned() -> None:
    body = b'{"a":"' + b"x" * (SMALL - 8) + b'"}'
    assert len(body) == SMALL
    for content in (body + b"\n", body, body + b'{"b":2}'):
        documents, _ = split(content, largest=SMALL)
        assert (documents[0].body, documents[0].error) == (body, "")


def test_unclosed_brackets_do_not_take_quadratic_time() -> None:
    """Each line could start a search through the whole rest of the input."""
    for line in (b'{"a":1\n', b'{"a":[\n', b'{"a":"b",\n', b'{"a":{\n', b"[1,\n", b'{"a":"\n'):
        documents, cut_off = split(b'{"first":0}\n' + line * 5_000)
        assert len(documents) + (cut_off is not None) >= 1


_texts = st.text(st.sampled_from('ab"\\{}[],:\n\u00e9\u6f22\U0001f4de'), max_size=8)
_values = st.recursive(st.integers() | _texts | st.none(), lambda inner: st.lists(inner, max_size=3), max_leaves=4)
_documents = st.dictionaries(_texts, _values, max_size=4)
_written = st.tuples(_documents, st.sampled_from([None, 2]), st.booleans()).map(
    lambda drawn: json.dumps(drawn[0], indent=drawn[1], ensure_ascii=drawn[2]).encode()
)


@given(
    st.lists(st.tuples(_written, st.sampled_from([b"\n", b"", b"\r\n", b" ", b"\n\n"])), max_size=6), st.integers(1, 40)
)
def test_documents_of_any_kind_are_found(written: list[tuple[bytes, bytes]], chunk: int) -> None:
    content = b"".join(body + between for body, between in written)
    documents, cut_off = split(content, chunk)
    assert [msgspec.json.decode(document.body) for document in documents] == [json.loads(body) for body, _ in written]
    assert cut_off is None
    assert [document.error for document in documents] == [""] * len(written)


@given(
    st.lists(st.sampled_from([b'{"a":1}', b"{", b"}", b'"', b"\n", b" ", b"[", b"]", b",", b"\\", b"x", b"\x00", b"1"]))
)
def test_garbage_is_split_the_same_way_for_every_size_of_a_read(pieces: list[bytes]) -> None:
    content = b"".join(pieces)
    documents, cut_off = split(content)
    assert split(content, 1) == (documents, cut_off)
    ends = [0, *[document.end for document in documents]]
    assert all(end <= document.start for end, document in zip(ends, documents, strict=False)), (
        "documents do not overlap"
    )
