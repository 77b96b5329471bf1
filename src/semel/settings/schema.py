"""What may stand in `semel.toml`. The comments are what `semel init` and the documents say about each name.

All times are seconds, all sizes bytes. A secret is written as a reference, "env:NAME" or "file:path", and is read when
the settings are loaded; nothing that shows settings shows a secret. A `description` says what was expected to whoever
wrote something else.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct, field

from semel.values.effect import KEYED_WINDOW_S, Effect
from semel.values.secret import Secret as Secret

BODY_MAX_BYTES = 256 * 1024
LEASE_S = 25.0
RETENTION_S = 38 * 86_400.0
REDELIVERY_S = 19 * 86_400.0  # Genesys 4 d, EventBridge 1 d, SQS 14 d
CENTURY_S = 100 * 365 * 86_400  # stores count milliseconds in 64 bits

# `\Z`, because `$` would let a newline pass at the end.
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
        description="a name of letters, digits and - . _ that begins with a letter or digit",
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
LedgerUrl = Annotated[Secret, Meta(extra={"url": True})]  # may hold a password, or be a reference as a whole
BrokerUrl = LedgerUrl
HeaderValue = Annotated[Secret, Meta(extra={"plain": True})]  # may also stand in the file as it is
Accept = Literal["inbox", "sqs", "kafka", "rabbitmq"]


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[server]: where it listens, and its limits."""

    host: Annotated[
        str, Meta(pattern=r"^[0-9A-Za-z.:%_-]+\Z", max_length=255, description='an address or name such as "127.0.0.1"')
    ] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    workers: Annotated[int, Meta(ge=1, le=64)] = 1  # processes that share the port and the ledger
    drain: Seconds = 25.0  # after SIGTERM: how long what is under way may take
    max_in_flight: Whole = 256  # deliveries being answered at a time; more are refused as overload
    body_max: Whole = BODY_MAX_BYTES
    header_max: Whole = 32 * 1024  # all headers together
    header_count_max: Whole = 100
    read_timeout: Seconds = 10.0  # from the first byte of a request to its last
    idle_timeout: Seconds = 30.0  # of a connection without a request
    connections_max: Whole = 10_000
    ledger_patience: Seconds = 0.05  # lowest limit for a ledger call; it grows with the usual round trip, up to 2 s
    log: Literal["auto", "console", "json"] = "auto"  # console on a terminal
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Verify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[endpoints.verify]: how a delivery proves where it comes from."""

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
    secrets: list[Secret] = field(default_factory=list)  # all of them count: add the new one, then remove the old one
    header: Annotated[
        str,
        Meta(
            pattern=r"^[A-Za-z0-9_-]*\Z",
            max_length=100,
            description='the name of a header, such as "x-api-key"',
            extra={"hidden": True},  # somebody may have written the secret beside the name
        ),
    ] = ""  # of hmac-hex and header; empty: the usual one of the scheme
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
    ] = ""  # of twilio: this path as Twilio was told it, which signs it


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[endpoints]]: a path that takes deliveries."""

    path: Path = "/events"
    mode: Literal["inbox", "inline"] = "inbox"  # accept and handle later, or let the handler decide the answer
    accept: Accept = "inbox"  # of mode = "inbox": where it is accepted into, the ledger's own inbox or one of [brokers]
    tenant: Label = ""
    origin: Label = ""  # the platform that made the events, where they do not say
    id_path: Dotted | None = None  # for any JSON: where its id is
    type_path: Dotted | None = None  # and its type; needs id_path
    verify: Verify | None = None
    busy_status: Literal[409, 503] = 503  # some senders drop what is answered with 4xx
    overload_status: Literal[429, 503] = 503
    body_max: Whole | None = None  # the server's, if not said


