"""Options of a RabbitMQ source, and the checks of URLs and names."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from semel.sources.lifecycle import SourceOptions
from semel.sources.rabbitmq_queue.messages import SUFFIX_MAX_BYTES
from semel.values.errors import ConfigError

PREFETCH_MAX = 10_000  # messages in the memory of one process; AMQP allows 65,535
CONSUMER_TIMEOUT_S = 1800.0  # the broker's default: after 30 minutes without an answer it closes the channel
CONSUMER_TIMEOUT_MIN_S = 1.0
DAY_S = 86_400.0
OPTIONS = {  # options that the driver supports
    *("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl"),  # for TLS
    *("auth", "heartbeat", "name", "timeout"),
}
HEARTBEAT_S = 30  # a dead connection is detected after three heartbeats
NAME_MAX_BYTES = 255
WANTED = "expected amqp://user:password@host/vhost, or amqps:// for TLS"


class RabbitOptions(SourceOptions, frozen=True, kw_only=True):
    """Options of a RabbitMQ source.

    url: amqp://user:password@host/vhost, or amqps:// with `cafile`, `certfile`, `keyfile` as options.
    dead_letters: the name of another queue, for rejected messages.
    prefetch: messages that are delivered and not answered.
    declare: create missing queues as quorum queues; otherwise both must exist.
    consumer_timeout: the broker's setting, in seconds; a delivery that takes 0.8 of it goes back.
    """

    url: str
    queue: str
    prefetch: int = 250
    declare: bool = False
    consumer_timeout: float = CONSUMER_TIMEOUT_S

    def __post_init__(self) -> None:
        """Raises ConfigError that names the wrong option."""
        queue, dead_letters, prefetch = self.queue, self.dead_letters, self.prefetch
        check_url(self.url)
        check_name("queue", queue)
        if not dead_letters:
            raise ConfigError(
                f"dead_letters: name a queue for rejected messages, for example {queue}.dead; without it the broker "
                "would redeliver them forever"
            )
        check_name("dead_letters", dead_letters)
        if len(queue.encode()) > NAME_MAX_BYTES - SUFFIX_MAX_BYTES:
            raise ConfigError(f"queue={queue!r}: the name is too long for the names of its retry queues")
        if queue == dead_letters:
            raise ConfigError(f"dead_letters={queue!r}: a queue cannot keep its own dead letters; name another one")
        if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
            raise ConfigError(
                f"prefetch={prefetch!r}: expected a whole number, at least 1 and at most {PREFETCH_MAX:,}"
            )
        if not CONSUMER_TIMEOUT_MIN_S <= self.consumer_timeout <= DAY_S:
            raise ConfigError(
                f"consumer_timeout={self.consumer_timeout!r}: expected the broker's value in seconds; its default is "
                "1800"
            )

    def __repr__(self) -> str:  # without the password
        return f"RabbitOptions({display_url(self.url)!r}, {self.queue!r})"


def check_url(url: str) -> None:
    """Raises ConfigError, which does not repeat the password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"url: {WANTED}; percent-encode special characters of the password") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise ConfigError(f"url={display_url(url)!r}: {WANTED}")
    if not host or "@" in parts.path:
        raise ConfigError(f"url: {WANTED}; percent-encode special characters of the password")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ConfigError(f"url: unknown option {name!r}; expected one of {', '.join(sorted(OPTIONS))}")
        if name.endswith("file") and parts.scheme == "amqp":
            raise ConfigError(f"url: {name} needs TLS; use amqps://")
        if name.endswith("file") and not Path(value).is_file():
            raise ConfigError(f"url: {name}={value!r}: no such file")


def check_name(option: str, name: str) -> None:
    """Check the name of a queue or an exchange. Raises ConfigError."""
    if not name or len(name.encode()) > NAME_MAX_BYTES:
        raise ConfigError(f"{option}={name!r}: expected the name of a queue, at most {NAME_MAX_BYTES} bytes")


def display_url(url: str) -> str:
    """URL for logs and errors: user, host and vhost, without password and options."""
    try:
        parts = urlsplit(url)
        user = f"{unquote(parts.username)}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    except ValueError:
        return "amqp://…"
    return f"{parts.scheme}://{user}{host}{port}{parts.path if '@' not in parts.path else ''}"


def driver_url(url: str, name: str) -> str:
    """URL for the driver: with a heartbeat, and a name for the broker's list of connections."""
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    more = "" if "heartbeat" in options else f"heartbeat={HEARTBEAT_S}"
    named = "" if "name" in options else f"name={quote(name, safe='')}"
    extra = "&".join(part for part in (more, named) if part)
    return url if not extra else f"{url}{'&' if '?' in url else '?'}{extra}"
