"""Several workers on one source, until it has ended or `stop` is called: what `app.consume` and `semel run` do.

A source that breaks is tried again, with backoff; so is one that could not be told an answer, since it brings the
delivery again and the ledger knows what came of it. Only a ConfigError ends the consumption: no other try changes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import PurePath
from traceback import extract_tb

from semel.core.outage import Outage, pause
from semel.core.worker import Worker
from semel.ports import Source, Stoppable
from semel.values.errors import ConfigError, SemelError
from semel.values.log import log
from semel.values.retry import backoff_s

AGAIN_BASE_S = 0.2
AGAIN_CAP_S = 20.0  # a broker that is back has us back soon after
QUIET_S = 60.0  # a source that has not failed for so long is well again, also when nothing has come


class Consumer:
    """Runs on one loop, once. Closing the source is left to whoever opened it."""

    def __init__(
        self,
        source: Source,
        name: str,
        workers: Sequence[Worker],
        outage: Outage,
        random: Callable[[], float],
    ) -> None:
        """`name` is for the log. All workers take from this source and wait for this outage."""
        self._source = source
        self._name = name
        self._workers = workers
        self._outage = outage
        self._random = random
        self._stopping = asyncio.Event()
        self._lanes: dict[Worker, asyncio.Task[None]] = {}
        self._failures = 0  # in a row, of all workers: they share what is broken
        self._failed_at = 0.0  # loop time
        self.count = 0  # deliveries so far

    @property
    def is_broken(self) -> bool:
        """The last thing that the source was asked for failed, and not long ago: it may have nothing to give since."""
        return self._failures > 0 and asyncio.get_running_loop().time() - self._failed_at < QUIET_S

    async def run(self) -> int:
        """All deliveries until the source has ended. Returns how many. When it is cancelled, what is in hand goes back.

        Raises ConfigError, when the other workers have finished what they had in hand."""
        self._lanes = {worker: asyncio.create_task(self._lane(worker)) for worker in self._workers}
        lanes = list(self._lanes.values())
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            self.stop()  # it has ended, or one of them has found that it cannot go on
            await asyncio.wait(lanes)
        except asyncio.CancelledError:
            for lane in lanes:
                lane.cancel()
            await asyncio.gather(*lanes, return_exceptions=True)
            raise
        errors = [lane.exception() for lane in lanes if not lane.cancelled()]  # several may have met the same one
        if (error := next(filter(None, errors), None)) is not None:
            raise error
        return self.count

    def stop(self) -> None:
        """Finish what is in hand, then end. Whoever waits for a delivery comes back."""
        self._stopping.set()
        for worker, lane in self._lanes.items():
            worker.stop()
            if worker.is_waiting and not isinstance(self._source, Stoppable):
                lane.cancel()  # there is no other way to tell it, and nothing is in its hand

    async def _lane(self, worker: Worker) -> None:
        while not self._stopping.is_set():
            try:
                count = await worker.turn() if await self._outage.over(self._stopping) else 0
            except ConfigError:
                raise
            except (Exception, asyncio.CancelledError) as error:  # whatever a source, a store or a driver comes up with
                _unless_we_are_cancelled()
                self._failures += 1
                self._failed_at = asyncio.get_running_loop().time()
                self._complain(error)
                await pause(backoff_s(self._failures, self._random, AGAIN_BASE_S, AGAIN_CAP_S), self._stopping)
                continue
            if not count:
                return
            self.count += count
            if self._failures:
                log.warning("source_recovered", source=self._name)
                self._failures = 0

    def _complain(self, error: BaseException) -> None:
        """The first, second, fourth …: an outage does not fill the disk."""
        if self._failures & (self._failures - 1) == 0:
            log.error("source_failed", source=self._name, failures=self._failures, error=words(error))


def _unless_we_are_cancelled() -> None:
    """Some drivers cancel whoever waits on a connection that they lose. To end by that would look like the end of the
    source. Where somebody has cancelled us, that goes on."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def words(error: BaseException) -> str:
    """What may be said of an error: of one that is not ours or the system's, its kind and its place. A driver may have
    put a password into the rest."""
    if isinstance(error, (SemelError, OSError)):
        return f"{type(error).__name__}: {error}"
    *_, step = extract_tb(error.__traceback__)
    return f"{type(error).__name__} at {PurePath(step.filename).name}:{step.lineno} {step.name}"
