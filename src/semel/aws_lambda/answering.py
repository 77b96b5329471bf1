"""What the trigger is told, in its own words. Whatever did not succeed comes again: nothing is answered away."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from semel.aws_lambda.records import Batch, Record
from semel.values.errors import SemelError
from semel.values.outcome import Outcome, Status

UNFIT: tuple[Status, ...] = ("malformed", "conflict")  # bringing it again changes nothing, and nobody has kept it
REASONS_MAX = 3  # in an exception; the log has the reason of each record
REASON_MAX_CHARS = 400
SKIPPED: tuple[Status, ...] = ("duplicate", "stale", "ignored")


class RecordsFailed(SemelError):
    """Raised out of an invocation whose trigger cannot be told which of its records failed: it brings all of them
    again, and those that were done are duplicates then."""


def failed(outcomes: Sequence[Outcome]) -> bool:
    """It has to come again, or to go where its trigger puts what never succeeds."""
    return any(not outcome.final or outcome.status in UNFIT for outcome in outcomes)


def answer(batch: Batch, told: Sequence[Sequence[Outcome]]) -> dict[str, Any]:
    """The return value of an invocation. Raises RecordsFailed."""
    losers = [record for record, outcomes in zip(batch.records, told, strict=True) if failed(outcomes)]
    match batch.trigger:
        case "sqs" if all(record.id for record in losers):
            return _failures(losers)
        case "kinesis" if all(record.id for record in losers):
            return _failures([min(losers, key=_position)] if losers else [])  # a stream goes on from there
        case "firehose" if not any(_comes_again(outcomes) for outcomes in told):
            return {"records": [_back(*one) for one in zip(batch.records, told, strict=True)]}
    if losers:
        raise RecordsFailed(_what_failed(batch, told, len(losers)))
    return {"statusCode": 200, "body": _summary(told)}


def _failures(records: Sequence[Record]) -> dict[str, Any]:
    return {"batchItemFailures": [{"itemIdentifier": record.id} for record in records]}


def _position(record: Record) -> int:
    """In its shard. They come in order, so that `min` is right also where these are no numbers."""
    return int(record.id) if record.id.isdecimal() else 0


def _comes_again(outcomes: Sequence[Outcome]) -> bool:
    return any(not outcome.final for outcome in outcomes)


def _back(record: Record, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Firehose goes on with what it gets back, and puts what failed with its errors."""
    return {"recordId": record.id, "result": "ProcessingFailed" if failed(outcomes) else "Ok", "data": record.data}


def _summary(told: Sequence[Sequence[Outcome]]) -> str:
    counts = Counter(outcome.status for outcomes in told for outcome in outcomes)
    skipped = sum(counts[status] for status in SKIPPED)
    processed = counts["done"]
    summary = {"processed": processed, "skipped": skipped, "errors": counts.total() - processed - skipped}
    return json.dumps(summary, separators=(",", ":"))


def _what_failed(batch: Batch, told: Sequence[Sequence[Outcome]], losers: int) -> str:
    """Lambda writes this into its log. It says why records are no events, in the decoder's words. It leaves out what
    handlers gave as a reason: that may contain a customer's data, and the ledger keeps it."""
    counts = Counter(outcome.status for outcomes in told if failed(outcomes) for outcome in outcomes)
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    malformed = (outcome.reason for outcomes in told for outcome in outcomes if outcome.status == "malformed")
    reasons = [reason[:REASON_MAX_CHARS] for reason in dict.fromkeys(malformed)]
    more = f"; and {len(reasons) - REASONS_MAX} other reasons" if len(reasons) > REASONS_MAX else ""
    shown = "".join(f"; {reason}" for reason in reasons[:REASONS_MAX])
    return f"{losers} of {len(batch.records)} records did not succeed: {statuses}{shown}{more}"
