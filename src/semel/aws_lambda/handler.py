"""The handler that Lambda calls.

    records → events → engine → response of the trigger, within the time of the invocation

A record that did not succeed is reported as failed, so that its trigger delivers it again.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from msgspec.structs import replace

from semel.aws_lambda.records import LambdaBatch, LambdaRecord, read
from semel.core.engine import BEGIN_S, Engine
from semel.ports import Arrived, Ledger
from semel.sync import SyncFace
from semel.values.claim import Claim, DeadLetter, Granted, Settled, Settlement
from semel.values.errors import LedgerUnavailable, NotRecorded, SemelError
from semel.values.event import DecodeOptions
from semel.values.key import Namespace, content_digest
from semel.values.log import log
from semel.values.outcome import Outcome, Reject, Status

UNPROCESSABLE: tuple[Status, ...] = ("malformed", "conflict")  # a redelivery changes nothing, and no store keeps it
REASONS_MAX = 3  # in an exception; the log has the reason of each record
REASON_MAX_CHARS = 400
SKIPPED: tuple[Status, ...] = ("duplicate", "stale", "ignored")


class RecordsFailed(SemelError):
    """Records of an invocation failed, and its trigger has no response that names them.

    The trigger delivers all records again; those that were done are duplicates then.
    """


def failed(outcomes: Sequence[Outcome]) -> bool:
    """True if the trigger must deliver the record again or send it to its failure destination."""
    return any(not outcome.final or outcome.status in UNPROCESSABLE for outcome in outcomes)


def answer(batch: LambdaBatch, results: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    """Return value of an invocation. Raises RecordsFailed."""
    failures = [record for record, outcomes in zip(batch.records, results, strict=True) if failed(outcomes)]
    match batch.trigger:
        case "sqs" if all(record.id for record in failures):
            return _failures(failures)
        case "kinesis" if all(record.id for record in failures):
            return _failures([min(failures, key=_position)] if failures else [])  # a stream resumes there
        case "firehose" if all(outcome.final for outcomes in results for outcome in outcomes):
            # Firehose delivers "Ok" records, and stores failed ones with its errors.
            return {
                "records": [
                    {
                        "recordId": record.id,
                        "result": "ProcessingFailed" if failed(outcomes) else "Ok",
                        "data": record.data,
                    }
                    for record, outcomes in zip(batch.records, results, strict=True)
                ]
            }
    if failures:
        raise RecordsFailed(_describe_failures(batch, results, len(failures)))
    return {"statusCode": 200, "body": _summary(results)}


def _failures(records: Sequence[LambdaRecord]) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": record.id} for record in records]}


def _position(record: LambdaRecord) -> int:
    """Position in its shard. Records arrive in order, so `min` is right also if the ids are not numbers."""
    return int(record.id) if record.id.isdecimal() else 0


def _summary(results: Sequence[Sequence[Outcome]]) -> str:
    counts = Counter(outcome.status for outcomes in results for outcome in outcomes)
    skipped = sum(counts[status] for status in SKIPPED)
    processed = counts["done"]
    summary = {"processed": processed, "skipped": skipped, "errors": counts.total() - processed - skipped}
    return json.dumps(summary, separators=(",", ":"))


def _describe_failures(batch: LambdaBatch, results: Sequence[Sequence[Outcome]], failures: int) -> str:
    """Text for Lambda's log: the number of failures and the decoder's reasons for malformed records.

    Reasons of handlers are left out: they can contain a customer's data, and the ledger keeps them.
    """
    counts = Counter(outcome.status for outcomes in results if failed(outcomes) for outcome in outcomes)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    malformed = (outcome.reason for outcomes in results for outcome in outcomes if outcome.status == "malformed")
    reasons = [reason[:REASON_MAX_CHARS] for reason in dict.fromkeys(malformed)]
    more = f"; and {len(reasons) - REASONS_MAX} other reasons" if len(reasons) > REASONS_MAX else ""
    shown = "".join(f"; {reason}" for reason in reasons[:REASONS_MAX])
    return f"{failures} of {len(batch.records)} records did not succeed: {statuses}{shown}{more}"


HANDLER = "no-event"
LEASE_MS = 10_000  # for one settle
RETENTION_MS = 38 * 86_400_000  # as for handlers: a redelivery within it makes no second dead letter
BY_CONTENT = "content"


class MalformedRecordLedger:
    """Keeps malformed records in the ledger: the default of `malformed_records` for streams.

    A stream would deliver a malformed record again until it expires, and block behind it. The record becomes a dead
    letter of a reserved handler: `semel dead list` shows it with its reason. Its key is its content, so redeliveries
    make no second dead letter. A replay processes it once more.
    """

    def __init__(self, ledger: Ledger, tenant: str) -> None:
        self._ledger = ledger
        self._tenant = tenant

    async def __call__(self, body: bytes, reason: str) -> None:
        """Keep one record. Raises LedgerUnavailable if that is not confirmed."""
        content = content_digest(body).hex()
        digest = Namespace(self._tenant, HANDLER).digest((BY_CONTENT, content))
        claim = Claim(digest, HANDLER, content, LEASE_MS, RETENTION_MS, self._tenant)
        (verdict,) = await self._ledger.claim([claim])
        match verdict:
            case Settled():
                return  # kept by an earlier delivery
            case Granted(lease, attempt):
                dead_letter = DeadLetter(body, attempt, DecodeOptions(foreign=True))
                (kept,) = await self._ledger.settle([Settlement(lease, Reject(reason), dead_letter)])
                if kept:
                    return
        raise LedgerUnavailable("another process is storing this record")


PAUSE_MIN_S = 0.05  # avoids a busy loop for retries that are due at once

BEHIND = Outcome("busy", reason="an earlier record of its group did not succeed")
EMPTY = Outcome("ignored", reason="the record is empty")

KeepMalformed: TypeAlias = Callable[[bytes, str], object | Awaitable[object]]
"""Keeps a malformed body with the reason. The record counts as kept when it returns."""


class LambdaMessage(Arrived):
    """One event of an invocation, as the engine reads it."""

    __slots__ = ("body", "tenant")

    def __init__(self, body: bytes, tenant: str) -> None:
        self.body = body
        self.tenant = tenant


class LambdaHandler:
    """Lambda calls `handle`. One event loop and its connections are kept for the life of the process."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        sync: SyncFace,
        tenant: str,
        concurrency: int,
        margin_s: float,
        patience_s: float,
        malformed_records: KeepMalformed | None,
        ledger: Ledger,
    ) -> None:
        """`engine` returns the engine of the running loop. The ledger keeps malformed records of streams by default."""
        self._engine = engine
        self._sync = sync
        self._tenant = tenant
        self._concurrency = concurrency
        self._margin_s = margin_s
        self._patience_s = patience_s
        self._malformed_records = malformed_records
        self._in_ledger: KeepMalformed | None = MalformedRecordLedger(ledger, tenant) if ledger.traits.durable else None

    def handle(self, event: Any, context: Any = None) -> dict[str, Any]:
        """Process one invocation. Raises MalformedEvent for an unknown shape, and RecordsFailed if the trigger has no
        response that names failed records."""
        batch = read(event)
        left_s = _left_s(context)
        return answer(batch, self._sync.call(lambda: self._process(batch, left_s)))

    async def _process(self, batch: LambdaBatch, left_s: float | None) -> list[list[Outcome]]:
        """Return the outcomes of each record, in order.

        A trigger that redelivers at once and counts its deliveries would use them up during a delay, so the delay is
        waited for here, up to `patience`.
        """
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._patience_s
        until = None if left_s is None else loop.time() + left_s - self._margin_s
        if left_s is not None and left_s <= self._margin_s:
            log.warning("invocation_too_short", left_s=left_s, margin_s=self._margin_s)
        keep_malformed = self._malformed_records or (self._in_ledger if batch.blocks_on_failure else None)
        results = await self._process_records(batch.records, until, keep_malformed)
        while batch.retries_at_once and (again := retryable(batch.records, results)):
            pause_s = _pause_s([results[at] for at in again])
            due = loop.time() + pause_s
            if due > patient_until or (until is not None and due + BEGIN_S > until):
                break
            await asyncio.sleep(pause_s)
            retried = await self._process_records([batch.records[at] for at in again], until, keep_malformed)
            for at, outcomes in zip(again, retried, strict=True):
                results[at] = outcomes
        return results

    async def _process_records(
        self, records: Sequence[LambdaRecord], until: float | None, keep_malformed: KeepMalformed | None
    ) -> list[list[Outcome]]:
        """Process records. After the first failure of a group, its remaining records are not started."""
        results: dict[int, list[Outcome]] = {}
        stopped: set[str] = set()
        unavailable = ""
        for turn in turns(records, self._concurrency):
            ready = [at for at in turn if records[at].group not in stopped]
            results.update({at: [BEHIND] for at in turn if records[at].group in stopped})
            try:
                if unavailable:  # do not wait for the ledger again
                    raise LedgerUnavailable(unavailable)
                answers = await self._run_batch([records[at] for at in ready], until, keep_malformed)
            except LedgerUnavailable as error:
                if not unavailable:
                    log.error("ledger_unavailable", records_returned=len(ready), error=error)
                unavailable = str(error)
                answers = [[Outcome("busy", reason=unavailable)] for _ in ready]
            for at, outcomes in zip(ready, answers, strict=True):
                results[at] = outcomes
                if records[at].group and failed(outcomes):
                    stopped.add(records[at].group)
        return [results[at] for at in range(len(records))]

    async def _run_batch(
        self, records: Sequence[LambdaRecord], until: float | None, keep_malformed: KeepMalformed | None
    ) -> list[list[Outcome]]:
        """Process all events of these records in one batch."""
        messages = [LambdaMessage(body, self._tenant) for record in records for body in record.bodies]
        outcomes = iter(await self._outcomes(messages, until) if messages else ())
        results = []
        for record in records:
            outcomes_of_record = [
                await _keep_if_malformed(record, body, next(outcomes), keep_malformed) for body in record.bodies
            ]
            if not outcomes_of_record:
                outcomes_of_record = [Outcome("malformed", reason=record.unfit) if record.unfit else EMPTY]
            if record.unfit:
                log.warning("record_malformed", record_id=record.id or None, reason=record.unfit)
            results.append(outcomes_of_record)
        return results

    async def _outcomes(self, messages: Sequence[LambdaMessage], until: float | None) -> list[Outcome]:
        """Run the engine, twice if the ledger is unavailable: connections can die while Lambda freezes the process."""
        try:
            return await self._engine().process(messages, until)
        except NotRecorded:
            raise
        except LedgerUnavailable:
            return await self._engine().process(messages, until)


