"""The crew of `semel demo`: worker processes that are fed, killed and replaced.

It is a source that delivers at least once: what a worker had in hand when it died is delivered again.
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from semel.values.errors import SemelError

WINDOW = 150  # deliveries that a worker has in hand: one batch in work, two waiting
KILL_WITHIN_S = 0.03  # a kill falls anywhere within a batch's work
STALLED_S = 60.0  # without any answer, something is broken

FINAL = ("done", "duplicate")
AGAIN = ("busy", "retry")


class Crew:
    """Brings every delivery to a final answer, whatever happens to the workers."""

    def __init__(
        self,
        command: Sequence[str],
        deliveries: Sequence[bytes],
        workers: int,
        kills: int,
        random: Random,
        tell: Callable[[str], None],
    ) -> None:
        self._command = command
        self._deliveries = deliveries
        self._kills = kills
        self._random = random
        self._tell = tell
        self._ready: asyncio.Queue[int] = asyncio.Queue()
        self._workers = [Worker(number + 1, self._ready, deliveries, self._answered) for number in range(workers)]
        self._moved = asyncio.Event()  # an answer came
        self.answered = 0
        self.answers: Counter[str] = Counter()
        self.landed = 0  # kills that hit a worker with deliveries in hand
        self.unanswered = 0  # deliveries that killed workers had in hand

    async def run(self) -> None:
        for number in range(len(self._deliveries)):
            self._ready.put_nowait(number)
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.live(self._command))
            tasks.create_task(self._kill_now_and_then())
            while self.answered < len(self._deliveries):
                await self._next_answer()
            for worker in self._workers:
                worker.dismiss()

    async def _kill_now_and_then(self) -> None:
        """Spread over the storm. A kill that missed, because its worker had nothing in hand, is tried again."""
        total = len(self._deliveries)
        while self.landed < self._kills and self.answered < total:
            if self.answered < total * (self.landed + 1) // (self._kills + 1):
                await self._next_answer()
                continue
            await asyncio.sleep(self._random.uniform(0, KILL_WITHIN_S))
            worker = self._random.choice(self._workers)
            in_hand = await worker.kill()
            if in_hand:
                self.landed += 1
                self.unanswered += in_hand
                self._tell(f"killed worker {worker.number} with {in_hand} deliveries in hand; they are delivered again")

    async def _next_answer(self) -> None:
        self._moved.clear()
        try:
            async with asyncio.timeout(STALLED_S):
                await self._moved.wait()
        except TimeoutError:
            raise SemelError(f"no worker has answered for {STALLED_S:.0f} s") from None

    def _answered(self, number: int, status: str, after_s: float) -> None:
        self.answers[status] += 1
        if status in AGAIN:
            asyncio.get_running_loop().call_later(after_s, self._ready.put_nowait, number)
        else:
            self.answered += 1
        self._moved.set()


class Worker:
    """One place in the crew; when its process is killed, another takes the place."""

    def __init__(
        self,
        number: int,
        ready: asyncio.Queue[int],
        deliveries: Sequence[bytes],
        answered: Callable[[int, str, float], None],
    ) -> None:
        self.number = number
        self._ready = ready
        self._deliveries = deliveries
        self._answered = answered
        self._process: asyncio.subprocess.Process | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._dismissed = False
        self._at_work = False  # this process has answered something
        self._killed: asyncio.Future[int] | None = None

    async def live(self, command: Sequence[str]) -> None:
        """Start a process, and the next one when it was killed, until dismissed. None outlives this."""
        try:
            await self._live(command)
        finally:
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
                await self._process.wait()

    async def _live(self, command: Sequence[str]) -> None:
        while not self._dismissed:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                start_new_session=True,  # Ctrl-C is for us, and we end our workers
            )
            self._at_work = False
            in_hand: set[int] = set()
            window = asyncio.Semaphore(WINDOW)
            self._feeding = asyncio.create_task(self._feed(self._process, in_hand, window))
            if self._dismissed:
                self.dismiss()
            await self._hear(self._process, in_hand, window)
            self._feeding.cancel()
            code = await self._process.wait()
            self._process = None
            for number in in_hand:
                self._ready.put_nowait(number)
            if self._killed is not None:
                self._killed.set_result(len(in_hand))
                self._killed = None
            elif code:
                raise SemelError(f"worker {self.number} ended by itself, with exit code {code}")

    async def kill(self) -> int:
        """Kill the process without warning. Returns how many deliveries it had in hand; 0: not yet at work."""
        if self._process is None or not self._at_work or self._dismissed or self._killed is not None:
            return 0
        self._killed = asyncio.get_running_loop().create_future()
        self._process.kill()
        return await self._killed

    def dismiss(self) -> None:
        """No more work: the process ends when its input does."""
        self._dismissed = True
        if self._feeding is not None:
            self._feeding.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    async def _feed(self, process: asyncio.subprocess.Process, in_hand: set[int], window: asyncio.Semaphore) -> None:
        assert process.stdin is not None
        try:
            while True:
                await window.acquire()
                number = await self._ready.get()
                in_hand.add(number)
                process.stdin.write(b"%d\t%s\n" % (number, self._deliveries[number]))
                await process.stdin.drain()
        except ConnectionError:
            return  # it was killed: what is in hand is delivered again

    async def _hear(self, process: asyncio.subprocess.Process, in_hand: set[int], window: asyncio.Semaphore) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                return  # cut off in the middle: not an answer
            number, status, after_s = line.decode().split()
            self._at_work = True
            in_hand.discard(int(number))
            window.release()
            self._answered(int(number), status, float(after_s))


def command(ledger: Path, calls: Path) -> list[str]:
    return [sys.executable, "-m", "semel.cli.demonstration.demo_worker", str(ledger), str(calls)]
