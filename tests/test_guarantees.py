"""The page of guarantees says what the code says, and every promise on it has a test that is run."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tools.guarantees import page

from semel import Context, Event, Semel
from semel.ports import DataLoss, Traits
from semel.testing.proofs import SHOWN, STALL_PROOFS, proofs_of
from semel.values.effect import (
    CHECK_FIRST,
    EFFECTS,
    FAULTS,
    NO_TRANSACTIONS,
    PARK_PROBED,
    STALLED,
    STALLED_CHECKED,
    WORKER_GONE,
    Cell,
    cell,
    stall,
)
from semel.wiring import every_store

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "guarantees.md"
COLLECT_S = 110

# Prints each test that `make test` or `make proof` would run, with the marks that keep it from running or counting.
COLLECTOR = """
import json, sys, pytest

class Collected:
    def pytest_collection_finish(self, session):
        marks = ("skip", "skipif", "xfail")
        found = [(item.nodeid.partition("[")[0], [mark.name for mark in item.iter_markers() if mark.name in marks])
                 for item in session.items]
        print("\\n" + json.dumps(found))

options = ["--collect-only", "-q", "-q", "-p", "no:cacheprovider", "-m", "not bench"]
sys.exit(pytest.main([*options, *sys.argv[1:]], plugins=[Collected()]))
"""


def named_tests() -> set[str]:
    all_shown = [shown for by_fault in SHOWN.values() for shown in by_fault.values()]
    by_store = {proof.test for shown in all_shown for proofs in shown.by_effect.values() for proof in proofs}
    return by_store | {proof.test for proof in STALL_PROOFS}


def cells() -> Iterator[tuple[Traits, str, str, Cell]]:
    for store in every_store():
        for effect in EFFECTS:
            for fault in FAULTS:
                yield store, effect, fault, cell(effect, store, fault)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(every_store()).rstrip("\n") + "\n", (
        "run python tools/guarantees.py > docs/guarantees.md"
    )


def test_the_reason_of_a_promise_belongs_to_its_fault() -> None:
    for store, effect, fault, found in cells():
        if found is WORKER_GONE[effect]:
            assert fault == "worker killed", store.name
        elif fault == "worker killed" and store.durable:
            assert found is NO_TRANSACTIONS, (store.name, effect)


def test_every_promise_names_a_test() -> None:
    bare = [
        f"{store.name}, {effect}, {fault}"
        for store, effect, fault, found in cells()
        if found.kept and not proofs_of(store, effect, fault)
    ]
    assert bare == []


def test_no_test_is_named_for_what_no_store_says() -> None:
    """A store that was renamed, or that forgets less than before, would leave its tests behind."""
    used = {proof.test for store, effect, fault, _ in cells() for proof in proofs_of(store, effect, fault)}
    assert named_tests() - used - {proof.test for proof in STALL_PROOFS} == set()


def test_every_named_test_is_run() -> None:
    files = sorted({test.partition("::")[0] for test in named_tests()})
    assert [file for file in files if not (ROOT / file).exists()] == []
    ran = subprocess.run(
        [sys.executable, "-c", COLLECTOR, *files], cwd=ROOT, capture_output=True, text=True, timeout=COLLECT_S
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    collected: dict[str, list[str]] = dict(json.loads(ran.stdout.strip().splitlines()[-1]))
    assert named_tests() - set(collected) == set(), "not there"
    assert {test: marks for test in named_tests() if (marks := collected[test])} == {}, "they do not count"


def test_no_two_set_ups_have_the_same_name() -> None:
    names = [store.name for store in every_store()]
    assert len(set(names)) == len(names)


def a_store(loses: DataLoss = DataLoss(), *, durable: bool = True, transactional: bool = True) -> Traits:  # noqa: B008 (frozen)
    return Traits("a store", durable=durable, transactional=transactional, loses=loses)


def words(store: Traits, fault: str) -> list[str]:
    return [cell(effect, store, fault).word for effect in EFFECTS]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_store_that_forgets_nothing_keeps_every_promise(fault: str) -> None:
    store = a_store(DataLoss(failover=""))
    assert words(store, fault) == ["safe", "safe", "safe", "runs again", "listed"]


def test_a_store_that_forgets_says_what_is_lost_and_what_is_doubled() -> None:
    newest = "the newest answers"
    for loses, fault in (
        (DataLoss(store_killed=newest), "store killed"),
        (DataLoss(power_loss=newest), "power loss"),
        (DataLoss(failover=newest), "failover"),
    ):
        assert words(a_store(loses), fault) == ["may lose", "safe in the window", "safe", "runs again", "may double"]
        assert words(a_store(loses), "worker killed") == ["safe", "safe", "safe", "runs again", "listed"]


def test_tokens_that_go_back_fence_nothing() -> None:
    store = a_store(DataLoss(failover="the newest answers", tokens_go_back=True))
    assert cell("fenced", store, "failover").word == "may double"
    assert cell("fenced", store, "store killed").word == "safe", "nothing is forgotten then"


def test_a_store_in_its_worker_dies_with_it() -> None:
    store = a_store(DataLoss(store_killed="everything", tokens_go_back=True), durable=False, transactional=False)
    assert words(store, "worker killed") == [
        "not applicable",
        "safe in the window",
        "may double",
        "runs again",
        "may double",
    ]


def test_what_nothing_takes_the_place_of_has_no_failover() -> None:
    assert set(words(a_store(), "failover")) == {"not applicable"}


def test_an_unknown_effect_or_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="flood"):
        cell("keyed", a_store(), "flood")
    with pytest.raises(ValueError, match="hope"):
        cell("hope", a_store(), "failover")


def test_what_a_stalled_run_can_do_is_part_of_the_guarantee_of_sync_handlers_and_of_park_with_a_probe() -> None:
    risky = {
        (effect, is_async, has_probe)
        for effect in EFFECTS
        for is_async in (False, True)
        for has_probe in ([False, True] if effect == "park" else [False])
        if CHECK_FIRST in stall(effect, is_async, has_probe)
    }
    assert risky == {
        ("keyed", False, False),
        ("retry", False, False),
        ("park", False, False),
        ("park", False, True),
        ("park", True, True),
    }


def test_only_a_check_keeps_the_promise_of_park_with_a_probe_in_a_stall() -> None:
    assert set(STALLED) == set(STALLED_CHECKED) == {*EFFECTS, PARK_PROBED}
    assert [effect for effect, found in STALLED.items() if not found.kept] == [PARK_PROBED]
    assert all(found.kept for found in STALLED_CHECKED.values())


async def _sleeps(event: Event, ctx: Context) -> None:
    await asyncio.sleep(0)


def test_the_guarantee_of_an_app_names_the_check(tmp_path: Path) -> None:
    app = Semel(f"sqlite:///{tmp_path}/semel.db")
    app.on("a", name="sync", effect="retry")(lambda event, ctx: None)
    app.on("a", name="probed", effect="park", probe=lambda event, ctx: None)(_sleeps)
    app.on("a", name="async", effect="retry")(_sleeps)
    lines = {one.handler: str(one) for one in app.guarantees()}
    assert "ctx.check()" in lines["sync"]
    assert "ctx.check()" in lines["probed"]
    assert "ctx.check()" not in lines["async"]
