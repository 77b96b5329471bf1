"""The flow: one event, one effect.

    delivery → event → key → Ledger.claim → handler → Ledger.settle → (the caller acknowledges)

`Engine.process` is the whole of it. Everything is done for a batch; only handlers run one by one. Outcomes are values,
and nothing is acknowledged before it is settled. What a crash between two steps does is the business of the ledger's
lease: whoever claims next sees a takeover, and `core/judgement.py` says what may be done with it for each effect.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import msgspec

from semel.core.act import Act
from semel.core.answers import NO_TIME, answer_to, given_back, is_held_elsewhere, isolated, lost, no_time, refusal
from semel.core.batcher import Batcher
from semel.core.boundaries import Boundary, Observer
from semel.core.delivery_log import DeliveryLog
from semel.core.heartbeat import Heartbeat
from semel.core.isolation import Isolation
from semel.core.judgement import after_run, before_run, needs_isolation
from semel.core.planning import Arrived, Planner
from semel.core.runner import Runner
from semel.core.settling import Settling
from semel.core.steady import steady_s
from semel.ports import Ledger, Telemetry
from semel.values.claim import Busy, Claim, Conflict, DeadLetter, Granted, Settled, Settlement, Stale, Verdict
from semel.values.errors import LedgerUnavailable, NotRecorded
from semel.values.outcome import Done, Ending, Outcome, Reject, Release, Retry, Uncertain, combine

PROBE_MARGIN_S = 10.0  # a call that a holder began right after its last check ends by then: its usual time limit
PROBED_TOO_EARLY = "the holder before may still be acting: its probe is asked again later"
BEGIN_S = 0.1  # less than that is no time to begin anything: the heartbeat looks every 50 ms
WAIT_S = 5.0  # for somebody else's transaction; a deliverer waits longer than that for its answer


class Engine:
    """Runs handlers so that their effect happens once. Lives on one event loop."""

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
        self._random = random
        self._observe = observe
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._claims: Batcher[Claim, Verdict] = Batcher(ledger.claim, self._release_unwanted)
        self._settlements: Batcher[Settlement, bool] = Batcher(ledger.settle)
        self._letters: Batcher[Settlement, bool] = Batcher(ledger.settle)
        self._heartbeat = Heartbeat(ledger.renew)
        self._runner = Runner(ledger, concurrency, self._at, telemetry)
        self._isolation = Isolation()
        self._log = DeliveryLog()
        self._wait: Callable[[Claim, float], Awaitable[None]] | None = getattr(ledger, "wait", None)

    # ------------------------------------------------------------------------------------------------- the flow

    async def process(self, deliveries: Sequence[Arrived], until: float | None = None) -> list[Outcome]:
        """One answer for each delivery, in order. Raises LedgerUnavailable when nothing could be decided.

        `until`: in the loop's time, when the deliverer needs its answers. Handlers are stopped then, and what cannot
        begin any more is busy, without a claim. A thread cannot be stopped: this returns when it has ended, so that
        whoever cannot wait so long takes the process away with it."""
        answers: list[list[Outcome]] = [[] for _ in deliveries]
        acts = self._plan(deliveries, answers, until)
        while acts:
            acts, later = _one_of_each(acts)  # a copy in the same batch is decided after the first has settled
            await self._claim(acts)
            await self._act_on(acts)
            await self._act_on(await self._behind_transactions(acts))
            for act in acts:
                outcome = act.answer or lost(act)
                self._log.ended(act, outcome)
                answers[act.delivery].append(outcome)
            acts = later
        if self._telemetry is not None:
            for parts in answers:
                for part in parts:
                    self._telemetry.answered(part)
        return [combine(parts) for parts in answers]

    def _plan(
        self, deliveries: Sequence[Arrived], answers: list[list[Outcome]], until: float | None = None
    ) -> list[Act]:
        """Decode, route and key. What needs no handler is answered here."""
        acts: list[Act] = []
        for index, delivery in enumerate(deliveries):
            plan = self._planner.plan(delivery)
            if isinstance(plan, Outcome):
                self._log.not_run(plan, delivery.tenant)
                answers[index].append(plan)
                continue
            for number, (handler, claim) in enumerate(zip(plan.handlers, plan.claims, strict=True)):
                # a handler that changes its event changes only its own
                event = msgspec.structs.replace(plan.event) if number else plan.event
                acts.append(Act(index, event, handler, claim, plan.reading, until))
        return acts

    async def _claim(self, acts: Sequence[Act]) -> None:
        """Ask for all leases in one round trip; what is not granted is answered here."""
        acts = self._in_time(acts)
        if not acts:
            return
        self._at(Boundary.BEFORE_CLAIM)
        asked_at, leased_at = self._loop.time(), steady_s()
        asked = self._claims.ask([act.claim for act in acts])
        try:
            verdicts = await asked if self._telemetry is None else await self._in_span("claim", asked)
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:  # answered and cancelled in the same tick
                self._release_unwanted(asked.result())
            raise
        self._at(Boundary.AFTER_CLAIM)
        for act, verdict in zip(acts, verdicts, strict=True):
            match verdict:
                case Granted():
                    act.granted = verdict
                    act.claimed_at = asked_at
                    act.holds_since(leased_at)
                    self._heartbeat.watch(act)
                case Settled() | Busy() | Stale() | Conflict():
                    act.answer = refusal(act, verdict)

    def _in_time(self, acts: Sequence[Act]) -> Sequence[Act]:
        """What may begin, with leases that end with the deliverer's time. The rest is answered here."""
        if not acts or acts[0].until is None:  # it is the same for all of them
            return acts
        left_s = self._left_s(acts[0])
        for act in acts:
            if left_s < BEGIN_S:
                act.answer = no_time(act)
            else:
                act.ends_within(left_s)
        return acts if left_s >= BEGIN_S else []

    def _left_s(self, act: Act) -> float:
        return math.inf if act.until is None else act.until - self._loop.time()

    async def _behind_transactions(self, acts: Sequence[Act]) -> list[Act]:
        """A transaction that holds a key commits soon, or never: its duplicates wait for that and ask once more, so
        that they are told what it came to instead of being sent away. Returns what was asked again."""
        if self._wait is None:
            return []
        busy = [act for act in acts if act.handler.effect == "transaction" and is_held_elsewhere(act)]
        if not busy or (left_s := self._left_s(busy[0])) < BEGIN_S:
            return []
        waits = [self._wait(act.claim, min(act.lease_s, WAIT_S, left_s)) for act in busy]
        if any(await asyncio.gather(*waits, return_exceptions=True)):
            return []  # the store cannot tell: they stay busy
        answers = [act.answer for act in busy]
        for act in busy:
            act.answer = None
        try:
            await self._claim(busy)
        except LedgerUnavailable:
            for act, answer in zip(busy, answers, strict=True):
                act.answer = answer
            return []
        return busy

    async def _act_on(self, acts: Sequence[Act]) -> None:
        """Run what was granted and settle it. An event that may kill its process is given back first, and is
        claimed and run again after the rest of its batch."""
        granted = [act for act in acts if act.granted is not None]
        if not granted:
            return
        suspects = {
            act: act.granted.attempt >= act.handler.max_attempts  # its last attempt
            for act in granted
            if act.granted is not None and act.granted.takeover and needs_isolation(act.handler, act.granted)
        }
        settling = self._settling(early=len(granted) > 1)
        try:
            if suspects:
                await self._give_back(list(suspects))
                granted = [act for act in granted if act.granted is not None]
            await self._runner.run_all(granted, partial(self._run, settling))
            await settling.done()
            if suspects:
                await self._runner.run_all(list(suspects), partial(self._run_isolated, suspects))
        except BaseException:
            self._abandon([*granted, *suspects])
            raise
        finally:
            for act in acts:
                self._heartbeat.forget(act)

    async def _run_isolated(self, is_last: Mapping[Act, bool], act: Act) -> None:
        """Run an event that may kill its process, unless another one of its handler runs: then it comes again."""
        with self._isolation.slot(act.handler.name, is_last[act]) as free:
            if not free:
                act.answer = isolated(act)
                return
            await self._claim([act])
            if act.granted is not None:
                settling = self._settling(early=False)
                await self._run(settling, act)
                await settling.done()  # before the next one begins: its death must not undo this

    def _settling(self, early: bool) -> Settling:
        return Settling(self._settlements, self._letters, self._at, self._telemetry, early)

    async def _run(self, settling: Settling, act: Act) -> None:
        """The handler of one granted act, and its settle under way. In a transaction both happen together."""
        granted = act.granted
        assert granted is not None
        if self._telemetry is not None:
            self._telemetry.granted(granted)
        ending = before_run(act.handler, granted)
        if ending is None and self._left_s(act) < BEGIN_S:
            ending = Release(0.0, NO_TIME)  # it waited behind others
        if ending is None and granted.takeover and act.handler.probe is not None:
            ending = await self._probe(act)
        if ending is None and not act.lost:
            try:
                ran = await self._runner.run(act, _settlement)
            except NotRecorded as error:  # it was: what that means is decided when its lease has lapsed
                act.stop(str(error), lost=True)
                return
            except LedgerUnavailable as error:  # its transaction was not committed: as if it had not been tried
                await self._give_back([act])
                act.answer = given_back(act, str(error))
                return
            act.result, act.cause = ran.result, ran.ending
            if ran.settled and isinstance(ran.ending, Done):
                act.answer = answer_to(act, ran.ending)
                return
            ending = after_run(act.handler, granted, ran.ending, self._random)
        if ending is not None and not act.lost:
            settling.add(act, _settlement(act, ending))

    async def _probe(self, act: Act) -> Ending | None:
        """Ask the user's probe what the vanished holder did. None: it did not act, so the handler may run.

        That it has not acted yet says little while a call of its own may be under way. So the probe is asked a second
        time, when such a call has ended, and only then believed. This run holds the lease meanwhile."""
        ending = await self._runner.probe(act)
        wait_s = act.claimed_at + min(act.handler.lease_s, PROBE_MARGIN_S) - self._loop.time()
        if ending is not None or act.lost or wait_s <= 0:
            return ending
        if self._left_s(act) < wait_s + BEGIN_S:
            assert act.granted is not None
            if act.granted.attempt >= act.handler.max_attempts:  # a short time limit never leaves enough
                return Uncertain("the holder before vanished, and its deliverer has no time for a second look")
            act.stop(PROBED_TOO_EARLY, lost=True)  # its lease lapses: this look counts, so that they end
            return None
        await asyncio.sleep(wait_s)
        return None if act.lost else await self._runner.probe(act)

    # ------------------------------------------------------------------------------------------------- its parts

    def _release_unwanted(self, verdicts: list[Verdict]) -> None:
        """Whoever asked was cancelled before the answer came: leases go back unused."""
        unwanted = [Settlement(verdict.lease, Release()) for verdict in verdicts if isinstance(verdict, Granted)]
        if unwanted:
            _ignore_failure(self._settlements.ask(unwanted))

    async def _give_back(self, acts: Sequence[Act]) -> None:
        """Return leases unused, as if they had not been asked for."""
        if not acts:
            return
        unused = [Settlement(act.granted.lease, Release()) for act in acts if act.granted is not None]
        for act in acts:
            self._heartbeat.forget(act)
            act.granted = None
        await self._settlements.ask(unused)

    def _abandon(self, acts: Sequence[Act]) -> None:
        """The batch ends early. The ledger is told without waiting for it: what has not run goes back unused, what was
        interrupted may be tried again, and where that is not allowed it is in doubt."""
        endings: list[Settlement] = []
        for act in acts:
            if act.granted is None or act.lost or act.settling or act.answer is not None:
                continue
            if not act.started:
                endings.append(_settlement(act, Release()))
            elif act.handler.effect == "park":
                endings.append(_settlement(act, Uncertain("cancelled while the handler ran")))
            else:
                endings.append(_settlement(act, Retry(0, "cancelled while the handler ran")))
        for lane, some in (
            (self._settlements, [one for one in endings if one.letter is None]),
            (self._letters, [one for one in endings if one.letter is not None]),
        ):
            if some:
                _ignore_failure(lane.ask(some))

    async def _in_span(self, step: str, asked: asyncio.Future[list[Verdict]]) -> list[Verdict]:
        assert self._telemetry is not None
        with self._telemetry.span(step):
            return await asked

    def _at(self, boundary: Boundary) -> None:
        if self._observe is not None:
            self._observe(boundary.value)


def _one_of_each(acts: list[Act]) -> tuple[list[Act], list[Act]]:
    """The first act of each key and each subject, and the others: in order, as if they had come one after the other."""
    if len(acts) == 1:
        return acts, []
    taken: set[bytes] = set()
    first: list[Act] = []
    later: list[Act] = []
    for act in acts:
        claim = act.claim
        mine = [claim.digest]
        if claim.aliases or claim.order is not None:
            mine += [alias.digest for alias in claim.aliases]
            mine += [claim.order.subject] if claim.order is not None else []
        (first if taken.isdisjoint(mine) else later).append(act)
        taken.update(mine)
    return first, later


def _settlement(act: Act, ending: Ending) -> Settlement:
    assert act.granted is not None
    letter = None
    if isinstance(ending, (Reject, Uncertain)):
        letter = DeadLetter(act.event.raw, act.granted.attempt, act.reading)
    return Settlement(act.granted.lease, ending, letter)


def _ignore_failure(asked: asyncio.Future[list[bool]]) -> None:
    """A lease that could not be given back lapses by itself."""
    asked.add_done_callback(lambda done: None if done.cancelled() else done.exception())
