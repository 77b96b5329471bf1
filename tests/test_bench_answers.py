"""The response reader of `python -m bench.service`: responses in pieces, and invalid ones."""

from __future__ import annotations

from itertools import pairwise

import pytest
from bench.service import answers
from bench.service.answers import Answer, AnswerReader, BadAnswer
from hypothesis import given
from hypothesis import strategies as st

MEASURED = b"HTTP/1.1 200 OK\r\nServer: x\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;note=1\r\nlo\r\n0\r\nTrailer: 1\r\n\r\n"
INTERIM = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\nX: 1\r\n\r\n" + MEASURED
BUSY = b"HTTP/1.1 503 Busy\r\nRetry-After: 7\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
EMPTY = b"HTTP/1.1 204\r\n\r\n"
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello"
OLD_KEPT = b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello"
NOT_MODIFIED = b"HTTP/1.1 304 Same\r\nContent-Length: 5\r\n\r\n"

ANSWERS = {
    MEASURED: Answer(200, b"hello"),
    CHUNKED: Answer(200, b"hello"),
    INTERIM: Answer(200, b"hello"),
    BUSY: Answer(503, b"", 7.0, keep=False),
    EMPTY: Answer(204, b""),
    OLD: Answer(200, b"hello", keep=False),
    OLD_KEPT: Answer(200, b"hello"),
    NOT_MODIFIED: Answer(304, b""),
}


def fed(*pieces: bytes) -> Answer | None:
    reader = AnswerReader()
    answer = None
    for piece in pieces:
        assert answer is None, "an answer came before it was whole"
        answer = reader.feed(piece)
    return answer


@pytest.mark.parametrize("sent", ANSWERS)
def test_an_answer_in_one_piece_is_read(sent: bytes) -> None:
    assert fed(sent) == ANSWERS[sent]


@given(st.sampled_from(list(ANSWERS)), st.lists(st.integers(1, 200), max_size=8))
def test_an_answer_in_any_pieces_is_the_same(sent: bytes, cuts: list[int]) -> None:
    places = sorted({0, len(sent), *(cut for cut in cuts if cut < len(sent))})
    pieces = [sent[begin:end] for begin, end in pairwise(places)]
    assert fed(*pieces) == ANSWERS[sent]


@pytest.mark.parametrize("sent", ANSWERS)
def test_an_answer_byte_by_byte_is_read(sent: bytes) -> None:
    assert fed(*(sent[at : at + 1] for at in range(len(sent)))) == ANSWERS[sent]


def test_one_reader_reads_one_answer_after_the_other() -> None:
    reader = AnswerReader()
    answers = [reader.feed(sent) for sent in (MEASURED, CHUNKED, MEASURED[:20], MEASURED[20:], INTERIM, EMPTY, CHUNKED)]
    assert answers[2] is None
    assert answers[-1] == ANSWERS[CHUNKED]
    assert None not in (*answers[:2], *answers[3:])


def test_bytes_after_an_answer_make_the_connection_unusable() -> None:
    assert fed(MEASURED + b"HTTP/1.1 200 OK") == Answer(200, b"hello", keep=False)
    assert fed(CHUNKED + b"x") == Answer(200, b"hello", keep=False)


def test_an_answer_without_length_ends_with_the_connection() -> None:
    reader = AnswerReader()
    assert reader.feed(b"HTTP/1.1 200 OK\r\n\r\nhel") is None
    assert reader.feed(b"lo") is None
    assert reader.end() == Answer(200, b"hello", keep=False)


@pytest.mark.parametrize("begun", [b"", MEASURED[:-1], CHUNKED[:-4], b"HTTP/1.1 200 OK\r\n"])
def test_an_incomplete_answer_is_none(begun: bytes) -> None:
    reader = AnswerReader()
    assert begun == b"" or reader.feed(begun) is None
    assert reader.end() is None


@pytest.mark.parametrize(
    "sent",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 20\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0x10\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"0" * 300,
    ],
)
def test_an_invalid_answer_is_refused(sent: bytes) -> None:
    with pytest.raises(BadAnswer):
        fed(sent)


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X: 1\r\n" * 200),
        (b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 1000),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"3e8\r\n" + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"X: 1\r\n" * 200),
    ],
)
def test_an_endless_answer_is_refused_at_the_limit(begin: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "HEAD_MAX_BYTES", 20_000)
    monkeypatch.setattr(answers, "BODY_MAX_BYTES", 50_000)
    reader = AnswerReader()
    reader.feed(begin)
    with pytest.raises(BadAnswer):
        all(reader.feed(more) is None for _ in range(100))


def test_a_long_chunked_answer_needs_no_more_memory_than_its_body() -> None:
    reader = AnswerReader()
    reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    for _ in range(500):
        assert reader.feed(b"3e8\r\n" + b"x" * 1000 + b"\r\n") is None
        assert len(reader._buffer) <= answers.HEAD_MAX_BYTES + 2_000
    assert reader.feed(b"0\r\n\r\n") == Answer(200, b"x" * 500_000)


@given(st.binary(max_size=300), st.booleans())
def test_every_input_is_an_answer_or_a_bad_answer(noise: bytes, behind_a_head: bool) -> None:
    reader = AnswerReader()
    try:
        if behind_a_head:
            reader.feed(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        reader.feed(noise)
        reader.end()
    except BadAnswer:
        pass
