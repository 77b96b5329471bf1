"""What may stand in `semel.toml`. The comments are what `semel init` and the documents say about each name.

All times are seconds, all sizes bytes. A secret is written as a reference, "env:NAME" or "file:path", and is read when
the settings are loaded; nothing that shows settings shows a secret.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, field

from semel.values.effect import KEYED_WINDOW_S, Effect

BODY_MAX_BYTES = 256 * 1024
LEASE_S = 25.0
RETENTION_S = 38 * 86_400.0

Seconds = Annotated[float, Meta(gt=0, le=3_155_760_000)]
Whole = Annotated[int, Meta(ge=1)]
Path = Annotated[str, Meta(pattern=r"^/[A-Za-z0-9._~/-]*$", max_length=200)]
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


class Secret(str):
    """A secret that was read from where its reference points. It never shows itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "Secret(…)"

    __str__ = __repr__  # `reveal` is the one way to the value, and easy to search for

    def __format__(self, spec: str) -> str:
        return repr(self)

    def reveal(self) -> str:
        return str.__str__(self)


class Server(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[server]: where it listens, and its limits."""

    host: str = "127.0.0.1"
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
    ledger_patience: Seconds = 0.05  # an answer does not wait longer for the ledger: 503
    log: Literal["auto", "console", "json"] = "auto"  # console on a terminal
    log_level: Literal["debug", "info", "warning", "error"] = "info"


class Verify(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[endpoints.verify]: how a delivery proves where it comes from."""

    scheme: Literal["genesys", "standard-webhooks", "hmac-hex", "header", "basic", "sns", "none"]
    secrets: list[Secret] = field(default_factory=list)  # all of them count: add the new one, then remove the old one
    header: str = ""  # of hmac-hex and header; empty: the usual one of the scheme
    username: str = ""  # of basic
    topics: list[str] = field(default_factory=list)  # of sns: the topic ARNs that are accepted


class Endpoint(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[endpoints]]: a path that takes deliveries."""

    path: Path = "/events"
    mode: Literal["inbox", "inline"] = "inbox"  # accept and handle later, or let the handler decide the answer
    tenant: str = ""
    origin: str = ""  # the platform that made the events, where they do not say
    id_path: str | None = None  # for any JSON: where its id is
    type_path: str | None = None
    verify: Verify | None = None
    busy_status: Literal[409, 503] = 503  # some senders drop what is answered with 4xx
    overload_status: Literal[429, 503] = 503
    body_max: Whole | None = None  # the server's, if not said


class Destination(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[destinations.NAME]: where routes forward to. Routes to one destination share its limits and its breaker."""

    url: str
    headers: dict[str, Secret] = field(default_factory=dict)  # references or plain values; none of them is ever shown
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
    select: str = ""  # dotted path of the part to send; empty: the whole document as it arrived
    key: str | list[str] = (
        "event"  # "event", "delivery", "content", or paths: one effect for each combination of values
    )
    effect: Effect = "retry"
    window: Seconds = KEYED_WINDOW_S  # of effect = "keyed": how long the destination honours an Idempotency-Key
    timeout: Seconds | None = None
    lease: Seconds = LEASE_S
    max_attempts: Whole = 8
    retention: Seconds = RETENTION_S
    fail_open: bool = False  # inline only: run without the ledger when it cannot be reached; may double


class Token(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """[[tokens]]: who may use the HTTP API. `semel token` makes one."""

    name: Name
    digest: Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")]
    scopes: Annotated[list[Literal["claims", "keys", "metrics"]], Meta(min_length=1)]
    tenant: str = ""


class Settings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    ledger: str = "sqlite:///semel.db"
    tenant: str = ""
    origin: str = ""
    redelivery: Seconds = (
        19 * 86_400.0
    )  # how long a source may bring an event again: Genesys 4 d, EventBridge 1 d, SQS 14 d
    server: Server = field(default_factory=Server)
    endpoints: list[Endpoint] = field(default_factory=lambda: [Endpoint()])
    destinations: dict[str, Destination] = field(default_factory=dict)
    routes: list[Route] = field(default_factory=list)
    tokens: list[Token] = field(default_factory=list)
