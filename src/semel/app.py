"""The app object: what users hold in their hands."""

from __future__ import annotations

import asyncio
import json
import random
import random as _random
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from semel import wiring
from semel.core.crash_points import Observer
from semel.core.engine import Engine
from semel.core.handler_run import Context
from semel.core.ledger_breaker import Outage
from semel.core.resend import needed_outbox
from semel.core.routing import CONTROL, Handler, Planner, Router, Unmatched, check_handler, is_async
from semel.core.runner import refuse_inside_transaction
from semel.core.worker import Consumer, Watch, Worker
from semel.ports import (
    STATES,
    Arrived,
    Entry,
    HidesMessages,
    Ledger,
    NamedQueue,
    PlacesKeys,
    Provider,
    Source,
    Stoppable,
    StoredOutbox,
    Telemetry,
)
from semel.sync import SyncFace
from semel.values import keys
from semel.values.effect import EFFECTS, KEYED_WINDOW_S, Effect, Guarantee, guarantee, stall
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.event import DecodeOptions, Event
from semel.values.key import Pattern
from semel.values.outcome import Outcome

if TYPE_CHECKING:
    from semel.aws_lambda.handler import KeepMalformed
    from semel.core.relay import Relay
    from semel.service.background import Background

# Bodies given to `app.process`, whatever a caller has in hand.

Body: TypeAlias = bytes | bytearray | memoryview | str | Mapping[str, Any]


class Message(Struct):
    """A body passed to `process`, with its metadata. It has the attributes of `ports.Arrived`."""

    body: bytes
    tenant: str = ""
    decode_options: DecodeOptions | None = None
    headers: Mapping[str, str] | None = None
    only: str = ""
    key: bytes = b""


