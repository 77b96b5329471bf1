"""Runs handlers: async ones in the calling task, sync ones in a thread, each within its time and its lease."""

from __future__ import annotations

import asyncio
import contextvars
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgspec

from semel.core.act import Act, Context
from semel.core.boundaries import Boundary
from semel.core.judgement import Failed
from semel.core.settling import AGAIN_S
from semel.core.steady import steady_s
from semel.core.threads import in_thread
from semel.ports import Ledger, Notifies, Telemetry, Transaction, TransactionalLedger
from semel.values.claim import Settlement
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

STEPS = 3  # of a traceback that the log shows
REASON_MAX_CHARS = 500  # a reason is a sentence for a person, not a document

E = TypeVar("E", Retry, Reject)

_encode = msgspec.json.Encoder().encode

_inside: contextvars.ContextVar[tuple[Ledger, Act] | None] = contextvars.ContextVar("_inside", default=None)


def refuse_inside_transaction(ledger: Ledger) -> None:
    """A handler that holds the store's write lock and asks the same store for more would wait for itself."""
    if (inside := _inside.get()) is not None and inside[0].traits is ledger.traits and inside[1].task is not None:
        raise ConfigError(
            f"handler {inside[1].handler.name!r} uses the app inside its own transaction, which it would wait for: "
            'process other events after it, or from a handler without effect="transaction"'
        )


class Ran(msgspec.Struct, frozen=True):
    """What a run came to. `settled`: it is recorded already, together with the handler's own writes."""

    ending: Done | Retry | Reject | Release | Failed
    result: Any = None
    settled: bool = False


_RAN = Ran(NOTHING)


