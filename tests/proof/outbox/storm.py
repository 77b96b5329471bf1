"""Providers that lie, callbacks that come twice, late or never, and two relays that are killed again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.proof.outbox import account, bugs
from tests.proof.outbox.account import Account
from tests.proof.outbox.carrier_process import Plan
from tests.proof.outbox.carriers import Carriers, wait_s
from tests.proof.outbox.listener import Listener
from tests.proof.outbox.parts import (
    LATE_S,
    LATENCY_S,
    PARTS,
    SHORT_WINDOW_S,
    TIMEOUT_S,
    WINDOW_S,
    Part,
    traffic,
)
from tests.proof.outbox.stores import LIVE, Store, add

from semel.testing.simulator import SimulatorProcess

LIED = 0.25  # of the requests, about
SHARE = 0.6  # while there are lies to tell
STALLED = 0.01  # each keeps a place at its provider until the timeout
REFUSED_FIRST = 0.1  # of what the first of the pair is asked
WORDS = {"never": 0, "once": 2, "twice": 4, "late": 2, "out of order": 2}  # callbacks for each message
LOOK_S = 0.1
STUCK_S = 60.0  # without any change
END_S = 1_500.0


def run(
    store: Store,
    home: Path,
    *,
    sends: int,
    within_s: float,
    kill_every_s: float = 1.0,
    kills_max: float = math.inf,
    parts: Sequence[Part] = PARTS,
    timeout_s: float = TIMEOUT_S,
    bug: str = "",
) -> Account:
    """Notifications are added within so many seconds; relays are killed until all are, and little is left to do, or
    until enough are."""
    notifications = traffic(sends, parts)
    dice = Random(sends)
    with SimulatorProcess() as simulator, Listener(store.url) as listener:
        planned = _lies(simulator, parts, sends)
        _callbacks(simulator, parts, listener.url)
        plan = Plan(
            store=store.url,
            simulator=f"http://127.0.0.1:{simulator.port}",
            mail_port=simulator.mail_port,
            diary="",
            parts=tuple(part.name for part in parts),
            timeout_s=timeout_s,
            bug=bug,
        )
        begun = time.monotonic()
        with Carriers(plan, home) as carriers, ThreadPoolExecutor(1) as aside:
            adding = aside.submit(add, store, bugs.added(bug, notifications), within_s)
            while len(carriers.killed) < kills_max and (not adding.done() or _left(store) > sends // 20):
                wait_s(dice, kill_every_s)
                carriers.kill_one(dice)
                assert time.monotonic() - begun < END_S, f"{_left(store)} are left; {carriers.said()}"
            adding.result()
            left = _until_done(store)
            seconds = time.monotonic() - begun
        _until_called(simulator, parts)
        return account.taken(
            notifications,
            store,
            simulator,
            home,
            killed=carriers.killed,
            planned=planned,
            left=left,
            seconds=seconds,
        )


def _lies(simulator: SimulatorProcess, parts: Sequence[Part], sends: int) -> dict[str, int]:
    """All lies to all providers. Returns how often each, by the name that it has in the simulator's book."""
    simulator.answer_after(LATENCY_S)
    simulator.remember_keys_for(WINDOW_S)
    simulator.remember_keys_for(SHORT_WINDOW_S, "brevo")
    weights = sum(part.weight for part in parts)
    planned: dict[str, int] = {}
    for part in parts:
        count = sends * part.weight / weights
        for lie in part.lies:
            times = max(1, round(count * LIED / len(part.lies)))
            if lie.endswith("stall"):
                times = min(times, max(1, round(count * STALLED)))
            if lie == "400" and part.routed:
                times = max(times, round(count * REFUSED_FIRST))
            simulator.lie(lie, part.dialect, times=times, share=SHARE if part.weight else 1.0)
            planned[f"{part.dialect}: {lie}"] = times
    return planned


def _callbacks(simulator: SimulatorProcess, parts: Sequence[Part], url: str) -> None:
    for part in parts:
        simulator.callbacks(part.dialect, part.calls, f"{url}/{part.name}", late_s=LATE_S)


def _left(store: Store) -> int:
    ((left,),) = store.rows(LIVE)
    return int(left)


def _until_done(store: Store) -> int:
    """Until no relay has anything to do any more; or until nothing has changed for long. Returns how many are left."""
    left, changed = _left(store), time.monotonic()
    while left and time.monotonic() - changed < STUCK_S:
        time.sleep(LOOK_S)
        if (now := _left(store)) != left:
            left, changed = now, time.monotonic()
    return left


def _until_called(simulator: SimulatorProcess, parts: Sequence[Part]) -> None:
    """Until every provider has said what it had to say."""
    words = {part.dialect: WORDS[part.calls] for part in parts}
    ends = time.monotonic() + STUCK_S
    while sum(words[one.provider] for one in simulator.phone()) != len(simulator.called()):
        assert time.monotonic() < ends, "the callbacks do not come to an end"
        time.sleep(LOOK_S)