def to_bytes(body: Body) -> bytes:
    """The bytes of whatever a caller has in hand."""
    if isinstance(body, bytes):
        return body
    try:
        if isinstance(body, str):
            return body.encode()
        if isinstance(body, Mapping):
            return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
        if isinstance(body, (bytearray, memoryview)):
            return bytes(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise MalformedEvent(f"the body cannot be written as JSON: {error}") from None
    raise MalformedEvent(f"a body is bytes, str or a dict, not {type(body).__name__}")


# What `app.on` refuses: options that contradict each other, and handlers that the ledger cannot serve. And what it
# promises of the others.

BY_DELIVERY = "a producer's retry under a new transport id runs again"
BY_BUS = "an EventBridge event without an identity in its detail runs again if its producer retries under a new id"
TIME_MAX_S = 100 * 365 * 86_400.0  # stores count milliseconds in 64 bits


def check_options(
    ledger: Ledger,
    patterns: Sequence[object],
    *,
    key: object,
    effect: str,
    order: object,
    max_attempts: object,
    window: float,
    probe: Callable[..., Any] | None,
    fail_open: bool,
) -> None:
    """Raises ConfigError that says which one is wrong."""
    if not patterns or not all(isinstance(pattern, str) for pattern in patterns):
        raise ConfigError('app.on needs a topic pattern: @app.on("v2.detail.events.conversation.*.customer.end")')
    if effect not in EFFECTS:
        raise ConfigError(f"effect={effect!r}: expected one of {', '.join(EFFECTS)}")
    if effect == "transaction" and not ledger.traits.transactional:
        raise ConfigError(
            f'effect="transaction" needs a ledger with transactions, {ledger.traits.name} has none: '
            "use SQLite, PostgreSQL or DynamoDB"
        )
    if not callable(key) or (order is not None and not isinstance(order, keys.latest)):
        raise ConfigError("key= takes a strategy of semel.keys or a callable, order= takes latest(...)")
    if probe is not None and effect != "park":
        raise ConfigError('probe= is asked what a vanished run did; only effect="park" does not simply run again')
    if effect != "keyed" and window != KEYED_WINDOW_S:
        raise ConfigError('window= is how long a downstream honours ctx.key; only effect="keyed" has one')
    if fail_open and effect in ("transaction", "park"):
        raise ConfigError(f'fail_open=True: effect="{effect}" cannot be kept without the ledger')
    if type(max_attempts) is not int or max_attempts < 1:
        raise ConfigError(f"max_attempts={max_attempts!r}: expected a whole number, 1 or more")


def check_fits(handler: Handler, ledger: Ledger) -> None:
    """Raises ConfigError where the ledger cannot do what the handler needs."""
    traits = ledger.traits
    together = ledger.together if isinstance(ledger, PlacesKeys) else None
    if handler.effect == "transaction" and traits.async_handle and not handler.is_async:
        raise ConfigError(
            f"handler {handler.name!r}: on {traits.name} ctx.tx has to be awaited, so a handler with "
            'effect="transaction" is an async one: write async def'
        )
    several = "order=" if handler.order is not None else "keys.tiers" if isinstance(handler.key, keys.tiers) else ""
    if several and together is not None and not {"*", handler.name} & set(together):
        raise ConfigError(
            f"handler {handler.name!r}: {several} needs several keys of the ledger at once, and {traits.name} keeps"
            f" those of a handler in one place only where its URL says so: add together={handler.name} to it"
        )


def guaranteed(handler: Handler, ledger: Ledger) -> Guarantee:
    topics = tuple(pattern.text for pattern in handler.patterns)
    traits = ledger.traits
    promised = guarantee(handler.name, topics, handler.effect, handler.window_s, traits.name, traits.caveat)
    waking = stall(handler.effect, handler.is_async, handler.probe is not None)
    return replace(promised, repeats=_unrecognised(handler.key, topics), stall=waking)


def _unrecognised(key: keys.Strategy, topics: Sequence[str]) -> str:
    """Which repeats of an event a key does not recognise. Topics that begin with v2. are those of Genesys, which
    recognises them by itself."""
    if key is keys.delivery:
        return BY_DELIVERY
    if key is keys.event and not all(topic.startswith("v2.") for topic in topics):
        return BY_BUS
    return ""


def as_ms(name: str, seconds: object, least_s: float = 0.001) -> int:
    """A time in milliseconds. Raises ConfigError."""
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not least_s <= seconds <= TIME_MAX_S:
        raise ConfigError(f"{name}={seconds!r}: expected seconds, at least {least_s:g} and at most a century")
    return int(seconds * 1000)


# `app.consume`: one source, from the first delivery to the last answer.

WORKERS_MAX = 100


async def consume(app: Semel, source: Source, workers: int, unmatched: Literal["ack", "reject"], drain_s: float) -> int:
    """Until the source has ended. When it is cancelled, what is in hand has `drain_s` to end."""
    _check(app, source, workers, unmatched)
    as_ms("drain", drain_s, 0.0)
    name = source.queue if isinstance(source, NamedQueue) else type(source).__name__
    outage = Outage(partial(app.ledger.claim, []), random.random)
    unmatched_events = Unmatched(app.topic_of, unmatched, name)
    working = [app.worker(source, outage=outage, unmatched=unmatched_events) for _ in range(workers)]
    consumer = Consumer(source, name, working, outage, random.random)
    try:
        return await _drained(consumer, drain_s)
    finally:
        if isinstance(source, Stoppable):
            await source.close()


async def _drained(consumer: Consumer, drain_s: float) -> int:
    running = asyncio.create_task(consumer.run())
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        consumer.stop()
        try:
            await asyncio.wait([running], timeout=drain_s)
        finally:  # time is up, or somebody cancels once more: the rest goes back
            running.cancel()
            await asyncio.wait([running])
        raise


def _check(app: Semel, source: Source, workers: object, unmatched: object) -> None:
    if type(workers) is not int or not 1 <= workers <= WORKERS_MAX:
        raise ConfigError(f"workers={workers!r}: expected a whole number, at least 1 and at most {WORKERS_MAX}")
    if unmatched not in ("ack", "reject"):
        raise ConfigError(f"unmatched={unmatched!r}: expected 'ack' or 'reject'")
    if not app.handlers:
        raise ConfigError(
            "app.consume: there are no handlers, and a source forgets what nobody wants: register one with @app.on "
            "before it is consumed"
        )
    if isinstance(source, HidesMessages):
        for handler in app.handlers:
            if handler.lease_s >= source.visibility:
                raise ConfigError(
                    f"handler {handler.name!r}: its lease of {handler.lease_s:g} s must be shorter than the visibility "
                    f"of its source, {source.visibility} s: after a crash the event would be redelivered while it is "
                    "still leased. Set a longer visibility, or a shorter lease"
                )


LEASE_S = 25.0  # under the SQS default visibility of 30 s
LEASE_MIN_S = 0.1  # the heartbeat looks every 50 ms
TIMEOUT_S = 20.0  # under the lease
TRANSACTION_TIMEOUT_S = 5.0  # SQLite's write lock is held meanwhile: other leases must outlive the wait
MAX_ATTEMPTS = 8  # with full jitter from 1 s, about a minute of retries
RETENTION_S = 38 * 86_400.0  # twice the longest redelivery: Genesys 4 d, EventBridge 1 d, SQS 14 d
LAMBDA_MARGIN_S = 1.0  # to cancel handlers, settle them in one round trip, and answer
CONCURRENCY = 32  # handlers of one batch that run at a time
WORKERS = 4  # batches of one source at a time
DRAIN_S = 25.0  # as a lease: a handler that takes longer is given up on anyway

Function = TypeVar("Function", bound=Callable[[Event, Context], Any])


class Semel:
    """Runs your handlers so that each event has its effect once.

    ledger: "sqlite:///file.db" (with "?synchronous=normal", quicker and less durable), "memory://", "postgresql://…",
        "redis://…" (also rediss, unix, redis+cluster, redis+sentinel) or "dynamodb://table?region=…".
    dead_letters: another store for what was given up on, where the ledger may lose it: SQLite, PostgreSQL, or an
        eventbridge:// bus that is told.
    tenant, origin: what `process` assumes where it is told nothing else; both are part of keys.
    id_path, type_path: dotted paths that make any JSON an event.
    lease: seconds a lease lasts; renewed while a handler runs. concurrency: handlers of one batch at a time.

    >>> app = Semel("memory://")
    >>> @app.on("interaction.created")
    ... async def greet(event, ctx): ...
    """

    def __init__(
        self,
        ledger: str = "sqlite:///semel.db",
        *,
        dead_letters: str = "",
        tenant: str = "",
        origin: str = "",
        id_path: str | None = None,
        type_path: str | None = None,
        lease: float = LEASE_S,
        concurrency: int = CONCURRENCY,
        random: Callable[[], float] = _random.random,
        observe: Observer | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        if concurrency < 1:
            raise ConfigError(f"concurrency={concurrency!r}: it must be above 0")
        as_ms("lease", lease, LEASE_MIN_S)
        self.ledger = wiring.open_ledger(ledger, observe, dead_letters)
        self._tenant = tenant
        self._decode_options = DecodeOptions(origin, id_path, type_path)
        self._lease_s = lease
        self.concurrency = concurrency
        self._random = random
        self._observe = observe
        self.telemetry = telemetry
        self._router = Router()
        self.planner = Planner(self._router, self._decode, self._decode_options)
        self._engines: dict[asyncio.AbstractEventLoop, Engine] = {}
        self._backgrounds: dict[asyncio.AbstractEventLoop, Background] = {}
        self._sync = SyncFace()

    # ---------------------------------------------------------------------------------------------- registering

    def on(
        self,
        *patterns: str,
        key: keys.Strategy = keys.event,
        effect: Effect = "retry",
        order: keys.latest | None = None,
        name: str | None = None,
        timeout: float | Literal["default"] | None = "default",
        lease: float | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        retention: float = RETENTION_S,
        window: float = KEYED_WINDOW_S,
        probe: Callable[..., Any] | None = None,
        fail_open: bool = False,
    ) -> Callable[[Function], Function]:
        """Register a handler for topics: `*` is one segment, `**` the rest. All times are seconds.

        effect: what the handler does and so what can be promised: transaction, keyed, fenced, retry or park.
        name: part of every key of this handler; by default the function's name. Renaming forgets what was done.
        timeout: how long a run may take (None: as long as its lease can be renewed); 20, for transactions 5. A thread
            cannot be stopped: a sync handler's late outcome counts as long as its lease lasts.
        max_attempts: counted when a run begins, so a crash counts; then the event is dead.
        retention: how long a settled key answers duplicates.
        window: for effect="keyed", how long the downstream honours a key.
        probe: for effect="park", `probe(event, ctx)` is asked what a vanished run did: a result (done), Retry() (it
            did not happen) or None (unknown).
        fail_open: a webhook that cannot reach the ledger runs the handler nevertheless; its effect may happen twice.
        """
        check_options(
            self.ledger,
            patterns,
            key=key,
            effect=effect,
            order=order,
            max_attempts=max_attempts,
            window=window,
            probe=probe,
            fail_open=fail_open,
        )
        if timeout == "default":
            timeout = TRANSACTION_TIMEOUT_S if effect == "transaction" else TIMEOUT_S
        if timeout is not None:
            as_ms("timeout", timeout)
        as_ms("window", window)
        lease_ms = as_ms("lease", self._lease_s if lease is None else lease, LEASE_MIN_S)
        retention_ms = as_ms("retention", retention)

        if probe is not None:
            check_handler(probe, "probe")

        def register(fn: Function) -> Function:
            check_handler(fn, "a handler")
            handler = Handler(
                name=name or str(getattr(fn, "__name__", type(fn).__name__)),
                fn=fn,
                patterns=tuple(Pattern(pattern) for pattern in patterns),
                key=key,
                effect=effect,
                order=order,
                identifies=keys.identifies(key),
                lease_ms=lease_ms,
                timeout_s=timeout,
                max_attempts=max_attempts,
                retention_ms=retention_ms,
                window_s=window,
                probe=probe,
                probe_is_async=probe is not None and is_async(probe),
                is_async=is_async(fn),
                fail_open=fail_open,
            )
            check_fits(handler, self.ledger)
            self._router.add(handler)
            return fn

        return register

    @property
    def handlers(self) -> Sequence[Handler]:
        """Everything that was registered, in order."""
        return self._router.handlers

    def guarantees(self) -> list[Guarantee]:
        """What each handler may rely on, computed from its effect and the ledger."""
        return [guaranteed(handler, self.ledger) for handler in self._router.handlers]

    # ----------------------------------------------------------------------------------------------- processing

    async def process(
        self,
        body: Body,
        *,
        tenant: str | None = None,
        origin: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Outcome:
        """One delivery through the whole flow. Raises MalformedEvent for what is no event."""
        (outcome,) = await self._engine().process([self._message(body, tenant, origin, headers)])
        if outcome.status == "malformed":
            raise MalformedEvent(outcome.reason)
        return outcome

    async def process_many(
        self, bodies: Iterable[Body], *, tenant: str | None = None, origin: str | None = None
    ) -> list[Outcome]:
        """A batch of deliveries: one round trip for all claims. A malformed one is an outcome, not an error."""
        messages: list[Message] = []
        unfit: dict[int, Outcome] = {}
        for index, body in enumerate(bodies):
            try:
                messages.append(self._message(body, tenant, origin))
            except MalformedEvent as error:
                unfit[index] = Outcome("malformed", reason=str(error))
        outcomes = await self._engine().process(messages)
        for index, outcome in unfit.items():  # in order, so that each comes to stand where its body stood
            outcomes.insert(index, outcome)
        return outcomes

    def process_sync(self, body: Body, *, tenant: str | None = None, origin: str | None = None) -> Outcome:
        """`process` for code without an event loop. One loop is kept alive underneath."""
        return self._sync.call(lambda: self.process(body, tenant=tenant, origin=origin))

    def lambda_handler(
        self,
        *,
        margin: float = LAMBDA_MARGIN_S,
        patience: float = 0.0,
        tenant: str = "",
        malformed_records: KeepMalformed | None = None,
    ) -> Callable[..., dict[str, Any]]:
        """What AWS Lambda calls: `handler = app.lambda_handler()`. Tells the records of all its triggers apart.

        margin: seconds before the end of an invocation at which handlers are stopped, to record and to answer.
        patience: seconds that an invocation of a stream may wait for its retries, which the stream itself does not.
        malformed_records: keeps a record that is no event; called with `(body, reason)`, sync or async. By default
            the trigger's failure destination keeps it. For a stream the ledger keeps it, as a dead letter.
        """
        from semel.aws_lambda import LambdaHandler

        as_ms("margin", margin)
        as_ms("patience", patience, 0.0)
        told = (tenant or self._tenant, self.concurrency, margin, patience, malformed_records, self.ledger)
        return LambdaHandler(self._engine, self._sync, *told).handle

    async def consume(
        self,
        source: Source,
        *,
        workers: int = WORKERS,
        unmatched: Literal["ack", "reject"] = "ack",
        drain: float = DRAIN_S,
    ) -> int:
        """Take from a source until it has ended, or was told to stop; then close it. Returns how many deliveries.

        `loop.add_signal_handler(signal.SIGTERM, source.stop)` ends it gently: nothing more is taken, what is in hand is
        finished. When this call is cancelled the same happens, and what takes longer than `drain` seconds goes back. A
        source that breaks is tried again, with backoff, and the log says so; while the ledger cannot be written,
        nothing is taken. Raises ConfigError, which no other try would change: there is no such queue.

        workers: batches at a time, of at most 100 deliveries each; `concurrency` handlers of a batch run at a time.
        unmatched: an event that no handler wants is acknowledged, so that its source forgets it; "reject" puts it among
            the dead letters of the source. The log says it, for each topic.
        """
        from semel.app import consume

        return await consume(self, source, workers, unmatched, drain)

    def worker(
        self,
        source: Source,
        *,
        engine: Engine | None = None,
        outage: Outage | None = None,
        unmatched: Unmatched | None = None,
        watch: Watch | None = None,
    ) -> Worker:
        """One of the loops that `consume` runs: `await app.worker(source).run()`. It ends with the first error.

        The rest is for those who run several: an engine of `new_engine`, and what workers share."""
        return Worker(
            source,
            self._engine if engine is None else lambda: engine,
            self.ledger,
            self._observe,
            outage=outage,
            unmatched=unmatched or Unmatched(self.topic_of),
            watch=watch,
        )

    def topic_of(self, delivery: Arrived) -> str:
        """The type of its event, for people; empty for what is no event, as the heartbeat of a channel."""
        event = self._decode(delivery, delivery.decode_options or self._decode_options)
        return "" if event.shape == CONTROL else event.type

    def new_engine(self, ledger: Ledger) -> Engine:
        """The flow on the running loop, for whoever keeps one of its own; `ledger` is this app's, in some wrapping."""
        return Engine(
            ledger,
            self.planner,
            concurrency=self.concurrency,
            random=self._random,
            observe=self._observe,
            telemetry=self.telemetry,
        )

    # -------------------------------------------------------------------------------------------------- webhooks

    def asgi(
        self,
        path: str = "/events",
        *,
        mode: Literal["inbox", "inline"] = "inline",
        verify: str | None = None,
        secrets: Sequence[str] = (),
        header: str = "",
        username: str = "",
        tenant: str = "",
        origin: str = "",
        busy_status: Literal[409, 503] = 503,
        overload_status: Literal[429, 503] = 503,
        body_max: int = 256 * 1024,
    ) -> Any:
        """An ASGI application that takes webhooks at `path`: mount it in FastAPI or Starlette, or serve it alone.

        mode: "inline" lets the handler's outcome decide the answer; "inbox" makes the event durable, answers, and
            handles it afterwards (in a mounted application, keep `app.handling()` open in its lifespan).
        verify: genesys, standard-webhooks, hmac-hex, header or basic, with its `secrets` (all of them count), and
            `header` or `username` where the scheme has one. Events of generic shapes then get `path` as their origin,
            so that ids of this sender do not meet those of others. `origin` sets another one, for all shapes: use it
            where applications with different secrets are mounted with the same `path`.
        """
        from semel.ports import Inbox
        from semel.service.app import Mounted
        from semel.service.endpoints import ServedEndpoint

        if mode == "inbox" and not isinstance(self.ledger, Inbox):
            raise ConfigError(f"mode='inbox': {self.ledger.traits.name} keeps no inbox; use mode='inline'")
        if any(secret.startswith(("env:", "file:")) for secret in secrets):
            raise ConfigError('secrets=: give the secrets themselves, os.environ["…"]; references are for semel.toml')
        verifier = None
        if verify is not None:
            verifier = wiring.verifier(verify, secrets=secrets, header=header, username=username)
        return Mounted(
            self,
            ServedEndpoint(
                path,
                mode=mode,
                tenant=tenant,
                decode_options=self._reading_at(path, origin, verified=verifier is not None),
                verifier=verifier,
                busy_status=busy_status,
                overload_status=overload_status,
                body_max=body_max,
            ),
        )

    def background(self) -> Background:
        """What handles the inbox on the running loop; it is started with the first call."""
        from semel.service.background import Background

        loop = asyncio.get_running_loop()
        running = self._backgrounds.get(loop)
        if running is None:
            self._backgrounds = {loop: Background(self)}
            running = self._backgrounds[loop]
            running.start()
        return running

    def handling(self) -> AbstractAsyncContextManager[None]:
        """Letters of the inbox are handled while this is open: `async with app.handling(): …`."""
        from semel.service.app import handling

        return handling(self)

    # ------------------------------------------------------------------------------------------------ sending

    @property
    def outbox(self) -> StoredOutbox:
        """Notifications: `await app.outbox.add([Notification(…)])`. Raises ConfigError where the ledger keeps none."""
        return needed_outbox(self.ledger)

    def relay(self, *providers: Provider, channels: Mapping[str, Sequence[str]] | None = None) -> Relay:
        """What sends them: `await app.relay(providers.provider("twilio", "sms", …)).run()`, or `run_once()`.

        channels: the names of the providers of each channel, in their order, where more than one can send it."""
        from semel.providers import relay

        return relay(self.outbox, providers, channels or {})

    # ------------------------------------------------------------------------------------------------ looking

    async def entries(self, state: str | None = None, limit: int = 100) -> Sequence[Entry]:
        """What the ledger holds, newest first: leased, waiting, done, dead, uncertain."""
        if state is not None and state not in STATES:
            raise ConfigError(f"entries({state!r}): expected one of {', '.join(STATES)}, or nothing for all")
        refuse_inside_transaction(self.ledger)
        return await self.ledger.entries(state, limit)

    async def purge(self, limit: int = 1_000) -> int:
        """Forget settled keys whose retention is over, at most `limit` of them. A worker does this by itself."""
        refuse_inside_transaction(self.ledger)
        return await self.ledger.purge(limit)

    # ---------------------------------------------------------------------------------------------- life cycle

    async def close(self) -> None:
        """Let go of the store. The app can be used again: it opens it anew."""
        self._sync.close()
        if (background := self._backgrounds.pop(asyncio.get_running_loop(), None)) is not None:
            await background.stop(0.0)
        await self.ledger.close()

    def close_sync(self) -> None:
        """`close` after `process_sync` or a Lambda handler, on the loop that they keep: the connections are there."""
        self._sync.end(self.close)

    async def __aenter__(self) -> Semel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _engine(self) -> Engine:
        refuse_inside_transaction(self.ledger)
        loop = asyncio.get_running_loop()
        engine = self._engines.get(loop)
        if engine is None:
            for over in [other for other in list(self._engines) if other.is_closed()]:
                self._engines.pop(over, None)  # an engine holds its loop, so none would ever go by itself
            engine = self._engines[loop] = self.new_engine(self.ledger)
        return engine

    def _decode(self, delivery: Arrived, decode_options: DecodeOptions) -> Event:
        return wiring.decode(
            delivery.body,
            tenant=delivery.tenant or self._tenant,
            origin=decode_options.origin,
            id_path=decode_options.id_path,
            type_path=decode_options.type_path,
            message_id=decode_options.message_id,
            headers=delivery.headers,
            default_origin=decode_options.default_origin,
        )

    def _reading_at(self, path: str, origin: str, *, verified: bool) -> DecodeOptions:
        decode_options = replace(self._decode_options, origin=origin) if origin else self._decode_options
        return replace(decode_options, default_origin=path) if verified else decode_options

    def _message(
        self, body: Body, tenant: str | None, origin: str | None, headers: Mapping[str, str] | None = None
    ) -> Message:
        decode_options = replace(self._decode_options, origin=origin) if origin else None
        return Message(to_bytes(body), tenant or "", decode_options, headers)
