"""Runs the handlers of an event so that their effect happens once.

    delivery → event → key → Ledger.claim → handler → Ledger.settle → (the caller acknowledges)

`Engine.process` is the whole flow. Every step works on a batch; only handlers run one by one. Outcomes are values, and
no delivery is acknowledged before its run is settled. A crash between two steps leaves a lease that expires: the next
claim of the key is a takeover, and `core/effect_policy.py` decides for each effect what may be done with it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from semel.core.batcher import Batcher
from semel.core.clock import steady_s
from semel.core.crash_points import Boundary, Observer
from semel.core.delivery_log import DeliveryLog
from semel.core.effect_policy import Failed, after_run, before_run, needs_isolation
from semel.core.handler_run import HandlerRun, Isolation
from semel.core.heartbeat import Heartbeat
from semel.core.routing import Plan, Planner
from semel.core.runner import SETTLE_RETRY_S, Runner, RunResult, run_concurrently
from semel.ports import Arrived, Ledger, Telemetry, Waits
from semel.values.claim import Busy, Claim, Conflict, Granted, Lease, Settled, Settlement, Stale, Verdict
from semel.values.errors import LedgerUnavailable, NotRecorded, SemelError
from semel.values.outcome import Done, Ending, Outcome, Reject, Release, Retry, Uncertain, combine
from semel.values.strict_json import decode_any

HELD = "held elsewhere, or not due yet"
ISOLATED = "two of its processes died: it waits until no other such event of its handler runs"
WAITING = (HELD, ISOLATED)  # mostly over soon: the delivery is retried early, and later each time
NO_TIME = "no time is left to begin"
PROBED_TOO_EARLY = "the holder before may still be acting: its probe is asked again later"

NOT_COMMITTED_S = 1.0  # until a retry: the cause (another handler of the group, a deadlock) is mostly over by then
PROBE_MARGIN_S = 10.0  # a call that a holder began right after its last check ends by then: its usual time limit
BEGIN_S = 0.1  # a run with less time left does not start: the heartbeat looks every 50 ms
WAIT_S = 5.0  # for the transaction of another process; senders wait longer than that for their answer
NO_TOKEN = 0  # of a run without the ledger: lower than every grant, so a resource that checks tokens refuses it
UNRECORDED_RETRY_S = 5.0  # until a run without the ledger is retried


class Engine:
    """Lives on one event loop."""

    def __init__(
        self,
        ledger: Ledger,
        planner: Planner,
        *,
        concurrency: int,
        random: Callable[[], float],
        observe: Observer | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._planner = planner
        self._concurrency = concurrency
        self._random = random
        self._observe = observe
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._claims: Batcher[Claim, Verdict] = Batcher(ledger.claim, self._release_unwanted)
        self._settlements: Batcher[Settlement, bool] = Batcher(ledger.settle)
        # Dead letters may have to be written to another store first. If that store is slow, no other settlement waits.
        self._dead_letters: Batcher[Settlement, bool] = Batcher(ledger.settle)
        self._heartbeat = Heartbeat(ledger.renew)
        self._runner = Runner(ledger, concurrency, observe, telemetry)
        self._isolation = Isolation()
        self._log = DeliveryLog()
        self._wait = ledger.wait if isinstance(ledger, Waits) else None

    # ------------------------------------------------------------------------------------------------- the flow

    async def process(self, deliveries: Sequence[Arrived], until: float | None = None) -> list[Outcome]:
        """Return one outcome for each delivery, in order. Raises LedgerUnavailable when nothing could be decided.

        `until`, in the loop's time, is when the caller needs its outcomes. Handlers are stopped then. A run that cannot
        start in time is busy, without a claim. A thread cannot be stopped: this method returns when the thread has
        ended, so a caller that cannot wait that long must end the process."""
        answers: list[list[Outcome]] = [[] for _ in deliveries]
        runs = self._plan(deliveries, answers, until)
        while runs:
            runs, repeats = _split_repeats(runs)  # a copy in the same batch is decided after the first has settled
            await self._claim(runs)
            await self._run_and_settle(runs)
            if self._wait is not None and (claimed := await self._claim_after_transactions(runs)):
                await self._run_and_settle(claimed)
            for run in runs:
                outcome = run.answer or _lease_lost(run)
                self._log.ended(run, outcome)
                answers[run.delivery].append(outcome)
            runs = repeats
        if self._telemetry is not None:
            for parts in answers:
                for part in parts:
                    self._telemetry.answered(part)
        return [combine(parts) for parts in answers]

    def _plan(
        self, deliveries: Sequence[Arrived], answers: list[list[Outcome]], until: float | None = None
    ) -> list[HandlerRun]:
        """Decode, route and key the deliveries. A delivery without a handler is answered here."""
        runs: list[HandlerRun] = []
        for index, delivery in enumerate(deliveries):
            plan = self._planner.plan(delivery)
            if isinstance(plan, Outcome):
                self._log.not_run(plan, delivery.tenant)
                answers[index].append(plan)
                continue
            for number, (handler, claim) in enumerate(zip(plan.handlers, plan.claims, strict=True)):
                # a handler that changes its event changes only its own copy
                event = msgspec.structs.replace(plan.event) if number else plan.event
                runs.append(HandlerRun(index, event, handler, claim, plan.decode_options, until))
        return runs

    async def _claim(self, runs: Sequence[HandlerRun]) -> None:
        """Claim all leases in one round trip. A run that gets no lease is answered here."""
        if not runs:
            return
        if runs[0].until is not None:  # the same for all of them
            left_s = self._left_s(runs[0])
            if left_s < BEGIN_S:
                for run in runs:
                    run.answer = run.outcome("busy", reason=NO_TIME, after=0.0)
                return
            for run in runs:
                run.shorten_lease(left_s)
        if self._observe is not None:
            self._observe(Boundary.BEFORE_CLAIM.value)
        asked_at, leased_at = self._loop.time(), steady_s()
        reply = self._claims.ask([run.claim for run in runs])
        try:
            if self._telemetry is None:
                verdicts = await reply
            else:
                with self._telemetry.span("claim"):
                    verdicts = await reply
        except asyncio.CancelledError:
            if not reply.cancelled() and reply.exception() is None:  # answered and cancelled in the same tick
                self._release_unwanted(reply.result())
            raise
        if self._observe is not None:
            self._observe(Boundary.AFTER_CLAIM.value)
        for run, verdict in zip(runs, verdicts, strict=True):
            match verdict:
                case Granted():
                    run.granted = verdict
                    run.claimed_at = asked_at
                    run.start_lease(leased_at)
                    self._heartbeat.watch(run)
                case Settled() | Busy() | Stale() | Conflict():
                    run.answer = refusal(run, verdict)

    async def _claim_after_transactions(self, runs: Sequence[HandlerRun]) -> list[HandlerRun]:
        """Wait for transactions that hold a key, then claim it once more. Returns the runs that were claimed again.

        Such a transaction commits soon, or never. Its duplicates get its result, and need no redelivery."""
        assert self._wait is not None
        busy = [run for run in runs if run.handler.effect == "transaction" and _is_held_elsewhere(run)]
        if not busy or (left_s := self._left_s(busy[0])) < BEGIN_S:
            return []
        waits = [self._wait(run.claim, min(run.lease_s, WAIT_S, left_s)) for run in busy]
        if any(await asyncio.gather(*waits, return_exceptions=True)):
            return []  # the store cannot wait for it now: they stay busy
        answers = [run.answer for run in busy]
        for run in busy:
            run.answer = None
        try:
            await self._claim(busy)
        except LedgerUnavailable:
            for run, answer in zip(busy, answers, strict=True):
                run.answer = answer
            return []
        return busy

    async def _run_and_settle(self, runs: Sequence[HandlerRun]) -> None:
        """Run the granted ones and settle them.

        The lease of an event that may kill its process is released first. It is claimed and run again after the rest
        of its batch."""
        granted = [run for run in runs if run.granted is not None]
        if not granted:
            return
        suspects = {
            run: run.granted.attempt >= run.handler.max_attempts  # its last attempt
            for run in granted
            if run.granted is not None and run.granted.takeover and needs_isolation(run.handler, run.granted)
        }
        settling = self._new_batch(early=len(granted) > 1)
        try:
            if suspects:
                await self._release(list(suspects))
                granted = [run for run in granted if run.granted is not None]
            await run_concurrently(granted, partial(self._run_one, settling), self._concurrency)
            await settling.finish()
            if suspects:
                await run_concurrently(list(suspects), partial(self._run_isolated, suspects), self._concurrency)
        except BaseException:
            self._settle_interrupted([*granted, *suspects])
            raise
        finally:
            for run in runs:
                self._heartbeat.forget(run)

    async def _run_isolated(self, is_last: Mapping[HandlerRun, bool], run: HandlerRun) -> None:
        """Run an event that may kill its process. If another one of its handler runs, it is retried later."""
        with self._isolation.slot(run.handler.name, is_last[run]) as free:
            if not free:
                run.answer = run.outcome("busy", reason=ISOLATED, after=run.handler.lease_s)  # no attempt is counted
                return
            await self._claim([run])
            if run.granted is not None:
                settling = self._new_batch(early=False)
                await self._run_one(settling, run)
                await settling.finish()  # before the next one begins: its death must not undo this

    async def _run_one(self, settling: SettlementBatch, run: HandlerRun) -> None:
        """Run the handler of one granted run and add its settlement. In a transaction both are committed together."""
        granted = run.granted
        assert granted is not None
        if self._telemetry is not None:
            self._telemetry.granted(granted)
        ending = before_run(run.handler, granted)
        if ending is None and self._left_s(run) < BEGIN_S:
            ending = Release(0.0, NO_TIME)  # it waited behind others
        if ending is None and granted.takeover and run.handler.probe is not None:
            ending = await self._probe(run)
        if ending is None and not run.lost:
            try:
                result = await self._runner.invoke(run)
            except NotRecorded as error:  # the effect happened: the next claim after this lease decides what that means
                run.stop(str(error), lost=True)
                return
            except LedgerUnavailable as error:  # its transaction was not committed: as if it had not run
                await self._release([run])
                run.answer = run.outcome("busy", reason=str(error), after=NOT_COMMITTED_S)
                return
            run.result, run.cause = result.value, result.ending
            if result.settled and isinstance(result.ending, Done):
                run.answer = settled_outcome(run, result.ending)
                return
            ending = after_run(run.handler, granted, result.ending, self._random)
        if ending is not None and not run.lost:
            settling.add(run, run.settlement(ending))

    async def _probe(self, run: HandlerRun) -> Ending | None:
        """Ask the user's probe what the vanished holder did. None: it did not act, so the handler may run.

        A first "not done" proves little, because a call of the vanished holder may still be under way. So the probe is
        asked a second time, when such a call has ended. This run holds the lease meanwhile."""
        ending = await self._runner.probe(run)
        wait_s = run.claimed_at + min(run.handler.lease_s, PROBE_MARGIN_S) - self._loop.time()
        if ending is not None or run.lost or wait_s <= 0:
            return ending
        if self._left_s(run) < wait_s + BEGIN_S:
            assert run.granted is not None
            if run.granted.attempt >= run.handler.max_attempts:  # a short time limit never leaves enough
                return Uncertain("the holder before vanished, and its deliverer has no time for a second look")
            run.stop(PROBED_TOO_EARLY, lost=True)  # its lease expires and counts as an attempt, so this ends
            return None
        await asyncio.sleep(wait_s)
        return None if run.lost else await self._runner.probe(run)

    async def run_without_ledger(self, plan: Plan) -> Outcome:
        """Run the handlers of an event without a claim, one after the other, on routes that fail open.

        An effect may happen twice. Nothing is recorded, so no outcome is final that only the ledger could keep: an
        event that does not succeed is retried by its source."""
        outcomes: list[Outcome] = []
        for handler, claim in zip(plan.handlers, plan.claims, strict=True):
            run = HandlerRun(0, plan.event, handler, claim, plan.decode_options)
            run.recorded = False
            run.granted = Granted(Lease(claim, NO_TOKEN), attempt=1, takeover=False, age_ms=0)
            run.lease_ends = run.renew_at = math.inf  # there is no lease to renew
            run.effects_until = math.inf if handler.timeout_s is None else steady_s() + handler.timeout_s
            self._heartbeat.watch(run)  # it stops the handler at its timeout
            try:
                result = await self._runner.invoke(run)
            finally:
                self._heartbeat.forget(run)
            outcomes.append(_unrecorded_outcome(run, result))
        return combine(outcomes)

    # ------------------------------------------------------------------------------------------------- its parts

    def _left_s(self, run: HandlerRun) -> float:
        return math.inf if run.until is None else run.until - self._loop.time()

    def _new_batch(self, early: bool) -> SettlementBatch:
        return SettlementBatch(self._settlements, self._dead_letters, self._observe, self._telemetry, early)

    def _release_unwanted(self, verdicts: list[Verdict]) -> None:
        """The caller was cancelled before its verdicts came: return its leases unused."""
        unwanted = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        if unwanted:
            _ignore_failure(self._settlements.ask(unwanted))

    async def _release(self, runs: Sequence[HandlerRun]) -> None:
        """Return leases unused, as if they had not been claimed."""
        if not runs:
            return
        unused = [Settlement(run.granted.lease, Release()) for run in runs if run.granted is not None]
        for run in runs:
            self._heartbeat.forget(run)
            run.granted = None
        await self._settlements.ask(unused)

    def _settle_interrupted(self, runs: Sequence[HandlerRun]) -> None:
        """The batch ends early. Send its settlements to the ledger without waiting for the reply.

        A run that has not started is released. An interrupted one may be retried. With effect "park" that is not
        allowed, so it is uncertain."""
        endings: list[Settlement] = []
        for run in runs:
            if run.granted is None or run.lost or run.settling or run.answer is not None:
                continue
            if not run.started:
                endings.append(run.settlement(Release()))
            elif run.handler.effect == "park":
                endings.append(run.settlement(Uncertain("cancelled while the handler ran")))
            else:
                endings.append(run.settlement(Retry(0, "cancelled while the handler ran")))
        for lane, group in (
            (self._settlements, [settlement for settlement in endings if settlement.dead_letter is None]),
            (self._dead_letters, [settlement for settlement in endings if settlement.dead_letter is not None]),
        ):
            if group:
                _ignore_failure(lane.ask(group))


class SettlementBatch:
    """Settles the runs of one batch. Runs that end in one loop tick share a round trip, and none waits for a slow run.

    A run whose settlement is refused gets no answer: another process has its lease now."""

    def __init__(
        self,
        lane: Batcher[Settlement, bool],
        dead_letters: Batcher[Settlement, bool],
        observe: Observer | None,
        telemetry: Telemetry | None,
        early: bool,
    ) -> None:
        """`dead_letters` is the lane of settlements with a dead letter. `early`: settle finished runs while others
        still run; a lone run does not need it."""
        self._lane = lane
        self._dead_letters = dead_letters
        self._observe = observe
        self._telemetry = telemetry
        self._early = early
        self._loop = asyncio.get_running_loop()
        self._next: list[tuple[HandlerRun, Settlement]] = []
        self._under_way: list[tuple[list[tuple[HandlerRun, Settlement]], asyncio.Future[list[bool]]]] = []

    def add(self, run: HandlerRun, settlement: Settlement) -> None:
        """Settle soon, with everything else that ends in this tick."""
        if self._observe is not None:
            self._observe(Boundary.BEFORE_SETTLE.value)
        run.settling = True
        if self._early and not self._next:
            self._loop.call_soon(self._send)
        self._next.append((run, settlement))

    async def finish(self) -> None:
        """Wait until every added run is settled and answered, or refused. Raises LedgerUnavailable if that fails."""
        self._send()
        while self._under_way:
            group, reply = self._under_way.pop()
            try:
                if self._telemetry is None:
                    kept = await reply
                else:
                    with self._telemetry.span("settle"):
                        kept = await reply
            except SemelError:  # also the ConfigError of a server that was changed meanwhile: the effect has happened
                await self._retry(group)
                continue
            if self._observe is not None:
                self._observe(Boundary.AFTER_SETTLE.value)
            for (run, settlement), is_current in zip(group, kept, strict=True):
                if is_current:
                    run.answer = settled_outcome(run, settlement.outcome)
                elif self._telemetry is not None:
                    self._telemetry.refused(run.handler.name)

    def _send(self) -> None:
        if not self._next:
            return
        group, self._next = self._next, []
        if any(settlement.dead_letter is not None for _, settlement in group):
            self._ask(self._dead_letters, [pair for pair in group if pair[1].dead_letter is not None])
            group = [pair for pair in group if pair[1].dead_letter is None]
        if group:
            self._ask(self._lane, group)

    def _ask(self, lane: Batcher[Settlement, bool], group: list[tuple[HandlerRun, Settlement]]) -> None:
        self._under_way.append((group, lane.ask([settlement for _, settlement in group])))

    async def _retry(self, group: list[tuple[HandlerRun, Settlement]]) -> None:
        """Repeat a failed round trip: settling is idempotent on its token."""
        now = steady_s()
        for run, settlement in group:
            # at most for the time of one lease, even if it can still be renewed: only the dead-letter store may be down
            run.settles_until = run.settles_until or now + settlement.lease.claim.lease_ms / 1000
        await asyncio.sleep(SETTLE_RETRY_S)
        if steady_s() > min(min(run.lease_ends, run.settles_until) for run, _ in group):
            raise NotRecorded("the outcome could not be recorded in time; the event will be delivered again")
        self._next = [*group, *self._next]
        self._send()


def refusal(run: HandlerRun, verdict: Settled | Busy | Stale | Conflict) -> Outcome:
    """The outcome of a run that the ledger granted no lease."""
    match verdict:
        case Settled(Done(result)):
            return run.outcome("duplicate", result=None if result == b"null" else decode_any(result))
        case Settled(Reject() as rejected):
            return run.outcome("duplicate", reason=f"dead: {rejected.reason}")
        case Settled(Uncertain(reason)):
            return run.outcome("duplicate", reason=f"uncertain: {reason}")
        case Busy(after_ms):
            return run.outcome("busy", reason=HELD, after=after_ms / 1000)
        case Stale():
            return run.outcome("stale", reason="a newer event of the subject was applied")
        case Conflict():
            return run.outcome("conflict", reason="the key is known with another payload")
    raise TypeError(f"{verdict!r} is no refusal")


def settled_outcome(run: HandlerRun, ending: Ending) -> Outcome:
    """The outcome of a run whose lease was settled with this ending."""
    match ending:
        case Done():
            return run.outcome("done", result=run.result)
        case Retry():
            return run.outcome("retry", reason=ending.reason, after=ending.after or 0.0)
        case Reject():
            return run.outcome("dead", reason=ending.reason)
        case Uncertain(reason):
            return run.outcome("uncertain", reason=reason)
        case Release(after, reason):
            return run.outcome("busy", reason=reason, after=after)


def _unrecorded_outcome(run: HandlerRun, result: RunResult) -> Outcome:
    """The outcome of a run without the ledger. A reject is a retry too, because no dead letter can be stored."""
    match result.ending:
        case Done():
            return run.outcome("done", result=result.value, reason="without the ledger")
        case Retry() | Release() as ending:
            return run.outcome("retry", reason=ending.reason, after=ending.after or UNRECORDED_RETRY_S)
        case Reject(reason=reason):
            reason = f"rejected without a ledger: {reason}"
            return run.outcome("retry", reason=reason, after=UNRECORDED_RETRY_S)
        case Failed(reason_class=reason_class):
            return run.outcome("retry", reason=reason_class, after=UNRECORDED_RETRY_S)


def _lease_lost(run: HandlerRun) -> Outcome:
    """Another process has the lease, or will have it. The redelivery is answered with the outcome of that process."""
    return run.outcome("busy", reason=run.stopped or "the lease was taken over", after=run.handler.lease_s)


def _is_held_elsewhere(run: HandlerRun) -> bool:
    """Whether its claim was refused as busy. False for a run that returned NotNow, or that waits for isolation."""
    return run.answer is not None and run.answer.status == "busy" and run.answer.reason == HELD and not run.started


def _split_repeats(runs: list[HandlerRun]) -> tuple[list[HandlerRun], list[HandlerRun]]:
    """The first run of each key and each subject, and the others, in order: as if they had come one after the other."""
    if len(runs) == 1:
        return runs, []
    taken: set[bytes] = set()
    first: list[HandlerRun] = []
    repeats: list[HandlerRun] = []
    for run in runs:
        claim = run.claim
        digests = [claim.digest]
        if claim.aliases or claim.order is not None:
            digests += [alias.digest for alias in claim.aliases]
            digests += [claim.order.subject] if claim.order is not None else []
        (first if taken.isdisjoint(digests) else repeats).append(run)
        taken.update(digests)
    return first, repeats


def _ignore_failure(reply: asyncio.Future[list[bool]]) -> None:
    """A lease that could not be released expires by itself."""
    reply.add_done_callback(lambda done: None if done.cancelled() else done.exception())
