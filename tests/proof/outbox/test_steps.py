"""A relay that dies at any step: what comes of its notification is predicted, and so it comes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.forking import START, preload
from tests.proof.outbox.step_process import Asked, Plan, work
from tests.proof.outbox.steps import Case, every_case
from tests.proof.outbox.stores import Store, add

from semel.core.relay import RelayBoundary
from semel.testing.crash import landing
from semel.testing.simulator import SimulatorProcess
from semel.values.notification import Notification

SOON_S = 120.0
LOOK_S = 0.1
WAITS_PER_SECOND = 1.05  # the second of a batch has its slot nearly a second after the first
AT_ONCE = 6  # relays that are dying
LAPSE = "update {}dispatch set due_ms = 0 where taken"  # as if the leases of the dead had come to their end
STATES = "select id, state, reason, possible_duplicates from {}notification"
ATTEMPTS = "select id, outcome from {}attempt where outcome <> '' and outcome <> 'released' order by ended_ms, token"
preload("tests.proof.outbox.test_steps", "semel.ledgers.postgres", "aiohttp")


def notification(number: int, case: Case, second: bool = False) -> Notification:
    name = f"case-{number}"
    return Notification(
        key=f"{name}-b" if second else name,
        kind="step",
        recipient=f"+4900{number}",
        channel="sms",
        body=f"{name}-b" if second else name,
        provider=name,
        policy=case.policy,
    )


def asked(number: int, case: Case) -> Asked:
    return Asked(f"case-{number}", case.kind, {"per_second": WAITS_PER_SECOND} if case.waits else {})


class Stage:
    """One outbox and one simulator for all cases: each has a provider, and a recipient, of its own."""

    def __init__(self, store: Store, simulator: SimulatorProcess, home: Path) -> None:
        self._home = home
        self._simulator = simulator
        self._plan = Plan(store.url, f"http://127.0.0.1:{simulator.port}", ())

    def die(self, cases: Sequence[Case], nth: int) -> None:
        """A relay for each case, at its nth death; a few at a time."""
        dying = [(number, case) for number, case in enumerate(cases) if len(case.deaths) > nth]
        for at in range(0, len(dying), AT_ONCE):
            doomed = [(number, case, self._doomed(number, case, nth)) for number, case in dying[at : at + AT_ONCE]]
            for number, case, process in doomed:
                process.join(SOON_S)
                code = process.exitcode
                process.kill()
                assert code == -signal.SIGKILL, f"{case}: it ended with {code}; {self.said()}"
                assert self._marker(number, nth).read_text() == landing(*case.deaths[nth]), f"inconclusive: {case}"

    def _doomed(self, number: int, case: Case, nth: int) -> BaseProcess:
        step, hit = case.deaths[nth]
        marker = str(self._marker(number, nth))
        doomed = replace(self._plan, asked=(asked(number, case),), step=step, hit=hit, marker=marker)
        return start(doomed, self._home / "said")

    def _marker(self, number: int, nth: int) -> Path:
        return self._home / f"landed-{number}-{nth}"

    def recovers(self, cases: Sequence[Case]) -> BaseProcess:
        everything = tuple(asked(number, case) for number, case in enumerate(cases))
        return start(replace(self._plan, asked=everything), self._home / "said")

    def said(self) -> str:
        return (self._home / "said").read_text("utf-8", "replace")[-3000:]


def start(plan: Plan, said: Path) -> BaseProcess:
    process = START.Process(target=_work, args=(plan, said), daemon=True)
    process.start()
    return process


def _work(plan: Plan, said: Path) -> None:
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    asyncio.run(work(plan))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("on", "every"),
    [("sqlite", 1), ("postgres", 4), pytest.param("postgres", 1, marks=pytest.mark.long)],
)
def test_whatever_step_a_relay_dies_at_its_notification_comes_to_what_was_predicted(
    store: Store, tmp_path: Path, every: int
) -> None:
    cases = every_case()[::every]
    assert {step.value for step in RelayBoundary} <= {step for case in cases for step, _ in case.deaths}
    said = [notification(number, case) for number, case in enumerate(cases)]
    seconds = {number: notification(number, case, True) for number, case in enumerate(cases) if case.second}
    add(store, [*said, *seconds.values()])
    with SimulatorProcess() as simulator:
        for one, case in zip(said, cases, strict=True):
            if case.lie:
                simulator.lie(case.lie, case.kind, to=one.recipient)
        stage = Stage(store, simulator, tmp_path)
        for nth in range(max(len(case.deaths) for case in cases)):
            stage.die(cases, nth)
            for number, one in seconds.items():
                waited = not cases[number].waits or _state(store, one) == "pending"
                assert waited, f"inconclusive: {cases[number]}: the second one did not wait for its slot"
            store.rows(LAPSE)
        simulator.tell_the_truth()
        recovering = stage.recovers(cases)
        said += seconds.values()
        cases += [replace(case, evidence=case.second) for case in cases if case.second]
        try:
            _until_over(store, said, cases, stage)
        finally:
            recovering.kill()
        texts = Counter(got.text for got in simulator.phone())
    _compare(store, said, cases, [texts[one.key] for one in said])


def _state(store: Store, one: Notification) -> str:
    return next(str(state) for id, state, *_ in store.rows(STATES) if bytes(id) == one.id)


def _until_over(store: Store, said: Sequence[Notification], cases: Sequence[Case], stage: Stage) -> None:
    ends = time.monotonic() + SOON_S
    wanted = {one.id: case.state for one, case in zip(said, cases, strict=True)}
    while wrong := {id: state for id, state, *_ in store.rows(STATES) if wanted[bytes(id)] != state}:
        if time.monotonic() > ends:
            names = [f"{case}: {wrong[one.id]}" for one, case in zip(said, cases, strict=True) if one.id in wrong]
            pytest.fail(f"{len(names)} did not come to what was predicted: {names[:5]}; {stage.said()}")
        time.sleep(LOOK_S)


def _compare(store: Store, said: Sequence[Notification], cases: Sequence[Case], arrived: Sequence[int]) -> None:
    evidence: dict[bytes, list[str]] = {one.id: [] for one in said}
    for id, outcome in store.rows(ATTEMPTS):
        evidence[bytes(id)].append(outcome)
    possible = {bytes(id): count for id, _, _, count in store.rows(STATES)}
    for one, case, got in zip(said, cases, arrived, strict=True):
        assert tuple(evidence[one.id]) == case.evidence, f"{case}: {evidence[one.id]}"
        assert (got, possible[one.id]) == (case.got, case.possible), f"{case}: arrived {got} times"
