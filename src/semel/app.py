"""The app: registers handlers, processes events, consumes sources, and relays notifications."""

from __future__ import annotations

import asyncio
import json
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
from semel.core.worker import Consumer, Worker, WorkerObserver
from semel.ports import (
    Arrived,
    Entry,
    EntryQuery,
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

# The bodies that `app.process` accepts.

Body: TypeAlias = bytes | bytearray | memoryview | str | Mapping[str, Any]


class IncomingMessage(Struct):
    """A body passed to `process`, with its metadata. It has the attributes of `ports.Arrived`."""

    body: bytes
    tenant: str = ""
    decode_options: DecodeOptions | None = None
    headers: Mapping[str, str] | None = None
    only: str = ""
    key: bytes = b""


def to_bytes(body: Body) -> bytes:
    """The bytes of a body. Raises MalformedEvent for other types."""
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


# Checks of `app.on`: options that contradict each other, and handlers that the ledger cannot serve.

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
    """Raise ConfigError if an option is wrong, or if two contradict each other."""
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
        raise ConfigError('probe= finds out what an interrupted run did; only effect="park" needs it')
    if effect != "keyed" and window != KEYED_WINDOW_S:
        raise ConfigError('window= is the time in which the downstream honours ctx.key; only effect="keyed" has one')
    if fail_open and effect in ("transaction", "park"):
        raise ConfigError(f'fail_open=True: effect="{effect}" cannot be kept without the ledger')
    if type(max_attempts) is not int or max_attempts < 1:
        raise ConfigError(f"max_attempts={max_attempts!r}: expected a whole number, 1 or more")


def check_fits(handler: Handler, ledger: Ledger) -> None:
    """Raise ConfigError if the ledger lacks an ability that the handler needs."""
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
            f" the keys of a handler together only if its URL says so: add together={handler.name} to the URL"
        )


def guaranteed(handler: Handler, ledger: Ledger) -> Guarantee:
    topics = tuple(pattern.text for pattern in handler.patterns)
    traits = ledger.traits
    promised = guarantee(handler.name, topics, handler.effect, handler.window_s, traits.name, traits.caveat)
    waking = stall(handler.effect, handler.is_async, handler.probe is not None)
    return replace(promised, repeats=_unrecognised(handler.key, topics), stall=waking)


def _unrecognised(key: keys.Strategy, topics: Sequence[str]) -> str:
    """The repeats of an event that a key does not recognise. Topics that begin with v2. are those of Genesys, whose
    events have an identity."""
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


WORKERS_MAX = 100


async def consume(app: Semel, source: Source, workers: int, unmatched: Literal["ack", "reject"], drain_s: float) -> int:
    """Consume until the source has ended. When cancelled, deliveries in flight have `drain_s` to end."""
    _check(app, source, workers, unmatched)
    as_ms("drain", drain_s, 0.0)
    name = source.queue if isinstance(source, NamedQueue) else type(source).__name__
    outage = Outage(partial(app.ledger.claim, []), _random.random)
    unmatched_events = Unmatched(app.topic_of, unmatched, name)
    working = [app.worker(source, outage=outage, unmatched=unmatched_events) for _ in range(workers)]
    consumer = Consumer(source, name, working, outage, _random.random)
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
        finally:  # time is up, or it is cancelled again: the rest is returned to the source
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
            "app.consume: there are no handlers, and unmatched events are acknowledged: register a handler with "
            "@app.on before you consume a source"
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
DRAIN_S = 25.0  # as a lease: a handler that takes longer has lost its lease

Function = TypeVar("Function", bound=Callable[[Event, Context], Any])