class Destination(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[destinations.NAME]: where routes forward to. Routes to one destination share its limits and its breaker."""

    url: str
    headers: dict[HeaderName, HeaderValue] = field(default_factory=dict)  # references or plain values; never shown
    timeout: Seconds = 10.0
    concurrency: Whole = 16  # requests at a time, in each process
    allow: list[str] = field(default_factory=list)  # hosts, or CIDR ranges, that may be private addresses
    breaker_failures: Whole = 5  # failures in a row that open the breaker
    breaker_open: Seconds = 10.0  # how long it stays open before one request may try
    retry_budget: Annotated[float, Meta(ge=0, le=10)] = 0.2  # retries for each first try, beyond a small reserve


class Route(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[routes]]: which events go where. `name` is part of every key: renaming forgets what was done."""

    name: Name
    topics: Annotated[list[str], Meta(min_length=1)]
    forward: str = ""  # a URL, or the name of a destination
    console: bool = False  # write a line to the console instead: for trying out
    select: Annotated[
        str, Meta(pattern=rf"^({_DOTTED})?\Z", max_length=500, description='a dotted path such as "detail.eventBody"')
    ] = ""  # the part to send; empty: the whole document as it arrived
    key: Annotated[str | list[Dotted], Meta(description='"event", "delivery", "content" or a list of dotted paths')] = (
        "event"  # a list of paths: one effect for each combination of their values
    )
    effect: Annotated[Effect, Meta(description='one of "keyed", "retry", "park"')] = "retry"  # of a route's own
    window: Seconds = KEYED_WINDOW_S  # of effect = "keyed": how long the destination honours an Idempotency-Key
    timeout: Seconds | None = None  # of one run; if not said, a little more than its destination may take
    lease: LeaseSeconds = LEASE_S
    max_attempts: Whole = 8
    retention: Seconds = RETENTION_S
    fail_open: bool = False  # inline only: run without the ledger when it cannot be reached; may double


class Source(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """[[sources]]: what all kinds of them have."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*)?\Z",
            max_length=100,
            description="a name of letters, digits and - . _ that begins with a letter or digit",
        ),
    ] = ""  # for people and metrics; empty: its kind and its queue
    workers: Annotated[int, Meta(ge=1, le=100)] = 4  # batches at a time, in each process
    unmatched: Literal["ack", "reject"] = "ack"  # what no route wants: forget it, or put it among the dead letters
    tenant: Label = ""
    origin: Label = ""  # the platform that made the events, where they do not say
    id_path: Dotted | None = None  # for any JSON: where its id is
    type_path: Dotted | None = None  # and its type; needs id_path
    forwarded: bool = False  # Semel's own endpoints fill it: believe the note beside each event, which names its tenant

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)

    @property
    def label(self) -> str:
        """What it is called."""
        return self.name or f"{self.kind}-{self.takes_from.rstrip('/').rpartition('/')[2]}"

    @property
    def takes_from(self) -> str:
        """The queue, or the topics, for people."""
        raise NotImplementedError


class SqsSource(Source, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="sqs"):
    """A queue of Amazon SQS, standard or FIFO."""

    queue: Url
    dead_letters: Url | None = None  # a queue for what nobody can act on; else the queue's redrive policy is needed
    region: Label = ""  # where the URL does not name it
    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\x00-\x20\x7f]+)?\Z", description="a URL")] = ""
    pollers: Annotated[int, Meta(ge=1, le=100)] = 4  # long polls at a time, in each process
    max_in_flight: Annotated[int, Meta(ge=1, le=20_000)] = 256  # received and not answered, in each process
    visibility: Annotated[int, Meta(ge=1, le=43_200)] = 30  # above the lease of every route; extended while in hand
    wait: Annotated[int, Meta(ge=1, le=20)] = 20  # of one long poll

    @property
    def takes_from(self) -> str:
        return self.queue


class KafkaSource(Source, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="kafka"):
    """Topics of Kafka, by a consumer group."""

    servers: LineText  # host:port, with commas between them
    topics: Annotated[list[LineText], Meta(min_length=1)]
    group: LineText
    dead_letters: LineText | None = None  # a topic for what nobody can act on
    in_order: bool = False  # events of one key one after the other, within a partition
    max_in_flight: Annotated[int, Meta(ge=1, le=100_000)] = 1_000  # received and not settled, in each process
    options: dict[LineText, HeaderValue] = field(default_factory=dict)  # of librdkafka; references or plain values

    @property
    def takes_from(self) -> str:
        return ",".join(self.topics)


class RabbitSource(Source, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="rabbitmq"):
    """A queue of RabbitMQ."""

    url: BrokerUrl  # amqp:// or amqps://
    queue: LineText
    dead_letters: LineText | None = None  # a queue for what nobody can act on
    prefetch: Annotated[int, Meta(ge=1, le=10_000)] = 250  # received and not answered, in each process
    declare: bool = False  # make the queues where they are not there
    consumer_timeout: Seconds = 1800.0  # the broker's: above the timeout of every route

    @property
    def takes_from(self) -> str:
        return self.queue


AnySource: TypeAlias = SqsSource | KafkaSource | RabbitSource


class SqsBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.sqs]: the queue that endpoints with accept = "sqs" fill."""

    queue: Url
    region: Label = ""
    endpoint: Annotated[str, Meta(pattern=r"^(https?://[^\x00-\x20\x7f]+)?\Z", description="a URL")] = ""
    timeout: Seconds = 3.0  # then its sender is told to come again


class KafkaBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.kafka]"""

    servers: LineText
    topic: LineText
    options: dict[LineText, HeaderValue] = field(default_factory=dict)  # as of a source
    timeout: Seconds = 3.0


class RabbitBroker(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers.rabbitmq]"""

    url: BrokerUrl
    queue: LineText  # with an exchange: the routing key
    exchange: Label = ""  # empty: straight to the queue
    declare: bool = False  # make the queue where it is not there, with dead_letters as its source has them
    dead_letters: LineText | None = None  # for declare: the queue of its [[sources]] for what nobody can act on
    timeout: Seconds = 3.0


class Brokers(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[brokers]: where endpoints hand events on to."""

    sqs: SqsBroker | None = None
    kafka: KafkaBroker | None = None
    rabbitmq: RabbitBroker | None = None


class Callbacks(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[providers.NAME.callbacks]: where this provider tells what became of messages."""

    path: Path
    verify: Verify | None = None
    body_max: Whole | None = None  # the server's, if not said


class Provider(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[providers.NAME]: sends messages. What else stands in its table are the options of its kind."""

    kind: LineText
    callbacks: Callbacks | None = None
    options: dict[str, Any] = field(default_factory=dict)


class Channels(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[channels]: which providers send, by name. The first one does; the next one is asked after a definite refusal
    only. A channel that is not named here is sent by the one provider that can."""

    sms: list[Name] = field(default_factory=list)
    email: list[Name] = field(default_factory=list)
    voice: list[Name] = field(default_factory=list)
    message: list[Name] = field(default_factory=list)
    event: list[Name] = field(default_factory=list)


class Outbox(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[outbox]: how long notifications are tried and kept."""

    relay: bool = True  # `semel run` sends too; false: only `semel relay` does
    max_age: Seconds = 3 * 86_400.0  # what has not left by then expires, also without a not_after
    retention: Seconds = 90 * 86_400.0  # of content, recipient and evidence of what is over
    identity: Seconds = 400 * 86_400.0  # after that, the same call is a new notification


class Token(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[tokens]]: who may use the HTTP API. `semel token` makes one."""

    name: Name
    digest: Annotated[
        str,
        Meta(
            pattern=r"^sha256:[0-9a-f]{64}\Z",
            description='"sha256:" and 64 hex digits, as `semel token` prints them',
            extra={"hidden": True},  # not repeated in an error: somebody may have pasted the token itself
        ),
    ]
    scopes: Annotated[
        list[Literal["claims", "keys", "metrics", "notify", "notifications", "operate"]], Meta(min_length=1)
    ]
    tenant: Label = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    ledger: LedgerUrl = Secret("sqlite:///semel.db")
    dead_letters: LedgerUrl | None = None  # another store for what was given up on, where the ledger may lose it
    tenant: Label = ""
    origin: Label = ""
    redelivery: Seconds = REDELIVERY_S  # how long a source may bring an event again
    server: Server = field(default_factory=Server)
    endpoints: list[Endpoint] = field(default_factory=lambda: [Endpoint()])  # none where there are sources instead
    sources: list[AnySource] = field(default_factory=list)
    brokers: Brokers = field(default_factory=Brokers)
    destinations: dict[Name, Destination] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    providers: dict[Name, Provider] = field(default_factory=dict)
    channels: Channels = field(default_factory=Channels)
    outbox: Outbox = field(default_factory=Outbox)
    tokens: list[Token] = field(default_factory=list)
