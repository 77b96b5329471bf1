"""Runs handlers: async ones in the calling task, sync ones in a thread, each within its timeout and its lease."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import traceback
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgspec

from semel.core.clock import steady_s
from semel.core.crash_points import Boundary, Observer
from semel.core.effect_policy import Failed
from semel.core.handler_run import Context, HandlerRun
from semel.ports import (
    ClassifiedError,
    HasOutbox,
    Ledger,
    Notifies,
    Telemetry,
    Transaction,
    TransactionalLedger,
)
from semel.values.errors import (
    ConfigError,
    LeaseLost,
    LedgerUnavailable,
    MalformedEvent,
    NotRecorded,
    TransactionOver,
)
from semel.values.outcome import NOTHING, RESULT_MAX_BYTES, Done, Ending, NotNow, Reject, Release, Retry, Uncertain
from semel.values.strict_json import DEPTH_MAX, check_bounds

FRAMES = 3  # of a traceback, in the log
REASON_MAX_CHARS = 500  # a reason is a sentence for a person, not a document
SETTLE_RETRY_S = 0.05  # a failed settle is repeated while its lease lasts: giving up would repeat the effect

E = TypeVar("E", Retry, Reject)
T = TypeVar("T")

_encode = msgspec.json.Encoder().encode
_NO_SPAN = nullcontext()

_inside: contextvars.ContextVar[tuple[Ledger, HandlerRun] | None] = contextvars.ContextVar("_inside", default=None)


def refuse_inside_transaction(ledger: Ledger) -> None:
    """Raise ConfigError inside a handler's own transaction: it holds the write lock, and would wait for itself."""
    if (inside := _inside.get()) is not None and inside[0].traits is ledger.traits and inside[1].task is not None:
        raise ConfigError(
            f"handler {inside[1].handler.name!r} uses the app inside its own transaction, which it would wait for: "
            'process other events after it, or from a handler without effect="transaction"'
        )


class RunResult(msgspec.Struct, frozen=True):
    """The end of a run."""

    ending: Done | Retry | Reject | Release | Failed
    value: Any = None  # returned by the handler
    settled: bool = False  # recorded already, together with the handler's own writes


_NO_RESULT = RunResult(NOTHING)


