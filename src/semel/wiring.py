"""Chooses adapters by URL scheme or kind: the only module that names them. Drivers are imported when they are used."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from semel.core.breaker import PROBE_S, Breaker, RetryBudget, State
from semel.envelopes import IDENTITIES, ShapeIdentity, decode
from semel.ports import (
    Catalog,
    DeadLetters,
    DeadLetterStore,
    Diagnosable,
    Inbox,
    Ledger,
    Provider,
    Publisher,
    Source,
    Stoppable,
    Traits,
    Verifier,
)
from semel.values.errors import ConfigError
from semel.values.log import log
from semel.values.redaction import is_broken, masked, without_secrets
from semel.values.secret import Secret

if TYPE_CHECKING:
    from semel.dead_letter_targets import EventBridgeTarget
    from semel.destinations import Destination
    from semel.outbox import Conversation
    from semel.providers.callbacks import CallbackProfile
    from semel.values.notification import Notification

__all__ = [
    "IDENTITIES",
    "ShapeIdentity",
    "adding",
    "decode",
    "destination",
    "every_store",
    "forward",
    "open_dead_letters",
    "open_ledger",
    "provider",
    "provider_option_types",
    "publisher",
    "reach",
    "source",
    "unwrap_sns",
    "verifier",
]

Observe = Callable[[str], None]

SCHEMES = (
    "sqlite:///file.db",
    "memory://",
    "postgresql://user@host/database",
    "redis://host",
    "rediss://host",
    "unix:///path/to/redis.sock",
    "redis+cluster://host",
    "rediss+cluster://host",
    "redis+sentinel://host/service",
    "rediss+sentinel://host/service",
    "dynamodb://table?region=eu-central-1",
)


class StoredLedger(Ledger, Catalog, Protocol):
    """A ledger with its catalog."""


# --------------------------------------------------------------------------------------------------------- ledgers


def open_ledger(url: str, observe: Observe | None = None, dead_letters: str = "") -> StoredLedger:
    """The ledger of a URL. `dead_letters` is the URL of another store for its dead letters, or of an event bus.

    Nothing is opened before it is used. Raises ConfigError, which shows no password.
    """
    ledger = _one_ledger(url, observe)
    if not dead_letters:
        return ledger
    if dead_letters.startswith("eventbridge:"):
        return _with_target(ledger, open_dead_letters(dead_letters))
    with _shown(dead_letters):
        dead_letter_store: Any = _one_ledger(dead_letters, None)
        _check_dead_letter_store(ledger, dead_letter_store)
    from semel.core.dead_letter_store import LedgerWithDeadLetterStore

    return LedgerWithDeadLetterStore(ledger, dead_letter_store)


def open_dead_letters(url: str) -> EventBridgeTarget:
    """A dead-letter target on an event bus, `eventbridge://bus?region=…`. Nothing is opened before it is used.

    It also stores malformed records: `app.lambda_handler(malformed_records=open_dead_letters(url).keep_malformed)`."""
    with _shown(url):
        _need("aiobotocore", "aws")
        from semel.dead_letter_targets import EventBridgeTarget

        return EventBridgeTarget(url)


def every_store() -> list[Traits]:
    """The traits of every ledger in each configuration, for the table of guarantees."""
    from semel.ledgers import dynamodb, memory, postgres, redis, sqlite

    return [traits for adapter in (sqlite, memory, postgres, redis, dynamodb) for traits in adapter.profiles()]


def _one_ledger(url: str, observe: Observe | None) -> StoredLedger:
    if not isinstance(url, str):
        raise ConfigError(f"ledger {url!r}: expected a URL, one of {', '.join(SCHEMES)}")
    with _shown(url):
        match url.partition("://")[0]:
            case "sqlite":
                return _sqlite(url, observe)
            case "memory" if url.partition("?")[0] == "memory://":
                return _memory(url)
            case "postgresql" | "postgres":
                _need("asyncpg", "postgres")
                from semel.ledgers.postgres import PostgresLedger

                return PostgresLedger.from_url(url, observe=observe)
            case (
                "redis" | "rediss" | "unix" | "redis+cluster" | "rediss+cluster" | "redis+sentinel" | "rediss+sentinel"
            ):
                _need("redis", "redis")
                from semel.ledgers.redis import RedisLedger

                return RedisLedger.from_url(url, observe=observe)
            case "dynamodb":
                _need("aiobotocore", "aws")
                from semel.ledgers.dynamodb import DynamoLedger

                return DynamoLedger.from_url(url, observe=observe)
    raise ConfigError(f"ledger {masked(url)!r}: expected one of {', '.join(SCHEMES)}")


@contextmanager
def _shown(url: str) -> Iterator[None]:
    """Remove the password of this URL from a ConfigError."""
    try:
        _check_url(url)
        yield
    except ConfigError as error:
        raise ConfigError(without_secrets(str(error), url)) from None


def _check_url(url: str) -> None:
    """Refuse a URL that a parser would split at the wrong place: it would show a part of the password as the host."""
    try:
        url.encode()
        urlsplit(url)
        broken = is_broken(url)
    except ValueError:  # its text repeats the URL
        broken = True
    if broken:
        raise ConfigError(
            f"ledger {masked(url)!r} is no valid URL: percent-encode special characters of its password ('#' is %23, "
            "'/' is %2F), or use a reference in semel.toml: redis://user:env:NAME@host"
        ) from None


def _need(driver: str, extra: str, what: str = "this kind of ledger") -> None:
    if find_spec(driver) is None:
        raise ConfigError(f"{what} needs {driver}: pip install 'semel[{extra}]'")


def _check_dead_letter_store(ledger: StoredLedger, dead_letter_store: StoredLedger) -> None:
    _check_no_inbox(ledger)
    if (
        not isinstance(dead_letter_store, DeadLetterStore)
        or not isinstance(dead_letter_store, DeadLetters)
        or not dead_letter_store.traits.durable
    ):
        raise ConfigError(
            f"dead_letters: {dead_letter_store.traits.name} cannot store dead letters of another ledger: "
            "use a sqlite:///file.db, a postgresql:// database or an eventbridge:// bus"
        )


def _check_no_inbox(ledger: StoredLedger) -> None:
    if isinstance(ledger, Inbox):
        raise ConfigError(
            f"dead_letters: {ledger.traits.name} stores its dead letters itself, beside its inbox: remove dead_letters"
        )


def _with_target(ledger: StoredLedger, target: EventBridgeTarget) -> StoredLedger:
    from semel.core.dead_letter_store import LedgerWithDeadLetterTarget

    _check_no_inbox(ledger)
    if not isinstance(ledger, DeadLetters):
        raise ConfigError(
            f"dead_letters: a bus cannot be listed, and {ledger.traits.name} keeps no dead letters of its own: use a "
            "redis:// or dynamodb:// ledger, or a sqlite:///file.db for dead_letters"
        )
    return LedgerWithDeadLetterTarget(ledger, target)


def _memory(url: str) -> StoredLedger:
    from semel.ledgers.memory import MemoryLedger

    _check_options(url, ())
    return MemoryLedger()


def _sqlite(url: str, observe: Observe | None) -> StoredLedger:
    from semel.ledgers.sqlite import SqliteLedger

    options = _check_options(url, ("synchronous",))
    return SqliteLedger(_sqlite_path(url), synchronous=options.get("synchronous", "full"), observe=observe)


def _sqlite_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.path == "/:memory:":
        raise ConfigError(f"ledger {url!r}: for a ledger in memory use memory://")
    if parts.netloc or not url.startswith("sqlite:///") or len(parts.path) < 2 or parts.path.endswith("/"):
        raise ConfigError(f"ledger {url!r}: expected sqlite:///relative.db or sqlite:////absolute/path.db")
    return unquote(parts.path[1:])


def _check_options(url: str, known: tuple[str, ...]) -> dict[str, str]:
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    for name in options:
        if name not in known:
            raise ConfigError(f"ledger {url!r}: unknown option {name!r}; known are: {', '.join(known) or 'none'}")
    return options


# --------------------------------------------------------------------------------------------- callers' connections


def adding(
    store: str, notifications: Sequence[Notification], *, schema: str, numbered: bool, library: str
) -> Conversation:
    """The statements that add notifications to the outbox in the caller's own transaction."""
    if store == "postgresql":
        from semel.ledgers.postgres.caller_transaction import adding as in_a_schema

        return in_a_schema(notifications, schema, numbered=numbered)
    if schema != "semel":
        raise ConfigError(f"schema={schema!r}: SQLite has none: the outbox is in the connection's own file")
    from semel.ledgers.sqlite.caller_transaction import adding as in_a_file

    return in_a_file(notifications, library)


