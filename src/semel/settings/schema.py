"""The schema of `semel.toml`: one Struct per table. `semel init` and the documentation use the same words.

All times are seconds, all sizes bytes. A secret is written as a reference, "env:NAME" or "file:path", and is read when
the settings are loaded. No output shows a secret. A `description` completes the sentence "expected …" in errors.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from semel.values.effect import KEYED_WINDOW_S, Effect
from semel.values.secret import Secret as Secret

BODY_MAX_BYTES = 256 * 1024
LEASE_S = 25.0
RETENTION_S = 38 * 86_400.0
REDELIVERY_S = 19 * 86_400.0  # Genesys 4 d + EventBridge 1 d + SQS 14 d
CENTURY_S = 100 * 365 * 86_400  # stores have milliseconds in 64 bits

# `\Z`, because `$` also matches before a final newline.
_PLAIN = r"[^\x00-\x1f\x7f]"
_DOTTED = r"[^.\x00-\x1f\x7f]+(\.[^.\x00-\x1f\x7f]+)*"
_HEADER = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"

Seconds = Annotated[float, Meta(ge=0.001, le=CENTURY_S, description="a number of seconds, at least 0.001")]
LeaseSeconds = Annotated[float, Meta(ge=0.1, le=CENTURY_S, description="a number of seconds, at least 0.1")]
Whole = Annotated[int, Meta(ge=1, le=2**40, description="a whole number, at least 1")]
Label = Annotated[
    str, Meta(pattern=rf"^{_PLAIN}*\Z", max_length=255, description="a text of at most 255 characters, on one line")
]
Path = Annotated[
    str,
    Meta(
        pattern=r"^/[A-Za-z0-9._~/-]*\Z",
        max_length=200,
        description='a path such as "/events", of letters, digits and - . _ ~',
    ),
]
Name = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z",
        max_length=100,
        description="a name of letters, digits and - . _ that starts with a letter or digit",
    ),
]
Dotted = Annotated[
    str,
    Meta(
        pattern=rf"^{_DOTTED}\Z",
        max_length=500,
        description='a dotted path such as "detail.eventBody.conversationId"',
    ),
]
HeaderName = Annotated[
    str, Meta(pattern=rf"^{_HEADER}\Z", max_length=100, description='the name of a header, such as "x-api-key"')
]
Url = Annotated[
    str,
    Meta(
        pattern=r"^https?://[^\x00-\x20\x7f]+\Z",
        max_length=2_000,
        description='a URL such as "https://sqs.eu-central-1.amazonaws.com/123456789012/events"',
    ),
]
LineText = Annotated[
    str,
    Meta(pattern=rf"^{_PLAIN}+\Z", max_length=255, description="a text of 1 to 255 characters, on one line"),
]
LedgerUrl = Annotated[Secret, Meta(extra={"url": True})]  # may contain a password, or be one reference
BrokerUrl = LedgerUrl
HeaderValue = Annotated[Secret, Meta(extra={"plain": True})]  # a reference or a plain text
Accept = Literal["inbox", "sqs", "kafka", "rabbitmq"]


class ServerSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[server]: the address of the service, and its limits."""

    host: Annotated[
        str, Meta(pattern=r"^[0-9A-Za-z.:%_-]+\Z", max_length=255, description='an address or name such as "127.0.0.1"')
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    workers: Annotated[int, Meta(ge=1, le=64)] = 1  # processes that share the port and the ledger
    drain: Seconds = 25.0  # after SIGTERM: time for running handlers to finish
    max_in_flight: Whole = 256  # concurrent deliveries; more are refused as overload
    body_max: Whole = BODY_MAX_BYTES
    header_max: Whole = 32 * 1024  # all headers together
    header_count_max: Whole = 100
    read_timeout: Seconds = 10.0  # from the first to the last byte of a request
    idle_timeout: Seconds = 30.0  # of a connection without a request
    connections_max: Whole = 10_000
    ledger_patience: Seconds = 0.05  # lowest limit for a ledger call; it grows with the usual round trip, up to 2 s
    log: Literal["auto", "console", "json"] = "auto"  # console on a terminal
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Verify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[endpoints.verify]: how a delivery proves its origin."""

    scheme: Literal[
        "genesys",
        "standard-webhooks",
        "hmac-hex",
        "header",
        "basic",
        "sns",
        "twilio",
        "sendgrid",
        "telnyx",
        "vonage",
        "none",
    ]
    secrets: list[Secret] = field(
        default_factory=list
    )  # each is valid: to rotate, add the new one, then remove the old one
    header: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]*\Z",
            max_length=100,
            description='the name of a header, such as "x-api-key"',
            extra={"hidden": True},  # not repeated in an error: it may contain the secret
        ),
    ] = ""  # of hmac-hex and header; empty: the default of the scheme
    username: Label = ""  # of basic
    topics: list[
        Annotated[
            str,
            Meta(
                pattern=r"^arn:(aws|aws-cn|aws-us-gov):sns:[a-z]{2,4}(-[a-z]{2,12}){1,3}-[0-9]{1,2}"
                r":[0-9]{12}:[A-Za-z0-9_-]{1,256}(\.fifo)?\Z",
                description='the ARN of a topic, such as "arn:aws:sns:eu-central-1:123456789012:my-topic"',
            ),
        ]
    ] = field(default_factory=list)  # of sns: the topic ARNs that are accepted
    url: Annotated[
        str,
        Meta(
            pattern=r"^(https?://[^\x00-\x20\x7f?#]+)?\Z",
            max_length=2_000,
            description='a URL such as "https://semel.example.com/callbacks/twilio", without a question mark',
        ),
    ] = ""  # of twilio: the URL that Twilio calls and signs


class EndpointSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[endpoints]]: an HTTP path that takes deliveries."""

    path: Path = "/events"
    mode: Literal["inbox", "inline"] = "inbox"  # accept and handle later, or answer with the outcome
    accept: Accept = "inbox"  # of mode = "inbox": the ledger's inbox, or a broker of [brokers]
    tenant: Label = ""
    origin: Label = ""  # platform of events that do not name it
    id_path: Dotted | None = None  # path of the id, for any JSON
    type_path: Dotted | None = None  # path of the type; needs id_path
    verify: Verify | None = None
    busy_status: Literal[409, 503] = 503  # some senders drop events after a 4xx
    overload_status: Literal[429, 503] = 503
    body_max: Whole | None = None  # by default that of [server]


class DestinationSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[destinations.NAME]: a target of routes. All routes to it share its limits and its breaker."""

    url: str
    headers: dict[HeaderName, HeaderValue] = field(default_factory=dict)  # references or plain values; never shown
    timeout: Seconds = 10.0
    concurrency: Whole = 16  # concurrent requests in each process
    allow: list[str] = field(default_factory=list)  # hosts, or CIDR ranges, that may be private addresses
    breaker_failures: Whole = 5  # failures in a row that open the breaker
    breaker_open: Seconds = 10.0  # how long it stays open before a probe
    retry_budget: Annotated[float, Meta(ge=0, le=10)] = 0.2  # retries per first attempt, beyond a small reserve


class Route(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[routes]]: sends events to a target. `name` is part of every key: a renamed route runs old events again."""

    name: Name
    topics: Annotated[list[str], Meta(min_length=1)]
    forward: str = ""  # a URL, or the name of a destination
    console: bool = False  # write a line to the console instead, for tests
    select: Annotated[
        str, Meta(pattern=rf"^({_DOTTED})?\Z", max_length=500, description='a dotted path such as "detail.eventBody"')
    ] = ""  # the part to send; empty: the whole document
    key: Annotated[str | list[Dotted], Meta(description='"event", "delivery", "content" or a list of dotted paths')] = (
        "event"  # a list of paths: one effect per combination of values
    )
    effect: Annotated[Effect, Meta(description='one of "keyed", "retry", "park"')] = "retry"
    window: Seconds = KEYED_WINDOW_S  # of effect = "keyed": time for which the destination honours a key
    timeout: Seconds | None = None  # of one run; by default a little more than that of its destination
    lease: LeaseSeconds = LEASE_S
    max_attempts: Whole = 8
    retention: Seconds = RETENTION_S
    fail_open: bool = False  # inline only: run without the ledger during an outage; an event may run twice


class SourceSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """[[sources]]: the fields of all kinds."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z",
            max_length=100,
            description="a name of letters, digits and - . _ that starts with a letter or digit",
        ),
    ] = ""  # for logs and metrics; by default its kind and its queue
    workers: Annotated[int, Meta(ge=1, le=100)] = 4  # concurrent batches in each process
    unmatched: Literal["ack", "reject"] = "ack"  # events without a route: discard or dead letter
    tenant: Label = ""
    origin: Label = ""  # platform of events that do not name it
    id_path: Dotted | None = None  # path of the id, for any JSON
    type_path: Dotted | None = None  # path of the type; needs id_path
    forwarded: bool = False  # endpoints of Semel fill it: trust the metadata of events, including the tenant

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def label(self) -> str:
        """The name, or a name made of the kind and the queue."""
        return self.name or f"{self.kind}-{self.takes_from.rstrip('/').rpartition('/')[2]}"

    @property
    def takes_from(self) -> str:
        """The queue, or the topics, as text."""
        raise NotImplementedError


class SqsSourceSettings(
    SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sqs"
):
    """An Amazon SQS queue, standard or FIFO."""

    queue: Url
    dead_letters: Url | None = None  # queue for rejected messages; by default the queue's redrive policy
    region: Label = ""  # if the URL does not contain it
    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\x00-\x20\x7f]+)?\Z", description="a URL")] = ""
    pollers: Annotated[int, Meta(ge=1, le=100)] = 4  # concurrent long polls in each process
    max_in_flight: Annotated[int, Meta(ge=1, le=20_000)] = 256  # unacknowledged messages in each process
    visibility: Annotated[int, Meta(ge=1, le=43_200)] = 30  # above the lease of every route; extended while in flight
    wait: Annotated[int, Meta(ge=1, le=20)] = 20  # of one long poll

    @property
    def takes_from(self) -> str:
        return self.queue


class KafkaSourceSettings(
    SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="kafka"
):
    """Kafka topics, read by a consumer group."""

    servers: LineText  # host:port, separated by commas
    topics: Annotated[list[LineText], Meta(min_length=1)]
    group: LineText
    dead_letters: LineText | None = None  # topic for rejected messages
    in_order: bool = False  # messages of one key run one after the other
    max_in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 1_000  # unsettled messages in each process
    options: dict[LineText, HeaderValue] = field(
        default_factory=dict
    )  # options of librdkafka; references or plain values

    @property
    def takes_from(self) -> str:
        return ",".join(self.topics)


class RabbitSourceSettings(
    SourceSettings, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="rabbitmq"
):
    """A RabbitMQ queue."""

    url: BrokerUrl  # amqp:// or amqps://
    queue: LineText
    dead_letters: LineText | None = None  # queue for rejected messages
    prefetch: Annotated[int, Meta(ge=1, le=10_000)] = 250  # unacknowledged messages in each process
    declare: bool = False  # create missing queues
    consumer_timeout: Seconds = 1800.0  # setting of the broker; above the timeout of every route

    @property
    def takes_from(self) -> str:
        return self.queue


AnySource: TypeAlias = SqsSourceSettings | KafkaSourceSettings | RabbitSourceSettings


class SqsBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.sqs]: the queue of endpoints with accept = "sqs"."""

    queue: Url
    region: Label = ""
    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\x00-\x20\x7f]+)?\Z", description="a URL")] = ""
    timeout: Seconds = 3.0  # then the sender gets a 503


class KafkaBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.kafka]"""

    servers: LineText
    topic: LineText
    options: dict[LineText, HeaderValue] = field(default_factory=dict)  # as in [[sources]]
    timeout: Seconds = 3.0


class RabbitBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.rabbitmq]"""

    url: BrokerUrl
    queue: LineText  # with an exchange: the routing key
    exchange: Label = ""  # empty: the default exchange
    declare: bool = False  # create a missing queue, with dead_letters as in [[sources]]
    dead_letters: LineText | None = None  # of declare: the dead_letters of its [[sources]]
    timeout: Seconds = 3.0


class Brokers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers]: targets of endpoints that forward events."""

    sqs: SqsBroker | None = None
    kafka: KafkaBroker | None = None
    rabbitmq: RabbitBroker | None = None


class Callbacks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[providers.NAME.callbacks]: the path for status callbacks of this provider."""

    path: Path
    verify: Verify | None = None
    body_max: Whole | None = None  # by default that of [server]


class ProviderSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[providers.NAME]: sends messages. `options` are all other keys of the table: the options of its kind."""

    kind: LineText
    callbacks: Callbacks | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Channels(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[channels]: the providers of each channel, by name. The first one sends. The next one is used only after a
    definite refusal. A channel without an entry uses the only provider that supports it."""

    sms: list[Name] = field(default_factory=list)
    email: list[Name] = field(default_factory=list)
    voice: list[Name] = field(default_factory=list)
    message: list[Name] = field(default_factory=list)
    event: list[Name] = field(default_factory=list)


class OutboxSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[outbox]: how long notifications are retried and kept."""

    relay: bool = True  # `semel run` also sends; false: only `semel relay` sends
    max_age: Seconds = 3 * 86_400.0  # unsent notifications expire then, also without a not_after
    retention: Seconds = 90 * 86_400.0  # of content, recipient and evidence of finished notifications
    identity: Seconds = 400 * 86_400.0  # then a repeated call creates a new notification


class Token(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[tokens]]: access to the HTTP API. `semel token` creates one."""

    name: Name
    digest: Annotated[
        str,
        Meta(
            pattern=r"^sha256:[0-9a-f]{64}\Z",
            description='"sha256:" and 64 hex digits, as `semel token` prints them',
            extra={"hidden": True},  # not repeated in an error: it may be the token itself
        ),
    ]
    scopes: Annotated[
        list[Literal["claims", "keys", "metrics", "notify", "notifications", "operate"]], Meta(min_length=1)
    ]
    tenant: Label = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    ledger: LedgerUrl = Secret("sqlite:///semel.db")
    dead_letters: LedgerUrl | None = None  # another store for dead letters, if the ledger may lose them
    tenant: Label = ""
    origin: Label = ""
    redelivery: Seconds = REDELIVERY_S  # how long a source may redeliver an event
    server: ServerSettings = field(default_factory=ServerSettings)
    endpoints: list[EndpointSettings] = field(default_factory=lambda: [EndpointSettings()])  # none if there are sources
    sources: list[AnySource] = field(default_factory=list)
    brokers: Brokers = field(default_factory=Brokers)
    destinations: dict[Name, DestinationSettings] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    providers: dict[Name, ProviderSettings] = field(default_factory=dict)
    channels: Channels = field(default_factory=Channels)
    outbox: OutboxSettings = field(default_factory=OutboxSettings)
    tokens: list[Token] = field(default_factory=list)
