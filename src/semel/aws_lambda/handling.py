"""The handler that Lambda calls: records → events → the flow → the answer, within the time of the invocation."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias, cast

from msgspec import Struct
from msgspec.structs import replace

from semel.aws_lambda.answering import REASON_MAX_CHARS, UNFIT, answer, failed
from semel.aws_lambda.keeping import InLedger
from semel.aws_lambda.records import Batch, Record, read
from semel.core.engine import BEGIN_S, Engine
from semel.ports import Ledger
from semel.sync import SyncFace
from semel.values.errors import LedgerUnavailable, NotRecorded
from semel.values.log import log
from semel.values.outcome import Outcome

PAUSE_MIN_S = 0.05  # what is due at once is not worth a race

BEHIND = Outcome("busy", reason="one before it in its group did not succeed")
EMPTY = Outcome("ignored", reason="nothing is in it")

PutAside: TypeAlias = Callable[[bytes, str], object | Awaitable[object]]
"""Keeps a body that is no event, with the reason, before it returns."""


class Message(Struct, frozen=True):
    """One event of an invocation, as the flow wants it."""

    body: bytes
    tenant: str


class LambdaHandler:
    """`handle` is what Lambda calls. One loop and its connections live as long as the process."""

    def __init__(
        self,
        engine: Callable[[], Engine],
        sync: SyncFace,
        tenant: str,
        concurrency: int,
        margin_s: float,
        patience_s: float,
        put_aside: PutAside | None,
        ledger: Ledger,
    ) -> None:
        """`engine` gives the one of the running loop. The ledger keeps what is no event, where nobody else does."""
        self._engine = engine
        self._sync = sync
        self._tenant = tenant
        self._concurrency = concurrency
        self._margin_s = margin_s
        self._patience_s = patience_s
        self._put_aside = put_aside
        self._in_ledger: PutAside | None = InLedger(ledger, tenant) if ledger.traits.durable else None

    def handle(self, event: Any, context: Any = None) -> dict[str, Any]:
        """Raises MalformedEvent for a shape that is not known, and RecordsFailed where only that brings them again."""
        batch = read(event)
        left_s = _left_s(context)
        return answer(batch, self._sync.call(lambda: self._process(batch, left_s)))

    async def _process(self, batch: Batch, left_s: float | None) -> list[list[Outcome]]:
        """What became of each record, in order. Where its trigger would bring it again at once, and count that, a delay
        is waited for here, with as much patience as there is."""
        loop = asyncio.get_running_loop()
        patient_until = loop.time() + self._patience_s
        until = None if left_s is None else loop.time() + left_s - self._margin_s
        if left_s is not None and left_s <= self._margin_s:
            log.warning("invocation_too_short", left_s=left_s, margin_s=self._margin_s)
        aside = self._put_aside or (self._in_ledger if batch.stands_still else None)
        told = await self._act_on(batch.records, until, aside)
        while batch.is_hasty and (again := worth_another_try(batch.records, told)):
            pause_s = _pause_s([told[at] for at in again])
            due = loop.time() + pause_s
            if due > patient_until or (until is not None and due + BEGIN_S > until):
                break
            await asyncio.sleep(pause_s)
            retried = await self._act_on([batch.records[at] for at in again], until, aside)
            for at, outcomes in zip(again, retried, strict=True):
                told[at] = outcomes
        return told

    async def _act_on(
        self, records: Sequence[Record], until: float | None, aside: PutAside | None
    ) -> list[list[Outcome]]:
        """After the first that fails, the rest of its group is left alone."""
        told: dict[int, list[Outcome]] = {}
        stopped: set[str] = set()
        out_of_reach = ""
        for turn in turns(records, self._concurrency):
            ready = [at for at in turn if records[at].group not in stopped]
            told.update({at: [BEHIND] for at in turn if records[at].group in stopped})
            try:
                if out_of_reach:  # no need to wait for it again
                    raise LedgerUnavailable(out_of_reach)
                answers = await self._ask([records[at] for at in ready], until, aside)
            except LedgerUnavailable as error:
                if not out_of_reach:
                    log.error("ledger_unavailable", records_returned=len(ready), error=error)
                out_of_reach = str(error)
                answers = [[Outcome("busy", reason=out_of_reach)] for _ in ready]
            for at, outcomes in zip(ready, answers, strict=True):
                told[at] = outcomes
                if records[at].group and failed(outcomes):
                    stopped.add(records[at].group)
        return [told[at] for at in range(len(records))]

    async def _ask(self, records: Sequence[Record], until: float | None, aside: PutAside | None) -> list[list[Outcome]]:
        """All events of these records through the flow at once."""
        messages = [Message(body, self._tenant) for record in records for body in record.bodies]
        outcomes = iter(await self._outcomes(messages, until) if messages else ())
        told = []
        for record in records:
            mine = [await _judged(record, body, next(outcomes), aside) for body in record.bodies]
            told.append(mine or [_without_events(record)])
        return told

    async def _outcomes(self, messages: Sequence[Message], until: float | None) -> list[Outcome]:
        """Connections may have ended while the process was frozen. Who uses one first is told so, and asks again."""
        try:
            return await self._engine().process(messages, until)
        except NotRecorded:
            raise
        except LedgerUnavailable:
            return await self._engine().process(messages, until)


async def _judged(record: Record, body: bytes, outcome: Outcome, aside: PutAside | None) -> Outcome:
    """What is no event, or contradicts one, is put aside where there is a place for it."""
    if outcome.status not in UNFIT:
        return outcome
    if outcome.status == "malformed":
        log.warning("record_malformed", record_id=record.id or None, reason=outcome.reason[:REASON_MAX_CHARS])
    if aside is None:
        return outcome
    try:
        kept = aside(body, outcome.reason)
        if inspect.isawaitable(kept):
            await cast(Awaitable[object], kept)
    except Exception as error:
        log.error("record_not_kept", record_id=record.id, reason_class=type(error).__name__)
        return outcome
    return replace(outcome, status="dead")


def _without_events(record: Record) -> Outcome:
    if not record.unfit:
        return EMPTY
    log.warning("record_malformed", record_id=record.id or None, reason=record.unfit)
    return Outcome("malformed", reason=record.unfit)


def worth_another_try(records: Sequence[Record], told: Sequence[Sequence[Outcome]]) -> list[int]:
    """The places of what is not final, unless it is behind something in its group that never will be done."""
    stuck = {
        record.group
        for record, outcomes in zip(records, told, strict=True)
        if any(outcome.status in UNFIT for outcome in outcomes) and record.group
    }
    return [
        at
        for at, (record, outcomes) in enumerate(zip(records, told, strict=True))
        if record.group not in stuck and any(not outcome.final for outcome in outcomes)
    ]


def _pause_s(told: Iterable[Sequence[Outcome]]) -> float:
    """Until the first of them is due. What nobody can tell the time of is left to the trigger."""
    delays = [outcome.after for outcomes in told for outcome in outcomes if outcome.after is not None]
    return max(min(delays, default=math.inf), PAUSE_MIN_S)


def turns(records: Sequence[Record], most: int) -> Iterator[list[int]]:
    """Which records go together, by their places: the first of every group, then the second, and so on; so many at a
    time that all of them begin at once, and none is claimed that has to wait."""
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
    """None: whoever calls gives us all the time in the world. That is a test, not Lambda."""
    ask = getattr(context, "get_remaining_time_in_millis", None)
    left_ms = ask() if callable(ask) else None
    return left_ms / 1000 if isinstance(left_ms, (int, float)) else None
