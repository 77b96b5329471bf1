"""Two relays, of which there are always as many: whoever is killed is replaced."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from types import TracebackType

import msgspec
from tests.forking import START, preload
from tests.proof.outbox.carrier_process import Plan, work

RELAYS = 2
END_S = 60.0
preload("tests.proof.outbox.carriers", "semel.ledgers.postgres", "aiohttp")


class Carriers:
    def __init__(self, plan: Plan, home: Path) -> None:
        self._plan = plan
        self._home = home
        self._alive: list[tuple[str, BaseProcess]] = []
        self._started = 0
        self.killed: list[str] = []  # names of diaries

    def __enter__(self) -> Carriers:
        self._alive = [self._start() for _ in range(RELAYS)]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """The end of the work: they are killed too, and nothing comes of it."""
        for _, process in self._alive:
            process.kill()
            process.join(END_S)

    def kill_one(self, dice: Random) -> None:
        """SIGKILL: nothing is closed, nothing is flushed."""
        at = dice.randrange(len(self._alive))
        name, process = self._alive[at]
        assert process.is_alive(), f"a relay died by itself; {self.said()}"
        process.kill()
        process.join(END_S)
        assert process.exitcode == -signal.SIGKILL, f"a relay died by itself; {self.said()}"
        self.killed.append(name)
        self._alive[at] = self._start()

    def said(self) -> str:
        text = (self._home / "said").read_text("utf-8", "replace")
        return f"the relays said: {text[-3000:]}"

    def _start(self) -> tuple[str, BaseProcess]:
        name = f"diary-{self._started:04}"
        self._started += 1
        plan = msgspec.structs.replace(self._plan, diary=str(self._home / name))
        process = START.Process(target=_work, args=(plan, self._home / "said"), daemon=True)
        process.start()
        return name, process


def _work(plan: Plan, said: Path) -> None:
    out = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, 1)
    os.dup2(out, 2)
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(work(plan))


def wait_s(dice: Random, every_s: float) -> None:
    time.sleep(every_s * dice.uniform(0.5, 1.5))