class Semel:
    """Runs your handlers so that each event has its effect once.

    ledger: "sqlite:///file.db" (with "?synchronous=normal", quicker and less durable), "memory://", "postgresql://…",
        "redis://…" (also rediss, unix, redis+cluster, redis+sentinel) or "dynamodb://table?region=…".
    dead_letters: another store for dead letters, if the ledger may lose them: SQLite, PostgreSQL, or an eventbridge://
        bus.
    tenant, origin: the defaults of `process`; both are part of keys.
    id_path, type_path: dotted paths that make any JSON an event.
    lease: length of a lease in seconds; it is renewed while the handler runs. concurrency: handlers of one batch that
        run at a time.

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

        effect: the kind of effect, from which the guarantee is computed: transaction, keyed, fenced, retry or park.
        name: part of every key of this handler; by default the function's name. Under another name, events that were
            done before run again.
        timeout: of one run, by default 20, for transactions 5 (None: as long as its lease can be renewed). A thread
            cannot be stopped: a sync handler's late outcome counts as long as its lease lasts.
        max_attempts: counted when a run begins, so a crash counts; after them the event is a dead letter.
        retention: the time in which a settled key answers duplicates.
        window: for effect="keyed", the time in which the downstream honours a key.
        probe: for effect="park", `probe(event, ctx)` returns what an interrupted run did: a result (done), Retry() (it
            did not happen) or None (unknown).
        fail_open: a webhook runs the handler also while the ledger is unavailable; its effect may happen twice.
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
        """The registered handlers, in order."""
        return self._router.handlers

    def guarantees(self) -> list[Guarantee]:
        """The guarantee of each handler, computed from its effect and the ledger."""
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
        """Process one delivery. Raises MalformedEvent if the body is no valid event."""
        (outcome,) = await self._engine().process([self._message(body, tenant, origin, headers)])
        if outcome.status == "malformed":
            raise MalformedEvent(outcome.reason)
        return outcome

    async def process_many(
        self, bodies: Iterable[Body], *, tenant: str | None = None, origin: str | None = None
    ) -> list[Outcome]:
        """Process a batch of deliveries, with one round trip for all claims. A malformed body is an outcome."""
        messages: list[IncomingMessage] = []
        unfit: dict[int, Outcome] = {}
        for index, body in enumerate(bodies):
            try:
                messages.append(self._message(body, tenant, origin))
            except MalformedEvent as error:
                unfit[index] = Outcome("malformed", reason=str(error))
        outcomes = await self._engine().process(messages)
        for index, outcome in unfit.items():  # in order, so that each index is right
            outcomes.insert(index, outcome)
        return outcomes

    def process_sync(self, body: Body, *, tenant: str | None = None, origin: str | None = None) -> Outcome:
        """`process` for code without an event loop. It keeps one loop in a thread."""
        return self._sync.call(lambda: self.process(body, tenant=tenant, origin=origin))

    def lambda_handler(
        self,
        *,
        margin: float = LAMBDA_MARGIN_S,
        patience: float = 0.0,
        tenant: str = "",
        malformed_records: KeepMalformed | None = None,
    ) -> Callable[..., dict[str, Any]]:
        """The function that AWS Lambda calls: `handler = app.lambda_handler()`. It handles the records of all triggers.

        margin: seconds before the end of an invocation at which handlers are stopped, to record and to answer.
        patience: seconds that an invocation of a stream may wait for its retries, which the stream itself does not.
        malformed_records: keeps a record that is no event; called with `(body, reason)`, sync or async. By default
            the trigger's failure destination keeps it. For a stream the ledger keeps it, as a dead letter.
        """
        from semel.aws_lambda import LambdaHandler

        as_ms("margin", margin)
        as_ms("patience", patience, 0.0)
        return LambdaHandler(
            self._engine,
            self._sync,
            tenant or self._tenant,
            self.concurrency,
            margin,
            patience,
            malformed_records,
            self.ledger,
        ).handle

    async def consume(
        self,
        source: Source,
        *,
        workers: int = WORKERS,
        unmatched: Literal["ack", "reject"] = "ack",
        drain: float = DRAIN_S,
    ) -> int:
        """Consume a source until it has ended or is stopped, then close it. Returns the number of deliveries.

        `loop.add_signal_handler(signal.SIGTERM, source.stop)` stops it: it receives nothing more, and finishes the
        deliveries in flight. Cancelling this call does the same, and returns deliveries that take longer than `drain`
        seconds. A source that fails is retried with backoff, and logged. While the ledger is unavailable, nothing is
        received. Raises ConfigError for an error that no retry would change, such as a missing queue.

        workers: batches at a time, of at most 100 deliveries each; `concurrency` handlers of a batch run at a time.
        unmatched: an event without a handler is acknowledged; "reject" makes it a dead letter of the source. Both are
            logged for each topic.
        """
        return await consume(self, source, workers, unmatched, drain)

    def worker(
        self,
        source: Source,
        *,
        engine: Engine | None = None,
        outage: Outage | None = None,
        unmatched: Unmatched | None = None,
        watch: WorkerObserver | None = None,
    ) -> Worker:
        """One of the workers of `consume`: `await app.worker(source).run()`. It ends with the first error.

        The keyword arguments are for several workers: an engine of `new_engine`, and the parts that they share."""
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
        """The type of its event, for the log; empty for a control frame, such as the heartbeat of a channel."""
        event = self._decode(delivery, delivery.decode_options or self._decode_options)
        return "" if event.shape == CONTROL else event.type

    def new_engine(self, ledger: Ledger) -> Engine:
        """An engine on the running loop. `ledger` is that of this app, possibly wrapped."""
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
        """An ASGI application for webhooks at `path`: mount it in FastAPI or Starlette, or serve it alone.

        mode: "inline" runs the handler before the response; "inbox" stores the event durably, responds, and runs the
            handler afterwards (in a mounted application, keep `app.handling()` open in its lifespan).
        verify: genesys, standard-webhooks, hmac-hex, header or basic, with its `secrets` (any of them may match), and
            `header` or `username` if the scheme has one. Events of generic shapes then get `path` as their origin, so
            that ids of different senders do not collide. `origin` sets another origin for all shapes: use it if
            applications with different secrets are mounted with the same `path`.
        """
        from semel.ports import Inbox
        from semel.service.app import Mounted
        from semel.service.endpoints import ServedEndpoint

        if mode == "inbox" and not isinstance(self.ledger, Inbox):
            raise ConfigError(f"mode='inbox': {self.ledger.traits.name} has no inbox; use mode='inline'")
        if any(secret.startswith(("env:", "file:")) for secret in secrets):
            raise ConfigError('secrets=: pass the secrets themselves, os.environ["…"]; references are for semel.toml')
        verifier = None
        if verify is not None:
            verifier = wiring.verifier(verify, secrets=secrets, header=header, username=username)
        return Mounted(
            self,
            ServedEndpoint(
                path,
                mode=mode,
                tenant=tenant,
                decode_options=self._decode_options_at(path, origin, verified=verifier is not None),
                verifier=verifier,
                busy_status=busy_status,
                overload_status=overload_status,
                body_max=body_max,
            ),
        )

    def background(self) -> Background:
        """The inbox worker of the running loop. The first call starts it."""
        from semel.service.background import Background

        loop = asyncio.get_running_loop()
        running = self._backgrounds.get(loop)
        if running is None:
            self._backgrounds = {loop: Background(self)}
            running = self._backgrounds[loop]
            running.start()
        return running

    def handling(self) -> AbstractAsyncContextManager[None]:
        """Handles inbox items while it is open: `async with app.handling(): …`."""
        from semel.service.app import handling

        return handling(self)

    # ------------------------------------------------------------------------------------------------ sending

    @property
    def outbox(self) -> StoredOutbox:
        """The outbox: `await app.outbox.add([Notification(…)])`. Raises ConfigError if the ledger has none."""
        return needed_outbox(self.ledger)

    def relay(self, *providers: Provider, channels: Mapping[str, Sequence[str]] | None = None) -> Relay:
        """The relay that sends notifications: `await app.relay(providers.provider("twilio", "sms", …)).run()`.

        channels: the providers of each channel, in order, if more than one can send it."""
        from semel.providers import relay

        return relay(self.outbox, providers, channels or {})

    # ------------------------------------------------------------------------------------------------ queries

    async def entries(self, state: str | None = None, limit: int = 100) -> Sequence[Entry]:
        """List entries of the ledger, newest first: leased, waiting, done, dead, uncertain."""
        query = EntryQuery(state, limit)
        refuse_inside_transaction(self.ledger)
        return await self.ledger.entries(query)

    async def purge(self, limit: int = 1_000) -> int:
        """Delete at most `limit` keys whose retention is over. Workers do this periodically."""
        refuse_inside_transaction(self.ledger)
        return await self.ledger.purge(limit)

    # ---------------------------------------------------------------------------------------------- life cycle

    async def close(self) -> None:
        """Close the store. The app can be used again, and opens the store then."""
        self._sync.close()
        if (background := self._backgrounds.pop(asyncio.get_running_loop(), None)) is not None:
            await background.stop(0.0)
        await self.ledger.close()

    def close_sync(self) -> None:
        """`close` after `process_sync` or a Lambda handler, on their loop, which has the connections."""
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
                self._engines.pop(over, None)  # an engine references its loop, so neither would be collected
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

    def _decode_options_at(self, path: str, origin: str, *, verified: bool) -> DecodeOptions:
        decode_options = replace(self._decode_options, origin=origin) if origin else self._decode_options
        return replace(decode_options, default_origin=path) if verified else decode_options

    def _message(
        self, body: Body, tenant: str | None, origin: str | None, headers: Mapping[str, str] | None = None
    ) -> IncomingMessage:
        decode_options = replace(self._decode_options, origin=origin) if origin else None
        return IncomingMessage(to_bytes(body), tenant or "", decode_options, headers)
