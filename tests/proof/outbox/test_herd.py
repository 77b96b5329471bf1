"""A provider is down, thousands of messages fail and back off; when it comes back they do not come all at once."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.proof.outbox import account, rates
from tests.proof.outbox.account import Account
from tests.proof.outbox.carrier_process import Plan
from tests.proof.outbox.carriers import Carriers
from tests.proof.outbox.stores import Store, add

from semel.testing.simulator import SimulatorProcess
from semel.values.delivery_state import ATTEMPTS_MAX
from semel.values.notification import Notification

PROVIDER = "telnyx"
TENANT = "north"
SOON_S = 300.0
LOOK_S = 0.2
FAILED = "select count(*) from {}attempt where outcome = 'refused'"
SENT = "select count(*) from {}notification where state = 'accepted'"


@contextmanager
def nobody_listens() -> Iterator[SimulatorProcess]:
    """Its port is kept, and refuses connections, until the simulator starts there."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        simulator = SimulatorProcess(kept.getsockname()[1])
        simulator.port = kept.getsockname()[1]
        yield simulator
        simulator.stop()


@contextmanager
def only_503() -> Iterator[SimulatorProcess]:
    """Which its contract says to prove that nothing was accepted."""
    with SimulatorProcess() as simulator:
        simulator.lie("503", PROVIDER, times=10**9)
        yield simulator


COMES_BACK: dict[str, Callable[[SimulatorProcess], None]] = {
    "nobody listens": SimulatorProcess.start,
    "only 503": SimulatorProcess.tell_the_truth,
}


def herd(store: Store, home: Path, down: str, count: int, per_second: float) -> Account:
    notifications = [
        Notification(
            key=f"{PROVIDER}-{number}",
            kind="herd",
            recipient=f"+49{number}",
            channel="sms",
            body=f"{PROVIDER}-{number}",
            tenant=TENANT,
            provider=PROVIDER,
        )
        for number in range(count)
    ]
    add(store, notifications)
    opened = nobody_listens() if down == "nobody listens" else only_503()
    with opened as simulator:
        plan = Plan(
            store=store.url,
            simulator=f"http://127.0.0.1:{simulator.port}",
            mail_port=1,
            diary="",
            parts=(PROVIDER,),
            changed={"per_second": per_second, "retriable": [409, 429, 503], "concurrency": 64},
            spread=1.0,  # the backoff as it ships
        )
        begun = time.monotonic()
        with Carriers(plan, home) as carriers:
            until(store, FAILED, count, carriers)
            COMES_BACK[down](simulator)
            until(store, SENT, count, carriers)
        return account.taken(
            notifications, store, simulator, home, killed=(), planned={}, left=0, seconds=time.monotonic() - begun
        )


def until(store: Store, question: str, count: int, carriers: Carriers) -> None:
    ends = time.monotonic() + SOON_S
    while (now := store.rows(question)[0][0]) < count:
        assert time.monotonic() < ends, f"{now} of {count}; {carriers.said()}"
        time.sleep(LOOK_S)


def check(came: Account, per_second: float) -> None:
    print(rates.keeps(PROVIDER, per_second, came.lives), f"{came.seconds:.1f} s")
    for life in came.lives:
        assert len(life.got) == 1
        tries = [row for row in life.rows if row.is_crossing]
        assert [row.outcome for row in tries[:-1]] == ["refused"] * (len(tries) - 1)
        assert tries[-1].number == len(tries) <= ATTEMPTS_MAX, "waiting for the rate burnt no attempt"
    failed = sum(any(row.outcome == "refused" for row in life.rows) for life in came.lives)
    assert failed >= len(came.lives) / 2, f"inconclusive: only {failed} have failed"
    before = max(row.number for life in came.lives for row in life.rows)
    takes = sum(line.deed == "take" for life in came.lives for line in life.lines)
    sends = sum(line.deed == "send" for life in came.lives for line in life.lines)
    told = f"{len(came.lives):,} messages, {failed:,} have failed, at most {before} attempts"
    print(f"{told}; {sends:,} requests, {takes:,} takes")


@pytest.mark.long
@pytest.mark.parametrize("on", ["sqlite", "postgres"])
@pytest.mark.parametrize("down", ["nobody listens", "only 503"])
def test_three_thousand_that_failed_in_an_outage_come_back_one_after_the_other(
    store: Store, tmp_path: Path, down: str
) -> None:
    check(herd(store, tmp_path, down, count=3_000, per_second=150), 150)