class Runner:
    """Runs at most `concurrency` handlers of one batch at a time."""

    def __init__(
        self,
        ledger: Ledger,
        concurrency: int,
        at: Callable[[Boundary], None],
        telemetry: Telemetry | None = None,
    ) -> None:
        self._ledger = ledger
        self._concurrency = concurrency
        self._at = at
        self._telemetry = telemetry
        self._loop = asyncio.get_running_loop()
        self._threads = asyncio.Semaphore(concurrency)
        self._notifies = getattr(ledger, "outbox", None) is not None

    async def run_all(self, acts: Sequence[Act], run: Callable[[Act], Awaitable[None]]) -> None:
        """Each act by `run`; a lone one in the calling task."""
        if len(acts) == 1:
            await run(acts[0])
        elif acts:
            await _Lanes(acts, run, self._concurrency).all()

    async def run(self, act: Act, settlement: Callable[[Act, Ending], Settlement]) -> Ran:
        """The handler, in a transaction if that is its effect."""
        if self._telemetry is None:
            return await self._run(act, settlement)
        with self._telemetry.span("handle", act.handler.name):
            return await self._run(act, settlement)

    async def _run(self, act: Act, settlement: Callable[[Act, Ending], Settlement]) -> Ran:
        assert act.granted is not None
        context = Context(act, act.granted)
        if self._notifies:
            act.notifications = []
        try:
            if act.handler.effect == "transaction":
                return await self._run_in_transaction(act, context, settlement)
            ran = await self._invoke(act, context, act.handler.fn, act.handler.is_async)
            context._over = True
            if act.notifications and isinstance(ran.ending, Done) and not act.lost:
                return await self._settle_with_notifications(act, ran, settlement)
            return ran
        except TransactionOver as error:
            return Ran(Failed(_sentence(error), reason_class=type(error).__name__))

    async def _run_in_transaction(
        self, act: Act, context: Context, settlement: Callable[[Act, Ending], Settlement]
    ) -> Ran:
        assert act.granted is not None
        ledger = cast(TransactionalLedger, self._ledger)
        async with ledger.transaction(act.granted.lease) as transaction:
            context._tx = transaction.handle
            outside = _inside.set((ledger, act))
            if act.handler.is_async:  # nobody waits for a thread: the block ends at once
                act.abandon = transaction.abandon
            try:
                ran = await self._invoke(act, context, act.handler.fn, act.handler.is_async)
            finally:
                act.abandon = None
                _inside.reset(outside)
                context._over = True
            if act.stopped and act.handler.is_async and isinstance(ran.ending, (Done, Failed)):
                return Ran(Failed(act.stopped, reason_class="stopped"))  # also where it ignored its cancellation
            if act.lost or not isinstance(ran.ending, Done):
                return ran  # nothing was settled inside, so the handler's writes are rolled back
            if (conflict := await self._record(transaction, act, settlement(act, ran.ending))) is not None:
                return Ran(conflict)  # and so they are here
        return self._settled(act, ran)

    async def _settle_with_notifications(
        self, act: Act, ran: Ran, settlement: Callable[[Act, Ending], Settlement]
    ) -> Ran:
        """Of a handler without a transaction: what it wants to be sent and its outcome are recorded together. Its
        effect has happened: that is tried again while its lease lasts, and is never called undone."""
        assert act.granted is not None
        assert isinstance(ran.ending, Done)
        until = steady_s() + act.lease_s
        while True:
            try:
                async with cast(TransactionalLedger, self._ledger).transaction(act.granted.lease) as transaction:
                    if (conflict := await self._record(transaction, act, settlement(act, ran.ending))) is not None:
                        return Ran(conflict)
                return self._settled(act, ran)
            except LedgerUnavailable as error:
                if act.lost or steady_s() + AGAIN_S > min(until, act.lease_ends):
                    raise NotRecorded(f"what was done could not be recorded in time: {error}") from error
                await asyncio.sleep(AGAIN_S)

    async def _record(self, transaction: Transaction, act: Act, settlement: Settlement) -> Reject | None:
        """Into the transaction: what is to be sent, then the outcome. A conflict is why nothing is settled."""
        if (conflict := await _notify(transaction, act)) is None:
            self._at(Boundary.BEFORE_SETTLE)
            act.lost = not await transaction.settle(settlement)
        return conflict

    def _settled(self, act: Act, ran: Ran) -> Ran:
        self._at(Boundary.AFTER_SETTLE)
        if act.lost and self._telemetry is not None:
            self._telemetry.refused(act.handler.name)
        return Ran(ran.ending, ran.result, settled=not act.lost)

    async def probe(self, act: Act) -> Ending | None:
        """Ask the user's probe what became of a vanished run. None: it did not happen, so the handler may run."""
        assert act.granted is not None
        assert act.handler.probe is not None
        ran = await self._invoke(act, Context(act, act.granted), act.handler.probe, act.handler.probe_is_async)
        act.started = False  # the handler itself has not run
        act.result, act.cause = ran.result, ran.ending
        if not act.lost:
            act.stopped = ""  # that was the probe's time
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
        cancelled_before = task.cancelling()

        def caller_is_cancelled() -> bool:
            return task.cancelling() - cancelled_before > act.cancels

        if is_async or act.handler.effect == "transaction":  # else its time begins when it has a thread
            self._start_clock(act)
        self._at(Boundary.HANDLER_START)
        value: Any
        try:
            context.check()  # the process may have stalled since its claim
            if is_async:
                value = await fn(act.event, context)
            else:
                value = await self._in_thread(act, fn, context, caller_is_cancelled)
        except (Retry, Reject, NotNow) as said:
            value = said.with_traceback(None)  # a value from here on: it must not keep the handler's frames alive
        except asyncio.CancelledError as error:
            if caller_is_cancelled():
                raise  # not only this run
            stopped = act.stopped  # empty: the handler awaited something that others cancelled
            value = Failed(stopped or _sentence(error), reason_class="stopped" if stopped else "CancelledError")
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a panic of an extension module is no Exception, and neither is sys.exit()
            if _has_lost_lease(error):
                act.lost, act.stopped = True, act.stopped or _sentence(error)
            value = Failed(
                _sentence(error),
                _is_final(error),
                reason_class=getattr(error, "reason_class", "") or type(error).__name__,
                http_status=getattr(error, "http_status", None),
                raised_at=_where(error),
            )
        finally:
            act.task = act.times_out = None
            for _ in range(act.cancels):
                task.uncancel()
            act.cancels = 0
        self._at(Boundary.HANDLER_END)
        return _came_to(value)

    def _start_clock(self, act: Act) -> None:
        act.times_out = act.until
        if act.handler.timeout_s is not None:
            own = self._loop.time() + act.handler.timeout_s
            act.times_out = own if act.until is None else min(own, act.until)

    async def _in_thread(
        self, act: Act, fn: Callable[..., Any], context: Context, caller_is_cancelled: Callable[[], bool]
    ) -> Any:
        """A thread cannot be stopped: past its timeout it is still waited for, since what it comes to is the truth as
        long as the lease lasts. It can look at `ctx.lost`. A transaction is not waited for: it can be undone. Where the
        deliverer is gone soon, all others are: frozen with its process, a thread would go on hours later."""
        undoable = act.handler.effect == "transaction"
        stays = act.until is None

        def call() -> Any:
            if not undoable:
                self._start_clock(act)
            context.check()  # it may have waited long for its thread
            return fn(act.event, context)

        try:
            await self._threads.acquire()
        except asyncio.CancelledError:
            act.started = False  # it was still waiting for a thread
            raise
        try:
            running = in_thread(call, act.handler.name)
            while True:
                try:
                    return await asyncio.shield(running)
                except asyncio.CancelledError:
                    if (act.lost and stays) or undoable or running.done() or caller_is_cancelled():
                        running.add_done_callback(_look_away)
                        raise
        finally:
            self._threads.release()  # also for one that is left behind: a thread that hangs must not cost a place