# --------------------------------------------------------------------------------------------------------- sources


class OpenSource(Source, Stoppable, Diagnosable, Protocol):
    """A source that a service can consume."""


def source(kind: str, options: Mapping[str, Any]) -> OpenSource:
    """A source of this kind, with the options of its adapter. Nothing is opened before it is used, or diagnosed.

    Raises ConfigError."""
    match kind:
        case "sqs":
            _need("aiobotocore", "aws", "a source in SQS")
            from semel.sources.sqs_queue import SqsSource

            return SqsSource(**options)
        case "kafka":
            _need("confluent_kafka", "kafka", "a source in Kafka")
            from semel.sources.kafka_topic import KafkaSource

            return KafkaSource(**options)
        case "rabbitmq":
            _need("aio_pika", "rabbitmq", "a source in RabbitMQ")
            from semel.sources.rabbitmq_queue import RabbitSource

            return RabbitSource(**options)
    raise ConfigError(f"kind={kind!r}: expected sqs, kafka or rabbitmq")


def publisher(kind: str, options: Mapping[str, Any]) -> Publisher:
    """A publisher to a broker of this kind. Nothing is opened before it is used. Raises ConfigError."""
    match kind:
        case "sqs":
            _need("aiobotocore", "aws", 'accept = "sqs"')
            from semel.sources.sqs_queue import SqsPublisher

            return SqsPublisher(**options)
        case "kafka":
            _need("confluent_kafka", "kafka", 'accept = "kafka"')
            from semel.sources.kafka_topic import KafkaPublisher

            return KafkaPublisher(**options)
        case "rabbitmq":
            _need("aio_pika", "rabbitmq", 'accept = "rabbitmq"')
            from semel.sources.rabbitmq_queue import RabbitPublisher

            return RabbitPublisher(**options)
    raise ConfigError(f"accept={kind!r}: expected sqs, kafka or rabbitmq")


