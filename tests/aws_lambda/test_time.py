"""The time of an invocation: what is begun in it, what is stopped, what is left alone. Times are short and real."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.aws_lambda.invocations import (
    Clocked,
    Noting,
    failures,
    fifo,
    kafka,
    kinesis,
    piped,
    rabbitmq,
    sequence,
    small,
    sqs,
    summary,
)
from tests.engine.faults import FaultyLine

from semel import ConfigError, Context, Event, Retry, Semel
from semel.aws_lambda import RecordsFailed
from semel.values.claim import Claim, Verdict


class Watching(FaultyLine):
    """Notes the leases that are asked for."""

    def __init__(self, app: Semel) -> None:
        super().__init__(app)
        self.leases_ms: list[int] = []

    async def claim(self, claims: Sequence[Claim]) -> list[Verdict]:
        self.leases_ms += [claim.lease_ms for claim in claims]
        return await super().claim(claims)


class Saying:
    """A context that says whatever it is told to say."""

    def __init__(self, left_ms: Any) -> None:
        self._left_ms = left_ms

    def get_remaining_time_in_millis(self) -> Any:
        return self._left_ms


@pytest.mark.parametrize("left_ms", [0, 0.0, -5, 1, 999, 1_050])
def test_without_time_left_nothing_is_claimed_and_everything_is_redelivered(left_ms: float) -> None:
    noting = Noting()
    line = Watching(noting.app)
    handler = noting.app.lambda_handler(margin=1.0)
    bodies = [small("1"), small("2")]
    assert handler(sqs(bodies), Saying(left_ms)) == failures("message-0", "message-1")
    assert handler(fifo([("g", body) for body in bodies]), Saying(left_ms)) == failures("message-0", "message-1")
    assert handler(kinesis(bodies), Saying(left_ms)) == failures(sequence(0))
    with pytest.raises(RecordsFailed, match="busy"):
        handler(json.loads(bodies[0]), Saying(left_ms))
    assert line.leases_ms == []
    assert asyncio.run(noting.app.entries()) == []
    assert noting.acted == []


def test_a_margin_above_the_remaining_time_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Noting().app.lambda_handler(margin=3)(sqs([small("1")]), Saying(2_500))
    assert "invocation_too_short left_s=2.5 margin_s=3" in caplog.text


@pytest.mark.parametrize("context", [None, object(), Saying(None), Saying("soon")])
def test_without_a_clock_there_is_all_the_time_in_the_world(context: Any) -> None:
    noting = Noting()
    line = Watching(noting.app)
    assert noting.app.lambda_handler()(sqs([small("1")]), context) == failures()
    assert line.leases_ms == [25_000]
    assert noting.app.lambda_handler()(json.loads(small("2"))) == summary(1)


@pytest.mark.parametrize(("left_ms", "lease_ms"), [(5_000, 4_000), (900_000, 25_000)])
def test_a_lease_ends_with_the_invocation_less_the_margin(left_ms: int, lease_ms: int) -> None:
    noting = Noting()
    line = Watching(noting.app)
    noting.app.lambda_handler(margin=1.0)(sqs([small("1"), small("2")]), Saying(left_ms))
    assert len(line.leases_ms) == 2
    assert all(lease_ms - 500 < lease <= lease_ms for lease in line.leases_ms)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_a_handler_is_stopped_before_the_invocation_ends_and_its_event_is_redelivered(timeout: float | None) -> None:
    app = Semel("memory://", random=lambda: 0.0)
    ended: list[str] = []

    @app.on("slow", timeout=timeout)
    async def slow(event: Event, ctx: Context) -> None:
        try:
            await asyncio.sleep(60 if ctx.attempt == 1 else 0)
        finally:
            ended.append("slow")

    @app.on("quick")
    async def quick(event: Event, ctx: Context) -> None:
        ended.append("quick")

    handler = app.lambda_handler(margin=5)
    context = Clocked(5.5)
    both = sqs([small("1", "slow"), small("2", "quick")])
    assert handler(both, context) == failures("message-0")
    assert context.get_remaining_time_in_millis() > 0
    assert ended == ["quick", "slow"]
    (entry,) = asyncio.run(app.entries("waiting"))
    assert entry.reason
    assert "60" not in entry.reason, "its own timeout is not the cause"
    assert handler(both, Clocked(30)) == failures()  # the retry is due at once
    assert ended == ["quick", "slow", "slow"]


def test_its_own_timeout_still_counts_where_it_is_shorter() -> None:
    app = Semel("memory://")

    @app.on("**", timeout=0.1)
    async def slow(event: Event, ctx: Context) -> None:
        await asyncio.sleep(60)

    assert app.lambda_handler()(sqs([small("1")]), Clocked(60)) == failures("message-0")
    (entry,) = asyncio.run(app.entries("waiting"))
    assert "0.1 s" in entry.reason


def test_records_behind_a_slow_one_of_their_group_are_never_claimed() -> None:
    app = Semel("memory://")
    line = Watching(app)

    @app.on("**")
    async def slow(event: Event, ctx: Context) -> None:
        await asyncio.sleep(0.45)

    handler = app.lambda_handler(margin=5)
    told = handler(fifo([("g", small(str(at))) for at in range(5)]), Clocked(5.7))
    left_alone = 5 - len(line.leases_ms)
    assert left_alone >= 3
    assert (
        told["batchItemFailures"][-left_alone:]
        == failures(*[f"message-{at}" for at in range(5)])["batchItemFailures"][-left_alone:]
    )
    known = asyncio.run(app.entries())
    assert len(known) == len(line.leases_ms)


def test_more_than_can_run_at_a_time_are_claimed_only_when_they_can_begin() -> None:
    app = Semel("memory://", concurrency=2)
    line = Watching(app)

    @app.on("**")
    async def slow(event: Event, ctx: Context) -> None:
        await asyncio.sleep(60)

    told = app.lambda_handler(margin=5)(sqs([small(str(at)) for at in range(6)]), Clocked(5.5))
    assert len(told["batchItemFailures"]) == 6
    assert len(line.leases_ms) == 2


def test_a_parked_handler_that_is_stopped_is_uncertain_and_kept() -> None:
    app = Semel("memory://")

    @app.on("**", effect="park")
    async def slow(event: Event, ctx: Context) -> None:
        await asyncio.sleep(60)

    handler = app.lambda_handler(margin=5)
    assert handler(json.loads(small("1")), Clocked(5.5)) == summary(errors=1)
    assert len(asyncio.run(app.entries("uncertain"))) == 1
    assert handler(json.loads(small("1")), Clocked(60)) == summary(skipped=1)


def test_a_handler_that_is_stopped_in_a_transaction_is_rolled_back(tmp_path: Path) -> None:
    app = Semel(f"sqlite:///{tmp_path}/semel.db", random=lambda: 0.0)

    @app.on("**", effect="transaction")
    async def write(event: Event, ctx: Context) -> int:
        ctx.tx.execute("create table if not exists ticket (attempt integer)")
        ctx.tx.execute("insert into ticket values (?)", (ctx.attempt,))
        await asyncio.sleep(60 if ctx.attempt == 1 else 0)
        return len(list(ctx.tx.execute("select * from ticket")))

    handler = app.lambda_handler(margin=5)
    assert handler(sqs([small("1")]), Clocked(5.5)) == failures("message-0")
    while handler(sqs([small("1")]), Clocked(60)) != failures():  # SQLite cannot renew meanwhile: the lease lapses
        time.sleep(0.05)
    assert app.process_sync(json.loads(small("1"))).result == 1


def test_a_thread_that_is_done_after_its_time_and_within_its_lease_is_done() -> None:
    app = Semel("memory://")

    @app.on("**")
    def slow(event: Event, ctx: Context) -> bool:
        while not ctx.lost:
            time.sleep(0.01)
        return True

    handler = app.lambda_handler(margin=5)
    assert handler(sqs([small("1")]), Clocked(6)) == failures()
    assert handler(json.loads(small("1")), Clocked(60)) == summary(skipped=1)


def test_no_thread_is_left_behind_when_an_invocation_is_answered() -> None:
    """Frozen with its process, it would go on when the next event comes."""
    app = Semel("memory://")
    ended: list[bool] = []

    @app.on("**", lease=0.2)
    def deaf(event: Event, ctx: Context) -> None:
        time.sleep(1.5)
        ended.append(ctx.lost)

    handler = app.lambda_handler(margin=5)
    assert handler(sqs([small("1")]), Clocked(5.3)) == failures("message-0")
    assert ended == [True]


@pytest.mark.parametrize("margin", [0, -1, float("nan"), "1", None, True])
def test_a_margin_is_a_time(margin: Any) -> None:
    with pytest.raises(ConfigError, match="margin="):
        Semel("memory://").lambda_handler(margin=margin)


@pytest.mark.parametrize("patience", [-1, float("nan"), "1", None])
def test_patience_is_a_time(patience: Any) -> None:
    with pytest.raises(ConfigError, match="patience="):
        Semel("memory://").lambda_handler(patience=patience)


# ------------------------------------------------------------------------------------------------- delays of retries


class Reluctant:
    """Succeeds at its third attempt."""

    def __init__(self, after: float) -> None:
        self.app = Semel("memory://", random=lambda: 0.0)
        self.attempts: list[tuple[str, int]] = []

        @self.app.on("**")
        async def act(event: Event, ctx: Context) -> Retry | None:
            self.attempts.append((event.id, ctx.attempt))
            return Retry(after) if event.type == "later" and ctx.attempt < 3 else None


@pytest.mark.parametrize(
    ("make", "well"),
    [
        (kinesis, failures()),
        (kafka, summary(2)),
        (rabbitmq, summary(2)),
        (lambda bodies: [json.loads(body) for body in bodies], summary(2)),
        (lambda bodies: piped(kinesis(bodies)), summary(2)),
    ],
    ids=["kinesis", "kafka", "rabbitmq", "pipe", "pipe of a stream"],
)
def test_where_the_trigger_would_not_wait_for_a_retry_the_invocation_does(
    make: Callable[[list[bytes]], Any], well: Any
) -> None:
    reluctant = Reluctant(0.2)
    told = reluctant.app.lambda_handler(patience=20)(make([small("1", "later"), small("2")]), Clocked(60))
    assert told == well
    assert sorted(reluctant.attempts) == [("1", 1), ("1", 2), ("1", 3), ("2", 1)]


def test_without_patience_every_failure_is_reported_at_once() -> None:
    reluctant = Reluctant(0.1)
    assert reluctant.app.lambda_handler()(kinesis([small("1", "later")]), Clocked(60)) == failures(sequence(0))
    assert reluctant.attempts == [("1", 1)]


def test_patience_ends() -> None:
    reluctant = Reluctant(0.4)
    told = reluctant.app.lambda_handler(patience=0.6)(kinesis([small("1", "later")]), None)
    assert told == failures(sequence(0))
    assert reluctant.attempts == [("1", 1), ("1", 2)]


def test_a_queue_waits_by_itself() -> None:
    reluctant = Reluctant(0.2)
    assert reluctant.app.lambda_handler(patience=20)(sqs([small("1", "later")]), Clocked(60)) == failures("message-0")
    assert reluctant.attempts == [("1", 1)]


def test_a_delay_that_does_not_fit_into_the_invocation_is_not_waited_for() -> None:
    reluctant = Reluctant(30.0)
    context = Clocked(20)
    assert reluctant.app.lambda_handler(patience=60)(kinesis([small("1", "later"), small("2")]), context) == failures(
        sequence(0)
    )
    assert context.get_remaining_time_in_millis() > 0
    assert sorted(reluctant.attempts) == [("1", 1), ("2", 1)]


def test_records_behind_a_retry_are_processed_in_order_after_the_delay() -> None:
    reluctant = Reluctant(0.1)
    bodies = [small("1", "later"), small("2"), small("3")]
    assert reluctant.app.lambda_handler(patience=20)(kinesis(bodies, keys=["k", "k", "k"]), Clocked(60)) == failures()
    assert reluctant.attempts == [("1", 1), ("1", 2), ("1", 3), ("2", 1), ("3", 1)]


def test_records_behind_a_malformed_one_of_their_group_are_not_processed() -> None:
    reluctant = Reluctant(0.1)
    bodies = [b"{", small("1"), small("2", "later")]
    told = reluctant.app.lambda_handler(patience=20)(kinesis(bodies, keys=["k", "k", "other"]), Clocked(60))
    assert told == failures(sequence(0))
    assert reluctant.attempts == [("2", 1), ("2", 2), ("2", 3)]


def test_a_ledger_that_is_out_of_reach_is_not_waited_for() -> None:
    noting = Noting()
    line = FaultyLine(noting.app)
    line.cut = {"claim"}
    context = Clocked(60)
    assert noting.app.lambda_handler(patience=20)(kinesis([small("1")]), context) == failures(sequence(0))
    assert line.landed == 2
    assert context.get_remaining_time_in_millis() > 0