async def _notify(transaction: Transaction, act: Act) -> Reject | None:
    """Put what the handler wants to be sent into the outbox; why that cannot be, where another content has its key."""
    if not act.notifications:
        return None
    added = await cast(Notifies, transaction).notify(act.notifications)
    for one, notification in zip(added, act.notifications, strict=True):
        if one.status == "conflict":
            return Reject(
                f"notification {one.id} ({notification.kind}) is known with another content: give each message of a "
                "handler a kind or a key= of its own"
            )
    return None


def _look_away(abandoned: asyncio.Future[Any]) -> None:
    """Nobody waits for this outcome any more; it is refused."""
    if not abandoned.cancelled():
        abandoned.exception()


def _came_to(value: Any) -> Ran:
    """A handler's return value as an ending. A result that cannot be kept is no reason to repeat the effect."""
    if value is None:
        return _RAN
    match value:  # a reason may be anything that the user gave it
        case Retry():
            return Ran(_logged_as(value, Retry(value.after, _text(value.reason))))
        case Reject():
            return Ran(_logged_as(value, Reject(_text(value.reason))))
        case NotNow():
            return Ran(Release(value.after, _text(value.reason) or "not now"))
        case Failed():
            return Ran(value)
    try:
        stored = _encode(value)
    except Exception as error:  # also of a property of the user's own class
        return Ran(Reject(f"the handler ran, but its result is not JSON: {_sentence(error)}"))
    if len(stored) > RESULT_MAX_BYTES:
        return Ran(
            Reject(f"the handler ran, but its result has {len(stored):,} bytes; the limit is {RESULT_MAX_BYTES:,}")
        )
    try:
        check_bounds(stored)  # what could be written may be too deep to be read again, for every duplicate
    except MalformedEvent:
        return Ran(Reject(f"the handler ran, but its result nests deeper than {DEPTH_MAX} levels"))
    return Ran(Done(stored), value)


def _logged_as(said: Retry | Reject, ending: E) -> E:
    ending.reason_class, ending.http_status = said.reason_class, said.http_status
    return ending


def _is_final(error: BaseException) -> bool:
    """A programming mistake: another attempt would end like this one. Of several tasks that failed together, each."""
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_final, error.exceptions))
    return isinstance(error, ConfigError)


def _has_lost_lease(error: BaseException) -> bool:
    """Whether `ctx.check()` ended the run. Of several tasks that failed together, one is enough."""
    if isinstance(error, BaseExceptionGroup):
        return any(map(_has_lost_lease, error.exceptions))
    return isinstance(error, LeaseLost)


def _where(error: BaseException) -> str:
    """The last steps to where it was raised. Its words stay in the ledger: they may hold a customer's data."""
    steps = traceback.extract_tb(error.__traceback__)[1:][-STEPS:]
    return " ← ".join(f"{PurePath(step.filename).name}:{step.lineno} {step.name}" for step in reversed(steps))


def _sentence(error: BaseException) -> str:
    said = _text(error)
    return _text(f"{type(error).__name__}: {said}" if said else type(error).__name__)


def _text(reason: object) -> str:
    """A reason that every store can keep, whatever was given as one."""
    try:
        text = "" if reason is None else str(reason)
    except Exception:
        text = f"({type(reason).__name__} without words)"
    if len(text) > REASON_MAX_CHARS:
        text = text[: REASON_MAX_CHARS - 1] + "…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


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
