"""What is no event in a stream: the ledger keeps it, so that the stream goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.aws_lambda.invocations import Clocked, Noting, failures, kafka, kinesis, rabbitmq, small, sqs, summary
from tests.aws_lambda.test_process_life import ready
from tests.engine.faults import FaultyLine

from semel.ports import EntryQuery


@pytest.mark.parametrize("make", [kinesis, kafka, rabbitmq])
def test_a_stream_continues_after_a_malformed_record_which_the_ledger_keeps(
    store: str, make: Callable[[list[bytes]], dict[str, Any]]
) -> None:
    noting = Noting(ready(store))
    handler = noting.app.lambda_handler()
    bodies = [small("1"), b"{ no event", b'{"neither": "id"}', small("2"), small("1", n=1)]
    well = failures() if make is kinesis else summary(processed=2, errors=3)
    assert handler(make(bodies), Clocked(60)) == well
    again = failures() if make is kinesis else summary(skipped=2, errors=3)
    assert handler(make(bodies), Clocked(60)) == again, "a copy is no second letter"
    dead = noting.app._sync.call(lambda: noting.app.ledger.entries(EntryQuery("dead")))
    assert {(entry.handler, entry.event) for entry in dead} == {("no-event", bodies[at]) for at in (1, 2, 4)}
    assert len(dead) == 3
    assert all(entry.reason for entry in dead)
    assert noting.acted == ["1", "2"]
    noting.app.close_sync()


def test_a_kept_malformed_record_can_be_replayed_and_is_delivered_once_more(tmp_path: Path) -> None:
    noting = Noting(f"sqlite:///{tmp_path}/semel.db")
    handler = noting.app.lambda_handler()
    dead_letters: Any = noting.app.ledger
    assert handler(kinesis([b"{"]), Clocked(60)) == failures()
    (entry,) = noting.app._sync.call(lambda: dead_letters.entries(EntryQuery("dead")))
    assert noting.app._sync.call(lambda: dead_letters.replay(entry.key, "try again", "kim"))
    assert noting.app._sync.call(dead_letters.depths) == [], "nobody takes it from an inbox"
    assert handler(kinesis([b"{"]), Clocked(60)) == failures()
    assert len(noting.app._sync.call(lambda: dead_letters.entries(EntryQuery("dead")))) == 1
    noting.app.close_sync()


def test_malformed_records_of_a_queue_or_with_a_memory_ledger_fail(tmp_path: Path) -> None:
    noting = Noting(f"sqlite:///{tmp_path}/semel.db")
    assert noting.app.lambda_handler()(sqs([b"{"]), Clocked(60)) == failures("message-0")
    assert noting.app._sync.call(lambda: noting.app.ledger.entries(EntryQuery("dead"))) == []
    noting.app.close_sync()
    assert Noting().app.lambda_handler()(kinesis([b"{"]), Clocked(60)) != failures()


def test_a_malformed_record_that_the_ledger_cannot_keep_is_redelivered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    noting = Noting(f"sqlite:///{tmp_path}/semel.db")
    line = FaultyLine(noting.app)  # before the handler is made: it knows the ledger from then on
    handler = noting.app.lambda_handler()
    line.cut = {"settle"}
    assert handler(kinesis([b"{", small("1")], keys=["one", "one"]), Clocked(60)) != failures()
    assert line.landed, "inconclusive: no settle was cut off"
    assert "record_not_kept" in caplog.text
    assert noting.acted == [], "nothing overtakes it"
    line.cut = set()
    noting.app.close_sync()


def test_a_large_dead_letter_is_kept_too(store: str) -> None:
    noting = Noting(ready(store))
    large = b"{" + b"x" * 900_000  # a record of Kinesis has at most a megabyte
    assert noting.app.lambda_handler()(kinesis([large]), Clocked(60)) == failures()
    (entry,) = noting.app._sync.call(lambda: noting.app.ledger.entries(EntryQuery("dead")))
    assert entry.event is not None
    assert large.startswith(entry.event[:1_000])
    noting.app.close_sync()
