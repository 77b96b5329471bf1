"""Runs handlers: async ones in the calling task, sync ones in a thread, each within its time and its lease."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import msgspec

from semel.core.act import Act, Context
from semel.core.boundaries import Boundary
from semel.core.heartbeat import Heartbeat
from semel.core.judgement import Failed
from semel.ports import Ledger, TransactionalLedger
from semel.values.claim import Settlement
from semel.values.errors import TransactionOver
from semel.values.outcome import NOTHING, RESULT_MAX_BYTES, Done, Ending, Reject, Release, Retry, Uncertain

REASON_MAX_CHARS = 500  # a reason is a sentence for a person, not a document

_encode = msgspec.json.Encoder().encode


class Ran(msgspec.Struct, frozen=True):
    """What a run came to. `settled`: it is recorded already, together with the handler's own writes."""

    ending: Done | Retry | Reject | Release | Failed
    result: Any = None
    settled: bool = False


_RAN = Ran(NOTHING)


class Runner:
    """Runs at most `concurrency` handlers of one batch at a time."""

    def __init__(self, ledger: Ledger, heartbeat: Heartbeat, concurrency: int, at: Callable[[Boundary], None]) -> None:
        self._ledger = ledger
        self._heartbeat = heartbeat
        self._concurrency = concurrency
        self._at = at
        self._loop = asyncio.get_running_loop()
        self._threads: ThreadPoolExecutor | None = None

    async def run_all(self, acts: Sequence[Act], run: Callable[[Act], Awaitable[None]]) -> None:
        """Each act by `run`; a lone one in the calling task."""
        if len(acts) == 1:
            await run(acts[0])
        elif acts:
            await _Lanes(acts, run, self._concurrency).all()

    async def run(self, act: Act, settlement: Callable[[Act, Ending], Settlement]) -> Ran:
        """The handler, in a transaction if that is its effect."""
        assert act.granted is not None
        context = Context(act, act.granted)
        if act.handler.effect != "transaction":
            return await self._invoke(act, context, act.handler.fn, act.handler.is_async)
        try:
            return await self._run_in_transaction(act, context, settlement)
        except TransactionOver as error:
            return Ran(Failed(_sentence(error)))

    async def _run_in_transaction(
        self, act: Act, context: Context, settlement: Callable[[Act, Ending], Settlement]
    ) -> Ran:
        assert act.granted is not None
        ledger = cast(TransactionalLedger, self._ledger)
        async with ledger.transaction(act.granted.lease) as transaction:
            context._tx = transaction.handle
            ran = await self._invoke(act, context, act.handler.fn, act.handler.is_async)
            if act.lost or not isinstance(ran.ending, Done):
                return ran  # nothing was settled inside, so the handler's writes are rolled back
            self._at(Boundary.BEFORE_SETTLE)
            act.lost = not await transaction.settle(settlement(act, ran.ending))
        self._at(Boundary.AFTER_SETTLE)
        return Ran(ran.ending, ran.result, settled=not act.lost)

    async def probe(self, act: Act) -> Ending | None:
        """Ask the user's probe what became of a vanished run. None: it did not happen, so the handler may run."""
        assert act.granted is not None
        assert act.handler.probe is not None
        ran = await self._invoke(act, Context(act, act.granted), act.handler.probe, act.handler.probe_is_async)
        act.started = False  # the handler itself has not run
        match ran.ending:
            case Done() if ran.result is None:
                return Uncertain("the holder before vanished, and the probe does not know what it did")
            case Retry():
                return None
            case Failed(reason=reason):
                return Uncertain(f"the holder before vanished, and the probe failed: {reason}")
            case _:
                return ran.ending

    async def _invoke(self, act: Act, context: Context, fn: Callable[..., Any], is_async: bool) -> Ran:
        task = asyncio.current_task()
        assert task is not None
        act.task, act.started = task, True
        if act.handler.timeout_s is not None:
            act.times_out = self._loop.time() + act.handler.timeout_s
        self._at(Boundary.HANDLER_START)
        value: Any
        try:
            if is_async:
                value = await fn(act.event, context)
            else:
                value = await self._in_thread(act, task, fn, context)
        except (Retry, Reject) as said:
            value = said.with_traceback(None)  # a value from here on: it must not keep the handler's frames alive
        except asyncio.CancelledError:
            if task.cancelling() > act.cancels or not act.stopped:
                raise  # the caller is being cancelled, not only this run
            value = Failed(act.stopped)
        except Exception as error:
            value = Failed(_sentence(error))
        finally:
            act.task = act.times_out = None
            for _ in range(act.cancels):
                task.uncancel()
        self._at(Boundary.HANDLER_END)
        return _came_to(value)

    async def _in_thread(self, act: Act, task: asyncio.Task[Any], fn: Callable[..., Any], context: Context) -> Any:
        """A thread cannot be stopped: past its timeout it is still waited for, since what it comes to is the truth as
        long as the lease lasts. It can look at `ctx.lost`."""
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._concurrency, thread_name_prefix="semel-handler")
        variables = contextvars.copy_context()
        running = self._loop.run_in_executor(self._threads, variables.run, fn, act.event, context)
        while True:
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if act.lost or not act.stopped or task.cancelling() > act.cancels:
                    running.add_done_callback(_look_away)
                    raise


def _look_away(abandoned: asyncio.Future[Any]) -> None:
    """Nobody waits for this outcome any more; it is refused."""
    if not abandoned.cancelled():
        abandoned.exception()


def _came_to(value: Any) -> Ran:
    """A handler's return value as an ending. A result that cannot be kept is no reason to repeat the effect."""
    if value is None:
        return _RAN
    if isinstance(value, (Retry, Reject, Failed)):
        return Ran(value)
    try:
        stored = _encode(value)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return Ran(Reject(f"the handler ran, but its result is not JSON: {_sentence(error)}"))
    if len(stored) > RESULT_MAX_BYTES:
        return Ran(
            Reject(f"the handler ran, but its result has {len(stored):,} bytes; the limit is {RESULT_MAX_BYTES:,}")
        )
    return Ran(Done(stored), value)


def _sentence(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return text if len(text) <= REASON_MAX_CHARS else text[: REASON_MAX_CHARS - 1] + "…"


class _Lanes:
    """Tasks that share a queue of acts. A lane opens the next one before it starts: handlers that never wait are all
    run by the first, and only those that do wait cost a task."""

    def __init__(self, acts: Sequence[Act], run: Callable[[Act], Awaitable[None]], most: int) -> None:
        self._queue = list(reversed(acts))
        self._run = run
        self._most = most
        self._tasks: list[asyncio.Task[None]] = []

    async def all(self) -> None:
        """All lanes to their end, also when one fails; then its error. A cancelled caller cancels them all."""
        self._open()
        try:
            while pending := [task for task in self._tasks if not task.done()]:
                await asyncio.wait(pending)
        except asyncio.CancelledError:
            self._queue.clear()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            raise
        for task in self._tasks:
            task.result()

    def _open(self) -> None:
        if self._queue and len(self._tasks) < self._most:
            self._tasks.append(asyncio.get_running_loop().create_task(self._lane()))

    async def _lane(self) -> None:
        self._open()
        while self._queue:
            await self._run(self._queue.pop())