async def _keep_if_malformed(
    record: LambdaRecord, body: bytes, outcome: Outcome, keep_malformed: KeepMalformed | None
) -> Outcome:
    """Keep a malformed or conflicting record, if there is a store for it. Its outcome is "dead" then."""
    if outcome.status not in UNPROCESSABLE:
        return outcome
    if outcome.status == "malformed":
        log.warning("record_malformed", record_id=record.id or None, reason=outcome.reason[:REASON_MAX_CHARS])
    if keep_malformed is None:
        return outcome
    try:
        kept = keep_malformed(body, outcome.reason)
        if inspect.isawaitable(kept):
            await cast(Awaitable[object], kept)
    except Exception as error:
        log.error("record_not_kept", record_id=record.id, reason_class=type(error).__name__)
        return outcome
    return replace(outcome, status="dead")


def retryable(records: Sequence[LambdaRecord], results: Sequence[Sequence[Outcome]]) -> list[int]:
    """Indexes of records that are not final, except behind an unprocessable record of their group."""
    stuck = {
        record.group
        for record, outcomes in zip(records, results, strict=True)
        if any(outcome.status in UNPROCESSABLE for outcome in outcomes) and record.group
    }
    return [
        at
        for at, (record, outcomes) in enumerate(zip(records, results, strict=True))
        if record.group not in stuck and any(not outcome.final for outcome in outcomes)
    ]


def _pause_s(results: Iterable[Sequence[Outcome]]) -> float:
    """Seconds until the first retry is due. Retries without a known time are left to the trigger."""
    delays = [outcome.after for outcomes in results for outcome in outcomes if outcome.after is not None]
    return max(min(delays, default=math.inf), PAUSE_MIN_S)


def turns(records: Sequence[LambdaRecord], most: int) -> Iterator[list[int]]:
    """Yield the indexes of records to process together: the first of every group, then the second, and so on.

    At most `most` at a time, so that all of them start at once and no claimed event waits.
    """
    waves: list[list[int]] = []
    met: Counter[str] = Counter()
    for at, record in enumerate(records):
        place = met[record.group] if record.group else 0
        met[record.group] += 1
        if place == len(waves):
            waves.append([])
        waves[place].append(at)
    for wave in waves:
        for first in range(0, len(wave), most):
            yield wave[first : first + most]


def _left_s(context: Any) -> float | None:
    """Remaining seconds of the invocation. None: no limit, in tests; Lambda always has one."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    left_ms = ask() if callable(ask) else None
    return left_ms / 1000 if isinstance(left_ms, (int, float)) else None
