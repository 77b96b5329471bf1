"""Racers on one store: threads, each with its own event loop and ledger object, or processes.

A racer runs rounds. All racers start a round together, and each reports what every call answered, or what it raised:
a law asserts that every racer came back with a verdict, not only that one won. Imports little: processes start cold.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, Protocol, TypeAlias

from semel.ports import Ledger
from semel.values.claim import Claim, Settlement, Verdict

MEET_S = 30  # a racer that does not come to the start in this time has failed


@dataclass(frozen=True)
class Round:
    """The claims or settlements of one racer in one round."""

    claims: Sequence[Claim] = ()
    settlements: Sequence[Settlement] = ()


@dataclass(frozen=True)
class Ran:
    """The answers to one racer in one round."""

    verdicts: list[Verdict]
    settled: list[bool]


Race: TypeAlias = Sequence[Sequence[Round]]  # for each racer its rounds


class _Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...


def race_threads(open_ledger: Callable[[], Ledger], race: Race) -> list[list[Ran]]:
    """Run the racers as threads of this process. Raises what any of them raised."""
    barrier = threading.Barrier(len(race))
    answers: list[list[Ran] | BaseException | None] = [None] * len(race)

    def racer(at: int) -> None:
        try:
            answers[at] = asyncio.run(_run(open_ledger, race[at], barrier))
        except BaseException as error:
            barrier.abort()
            answers[at] = error

    threads = [threading.Thread(target=racer, args=(at,)) for at in range(len(race))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return _all_back(answers)


def race_processes(remote: Callable[[], Ledger], race: Race) -> list[list[Ran]]:
    """Run the racers as fresh processes. Raises what any of them raised."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(len(race))
    pipes = [context.Pipe(duplex=False) for _ in race]
    processes = [
        context.Process(target=_racer_process, args=(remote, rounds, barrier, sender), daemon=True)
        for rounds, (_, sender) in zip(race, pipes, strict=True)
    ]
    for process, (_, sender) in zip(processes, pipes, strict=True):
        process.start()
        sender.close()
    answers = [_received(receiver) for receiver, _ in pipes]
    for process in processes:
        process.join()
        process.close()
    return _all_back(answers)


def _racer_process(remote: Callable[[], Ledger], rounds: Sequence[Round], barrier: Any, sender: Connection) -> None:
    try:
        answer: list[Ran] | BaseException = asyncio.run(_run(remote, rounds, barrier))
    except BaseException as error:
        barrier.abort()
        answer = RuntimeError(f"a racer failed: {error!r}")
    sender.send(answer)
    sender.close()


def _received(receiver: Connection) -> list[Ran] | BaseException:
    try:
        answer: list[Ran] | BaseException = receiver.recv()
    except EOFError:
        return RuntimeError("a racer ended without an answer")
    finally:
        receiver.close()
    return answer


async def _run(open_ledger: Callable[[], Ledger], rounds: Sequence[Round], barrier: _Barrier) -> list[Ran]:
    ledger = open_ledger()
    ran: list[Ran] = []
    for turn in rounds:
        await asyncio.to_thread(barrier.wait, MEET_S)
        verdicts = await ledger.claim(turn.claims) if turn.claims else []
        settled = await ledger.settle(turn.settlements) if turn.settlements else []
        ran.append(Ran(verdicts, settled))
    await asyncio.to_thread(barrier.wait, MEET_S)  # who is last still finds the store open
    await ledger.close()
    return ran


def _all_back(answers: Sequence[list[Ran] | BaseException | None]) -> list[list[Ran]]:
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    failures.sort(key=lambda failure: isinstance(failure, threading.BrokenBarrierError))  # the cause before its echoes
    if failures:
        raise failures[0]
    return [answer for answer in answers if isinstance(answer, list)]