# ------------------------------------------------------------------------------------------------------- providers


def provider(kind: str, name: str, options: Mapping[str, Any]) -> Provider:
    """The provider of this kind with its name in the settings. It opens nothing before it sends. Raises ConfigError."""
    _need("aiohttp", "service", "a provider")
    from semel.providers.registry import provider as make

    return make(kind, name, options)


def provider_option_types(kind: str) -> Mapping[str, Any]:
    """The annotated type of each option of a kind. Empty for an unknown kind."""
    if find_spec("aiohttp") is None:
        return {}
    from semel.providers.registry import option_types

    return option_types(kind)


def calls_of(kind: str) -> CallbackProfile | None:
    """The callback profile of providers of this kind; None if they have no callbacks."""
    from semel.providers.callbacks import CALLBACKS

    return CALLBACKS.get(kind)


# ------------------------------------------------------------------------------------------------------- verifying


def verifier(
    scheme: str,
    *,
    secrets: Sequence[str],
    header: str = "",
    username: str = "",
    topics: Sequence[str] = (),
    url: str = "",
) -> Verifier:
    """The verifier of a scheme."""
    from semel.verifiers import verifier as choose

    if scheme != "sns":
        return choose(scheme, secrets=secrets, header=header, username=username, topics=topics, url=url)
    from semel.service.assembly import fetch_certificate

    return choose(scheme, secrets=secrets, topics=topics, fetch=fetch_certificate)


def unwrap_sns(body: bytes) -> bytes | None:
    """The event in a verified message of SNS; None for a message about the subscription. Raises MalformedEvent."""
    from semel.verifiers.sns_message import unwrap

    message = unwrap(body)
    if message.type == "Notification":
        return message.message
    log.warning("sns_confirmation_needed", type=message.type, topic=message.topic, subscribe_url=message.subscribe_url)
    return None


# ------------------------------------------------------------------------------------------------------ forwarding


def destination(
    name: str,
    url: str,
    *,
    headers: Mapping[str, Secret],
    timeout_s: float,
    concurrency: int,
    allow: Sequence[str],
    breaker_failures: int,
    breaker_open_s: float,
    retry_budget: float,
    trace_headers: Callable[[], Mapping[str, str]] | None = None,
    moved: Callable[[State], None] | None = None,
) -> Destination:
    """A destination of routes. `moved` is called with each new state of its breaker."""
    from semel.destinations import Destination

    clock = time.monotonic
    return Destination(
        name,
        url,
        breaker=Breaker(
            breaker_failures,
            breaker_open_s,
            clock=clock,
            random=random.random,
            probe_s=max(PROBE_S, 2 * timeout_s),
            moved=moved,
        ),
        budget=RetryBudget(retry_budget, clock=clock),
        headers=headers,
        timeout_s=timeout_s,
        concurrency=concurrency,
        allow=allow,
        trace_headers=trace_headers,
    )


def forward(destination: Destination, select: str, *, park: bool) -> Callable[..., Any]:
    """The handler of a route to it."""
    from semel.destinations import Forward

    return Forward(destination, select, park)


async def reach(destination: Destination) -> str | None:
    """Why a destination cannot be reached; None when it can."""
    from semel.destinations import reach as look

    return await look(destination)


async def reach_provider(one: Provider) -> str | None:
    """Why a provider cannot be reached; None when it can. No message is sent."""
    from semel.providers.http import reach as look

    return await look(one)