class Runner:
    """Runs one handler at a time per call. At most `concurrency` sync handlers have a thread."""

    def __init__(
        self,
        ledger: Ledger,
        concurrency: int,
        observe: Observer | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._ledger = ledger
        self._observe = observe
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._threads = asyncio.Semaphore(concurrency)
        self._notifies = isinstance(ledger, HasOutbox) and ledger.outbox is not None

    async def invoke(self, run: HandlerRun) -> RunResult:
        """Call the handler of a run, in a transaction if that is its effect."""
        assert run.granted is not None
        context = Context(run, run.granted)
        if self._notifies and run.recorded:
            run.notifications = []
        with _NO_SPAN if self._telemetry is None else self._telemetry.span("handle", run.handler.name):
            try:
                if run.handler.effect == "transaction":
                    return await self._run_in_transaction(run, context)
                result = await self._call(run, context, run.handler.fn, run.handler.is_async)
                context._over = True
                if run.notifications and isinstance(result.ending, Done) and not run.lost:
                    return await self._settle_with_notifications(run, result)
                return result
            except TransactionOver as error:
                return RunResult(Failed(_sentence(error), reason_class=type(error).__name__))

    async def _run_in_transaction(self, run: HandlerRun, context: Context) -> RunResult:
        assert run.granted is not None
        ledger = cast(TransactionalLedger, self._ledger)
        async with ledger.transaction(run.granted.lease) as transaction:
            context._tx = transaction.handle
            outside = _inside.set((ledger, run))
            if run.handler.is_async:  # a thread is not waited for: its block ends at once
                run.abandon = transaction.abandon
            try:
                result = await self._call(run, context, run.handler.fn, run.handler.is_async)
            finally:
                run.abandon = None
                _inside.reset(outside)
                context._over = True
            if run.stopped and run.handler.is_async and isinstance(result.ending, (Done, Failed)):
                return RunResult(Failed(run.stopped, reason_class="stopped"))  # also where it ignored its cancellation
            if run.lost or not isinstance(result.ending, Done):
                return result  # nothing was settled inside, so the handler's writes are rolled back
            if (conflict := await self._record(transaction, run, result.ending)) is not None:
                return RunResult(conflict)  # rolled back as well
        return self._settled(run, result)

    async def _settle_with_notifications(self, run: HandlerRun, result: RunResult) -> RunResult:
        """Record the notifications and the outcome of a handler without a transaction, together.

        Its effect has happened. So a failed write is repeated while the lease lasts, and never reported as undone."""
        assert run.granted is not None
        assert isinstance(result.ending, Done)
        until = steady_s() + run.lease_s
        while True:
            try:
                async with cast(TransactionalLedger, self._ledger).transaction(run.granted.lease) as transaction:
                    if (conflict := await self._record(transaction, run, result.ending)) is not None:
                        return RunResult(conflict)
                return self._settled(run, result)
            except LedgerUnavailable as error:
                if run.lost or steady_s() + SETTLE_RETRY_S > min(until, run.lease_ends):
                    raise NotRecorded(f"the outcome could not be recorded in time: {error}") from error
                await asyncio.sleep(SETTLE_RETRY_S)

    async def _record(self, transaction: Transaction, run: HandlerRun, ending: Done) -> Reject | None:
        """Write the notifications, then the settlement, in the transaction.

        Returns the reason why nothing was settled: another notification has the same key. None: it is settled, unless
        `run.lost` is set now."""
        if run.notifications:
            added = await cast(Notifies, transaction).notify(run.notifications)
            for answer, notification in zip(added, run.notifications, strict=True):
                if answer.status == "conflict":
                    return Reject(
                        f"notification {answer.id} ({notification.kind}) is known with another content: give each "
                        "message of a handler a kind or a key= of its own"
                    )
        if self._observe is not None:
            self._observe(Boundary.BEFORE_SETTLE.value)
        run.lost = not await transaction.settle(run.settlement(ending))
        return None

    def _settled(self, run: HandlerRun, result: RunResult) -> RunResult:
        if self._observe is not None:
            self._observe(Boundary.AFTER_SETTLE.value)
        if run.lost and self._telemetry is not None:
            self._telemetry.refused(run.handler.name)
        return RunResult(result.ending, result.value, settled=not run.lost)

    async def probe(self, run: HandlerRun) -> Ending | None:
        """Ask the user's probe whether a vanished run had its effect. None: it had not, so the handler may run."""
        assert run.granted is not None
        assert run.handler.probe is not None
        result = await self._call(run, Context(run, run.granted), run.handler.probe, run.handler.probe_is_async)
        run.started = False  # the handler itself has not run
        run.result, run.cause = result.value, result.ending
        if not run.lost:
            run.stopped = ""  # the probe's timeout, not the handler's
        match result.ending:
            case Done() if result.value is None:
                return Uncertain("the holder before vanished, and the probe does not know what it did")
            case Retry():
                return None
            case Failed(reason=reason):
                return Uncertain(f"the holder before vanished, and the probe failed: {reason}")
            case _:
                return result.ending

    async def _call(self, run: HandlerRun, context: Context, fn: Callable[..., Any], is_async: bool) -> RunResult:
        task = asyncio.current_task()
        assert task is not None
        run.task, run.started = task, True
        cancelled_before = task.cancelling()

        def caller_is_cancelled() -> bool:
            return task.cancelling() - cancelled_before > run.cancels

        if is_async or run.handler.effect == "transaction":  # otherwise its time begins when it has a thread
            self._start_clock(run)
        if self._observe is not None:
            self._observe(Boundary.HANDLER_START.value)
        value: Any
        try:
            context.check()  # the process may have stalled since its claim
            if is_async:
                value = await fn(run.event, context)
            else:
                value = await self._in_thread(run, fn, context, caller_is_cancelled)
        except (Retry, Reject, NotNow) as raised:
            value = raised.with_traceback(None)  # a value from here on: it must not keep the handler's frames alive
        except asyncio.CancelledError as error:
            if caller_is_cancelled():
                raise  # not only this run
            stopped = run.stopped  # empty: the handler awaited a task that was cancelled elsewhere
            value = Failed(stopped or _sentence(error), reason_class="stopped" if stopped else "CancelledError")
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a panic of an extension module is no Exception, and neither is sys.exit()
            if _has_lost_lease(error):
                run.lost, run.stopped = True, run.stopped or _sentence(error)
            reason_class, http_status = "", None
            if isinstance(error, ClassifiedError):
                reason_class, http_status = error.reason_class, error.http_status
            value = Failed(
                _sentence(error),
                _is_final(error),
                reason_class=reason_class or type(error).__name__,
                http_status=http_status,
                raised_at=_where(error),
            )
        finally:
            run.task = run.times_out = None
            for _ in range(run.cancels):
                task.uncancel()
            run.cancels = 0
        if self._observe is not None:
            self._observe(Boundary.HANDLER_END.value)
        return _result_of(value)

    def _start_clock(self, run: HandlerRun) -> None:
        run.times_out = run.until
        if run.handler.timeout_s is not None:
            own = self._loop.time() + run.handler.timeout_s
            run.times_out = own if run.until is None else min(own, run.until)

    async def _in_thread(
        self, run: HandlerRun, fn: Callable[..., Any], context: Context, caller_is_cancelled: Callable[[], bool]
    ) -> Any:
        """Run a sync handler in a thread and wait for it.

        A thread cannot be stopped. Past its timeout it is still waited for, because its result is the truth as long as
        the lease lasts; it can check `ctx.lost`. A transaction is not waited for, because it can be rolled back. Under
        a time limit of the caller (`until`) every other thread is waited for even when its lease is lost: a process
        that is frozen with a running thread would resume it hours later."""
        undoable = run.handler.effect == "transaction"
        process_stays = run.until is None

        def call() -> Any:
            if not undoable:
                self._start_clock(run)
            context.check()  # it may have waited long for its thread
            return fn(run.event, context)

        try:
            await self._threads.acquire()
        except asyncio.CancelledError:
            run.started = False  # it was still waiting for a thread
            raise
        try:
            running = in_thread(call, run.handler.name)
            while True:
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    if (run.lost and process_stays) or undoable or running.done() or caller_is_cancelled():
                        # its outcome is refused, so an exception of it is not reported either
                        running.add_done_callback(lambda done: None if done.cancelled() else done.exception())
                        raise
        finally:
            self._threads.release()  # also for an abandoned thread: one that hangs must not reduce the concurrency


def _result_of(value: Any) -> RunResult:
    """A handler's return value as an ending. A result that cannot be stored is no reason to repeat the effect."""
    if value is None:
        return _NO_RESULT
    match value:  # a reason may be any object of the user
        case Retry():
            return RunResult(_with_class_of(value, Retry(value.after, _text(value.reason))))
        case Reject():
            return RunResult(_with_class_of(value, Reject(_text(value.reason))))
        case NotNow():
            return RunResult(Release(value.after, _text(value.reason) or "not now"))
        case Failed():
            return RunResult(value)
    try:
        stored = _encode(value)
    except Exception as error:  # also from a property of the user's own class
        return RunResult(Reject(f"the handler returned a result that is not JSON: {_sentence(error)}"))
    if len(stored) > RESULT_MAX_BYTES:
        return RunResult(
            Reject(f"the handler returned a result of {len(stored):,} bytes; the limit is {RESULT_MAX_BYTES:,}")
        )
    try:
        check_bounds(stored)  # a result that could be written may nest too deep to be read again, for every duplicate
    except MalformedEvent:
        return RunResult(Reject(f"the handler returned a result that nests deeper than {DEPTH_MAX} levels"))
    return RunResult(Done(stored), value)


def _with_class_of(returned: Retry | Reject, ending: E) -> E:
    ending.reason_class, ending.http_status = returned.reason_class, returned.http_status
    return ending


def _is_final(error: BaseException) -> bool:
    """Whether it is a programming mistake, so that every attempt would fail. In an exception group all must be."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_final, error.exceptions))
    return isinstance(error, ConfigError)


def _has_lost_lease(error: BaseException) -> bool:
    """Whether `ctx.check()` ended the run. In an exception group one is enough."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_has_lost_lease, error.exceptions))
    return isinstance(error, LeaseLost)


def _where(error: BaseException) -> str:
    """The last frames to where it was raised. Its text stays in the ledger: it may contain a customer's data."""
    frames = traceback.extract_tb(error.__traceback__)[1:][-FRAMES:]
    return " ← ".join(f"{PurePath(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames))


def _sentence(error: BaseException) -> str:
    text = _text(error)
    return _text(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def _text(reason: object) -> str:
    """The reason as text that every store can keep."""
    try:
        text = "" if reason is None else str(reason)
    except Exception:
        text = f"({type(reason).__name__} without text)"
    if len(text) > REASON_MAX_CHARS:
        text = text[: REASON_MAX_CHARS - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


async def run_concurrently(
    runs: Sequence[HandlerRun], call: Callable[[HandlerRun], Awaitable[None]], limit: int
) -> None:
    """Call each run, at most `limit` at a time; a lone one in the calling task."""
    if len(runs) == 1:
        await call(runs[0])
    elif runs:
        await _Lanes(runs, call, limit).finish()


class _Lanes:
    """Tasks that share a queue of runs. A lane opens the next one before it starts: the first lane runs all handlers
    that never wait, and only handlers that wait cost a task."""

    def __init__(self, runs: Sequence[HandlerRun], call: Callable[[HandlerRun], Awaitable[None]], limit: int) -> None:
        self._queue = list(reversed(runs))
        self._call = call
        self._limit = limit
        self._tasks: list[asyncio.Task[None]] = []

    async def finish(self) -> None:
        """Run all lanes to their end, also when one fails; then raise its error. A cancelled caller cancels them."""
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
        if self._queue and len(self._tasks) < self._limit:
            self._tasks.append(asyncio.get_running_loop().create_task(self._lane()))

    async def _lane(self) -> None:
        self._open()
        while self._queue:
            await self._call(self._queue.pop())


def in_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """Run `call` in a thread of its own, with the context variables of the calling task.

    It uses no pool: a thread that hangs would occupy its place forever, and a process that ends would wait for it."""
    variables = contextvars.copy_context()
    job: Future[T] = Future()

    def work() -> None:
        try:
            job.set_result(variables.run(call))
        except BaseException as error:
            job.set_exception(error)

    job.set_running_or_notify_cancel()  # from here on it cannot be cancelled, only abandoned
    threading.Thread(target=work, name=f"semel-{name}", daemon=True).start()
    return asyncio.wrap_future(job)
