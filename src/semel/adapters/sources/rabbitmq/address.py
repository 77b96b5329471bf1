"""The URL of a broker: checked, and as it may be shown. It holds a password, which no log and no error may."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from semel.values.errors import ConfigError

OPTIONS = {  # what the driver understands, and no typo of it
    *("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl"),  # of TLS
    *("auth", "heartbeat", "name", "timeout"),
}
HEARTBEAT_S = 30  # a dead connection is noticed after three of them
NAME_MAX_BYTES = 255
WANTED = "expected amqp://user:password@host/vhost, or amqps:// for TLS"


def check_url(url: str) -> None:
    """Raises ConfigError, which does not repeat the password."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ConfigError(f"url: {WANTED}; a password with special characters has to be percent-encoded") from None
    if parts.scheme not in ("amqp", "amqps"):
        raise ConfigError(f"url={shown(url)!r}: {WANTED}")
    if not host or "@" in parts.path:
        raise ConfigError(f"url: {WANTED}; a password with special characters has to be percent-encoded")
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in OPTIONS:
            raise ConfigError(f"url: there is no option {name!r}; there are {', '.join(sorted(OPTIONS))}")
        if name.endswith("file") and parts.scheme == "amqp":
            raise ConfigError(f"url: {name} without TLS; say amqps://")
        if name.endswith("file") and not Path(value).is_file():
            raise ConfigError(f"url: {name}={value!r}: there is no such file")


def check_name(option: str, name: str) -> None:
    """Of a queue or an exchange."""
    if not name or len(name.encode()) > NAME_MAX_BYTES:
        raise ConfigError(f"{option}={name!r}: expected the name of a queue, at most {NAME_MAX_BYTES} bytes")


def shown(url: str) -> str:
    """Who, where and which vhost; no password and no options."""
    try:
        parts = urlsplit(url)
        user = f"{unquote(parts.username)}@" if parts.username else ""
        port = f":{parts.port}" if parts.port else ""
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or ""
    except ValueError:
        return "amqp://…"
    return f"{parts.scheme}://{user}{host}{port}{parts.path if '@' not in parts.path else ''}"


def dialled(url: str, name: str) -> str:
    """As the driver gets it: with a heartbeat, and a name that people see in the broker's list of connections."""
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    more = "" if "heartbeat" in options else f"heartbeat={HEARTBEAT_S}"
    named = "" if "name" in options else f"name={quote(name, safe='')}"
    extra = "&".join(part for part in (more, named) if part)
    return url if not extra else f"{url}{'&' if '?' in url else '?'}{extra}"
