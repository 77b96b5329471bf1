"""Parses the ledger's URL.

redis://user:password@host:6379/0        one server                 rediss:// the same over TLS
unix:///run/redis.sock?db=0              one server, through its socket
redis+sentinel://host:26379,host:26379/master-name/0                the master that Sentinel names
redis+cluster://host:6379,host:6379      a Cluster, by any of its nodes;  rediss+cluster://, rediss+sentinel://
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from msgspec import Struct

from semel.values.errors import ConfigError

PORT, SENTINEL_PORT = 6379, 26379
TIMEOUT_S = 5.0
POOL = 4  # connections to each node: claims, settles, renewals, and one for operators
POOL_MAX, STRICT_MAX = 1000, 16
KNOWN = (
    "db",
    "prefix",
    "strict",
    "fsync",
    "timeout",
    "pool",
    "together",
    "username",
    "sentinel_username",
    "sentinel_password",
)
TLS = {"ca": "ssl_ca_certs", "cert": "ssl_certfile", "key": "ssl_keyfile", "verify": "ssl_cert_reqs"}
SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
EXAMPLES = "redis://host:6379/0, rediss://…, unix:///path, redis+sentinel://host1,host2/master/0 or redis+cluster://host1,host2"


class RedisAddress(Struct, frozen=True):
    """The location of the store and the options of its client. Its repr shows no secret."""

    kind: str  # "one", "sentinel" or "cluster"
    hosts: tuple[tuple[str, int], ...]
    path: str = ""  # of a socket
    master: str = ""
    db: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: dict[str, Any] | None = None
    prefix: str = "semel"
    strict: int = 0  # replicas that must have a write before it is acknowledged
    fsync: bool = False
    timeout_s: float = TIMEOUT_S
    pool: int = POOL
    together: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"RedisAddress({self.shown!r})"

    @property
    def shown(self) -> str:
        """Describes the store in messages, without its password."""
        if self.path:
            return f"Redis at {self.path}"
        hosts = ", ".join(f"{host}:{port}" for host, port in self.hosts)
        match self.kind:
            case "cluster":
                return f"Redis Cluster at {hosts}"
            case "sentinel":
                return f"Redis {self.master} of Sentinel at {hosts}"
        return f"Redis at {hosts}"


ESCAPE = "write @ : / ? # and % in a user or password as %40 %3A %2F %3F %23 %25"
_HOSTS = re.compile(r"[A-Za-z0-9._:,\[\]%-]*")


def parse_url(url: str) -> RedisAddress:
    """Raises ConfigError, which never shows the password."""
    scheme, _, rest = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError(f"ledger {scheme}://…: expected {EXAMPLES}")
    tls = scheme.startswith("rediss")
    kind = scheme.partition("+")[2] or "one"
    parts = urlsplit(f"//{rest}")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    credentials, _, hosts = parts.netloc.rpartition("@")
    if parts.fragment or "@" in parts.path + parts.query or _HOSTS.fullmatch(hosts) is None:
        raise ConfigError(f"ledger {scheme}://…: not a valid URL: {ESCAPE}")  # it may contain a part of the password
    shown = f"{scheme}://{hosts}{parts.path}"
    known = (*KNOWN, *(TLS if tls else ()))
    for name in options:
        if name not in known:
            raise ConfigError(f"ledger {shown}: unknown option {name!r}; known are: {', '.join(known)}")
    username, _, password = credentials.partition(":")
    path, master, db = _path(scheme, kind, shown, parts.path, options)
    return RedisAddress(
        kind=kind,
        hosts=() if path else _hosts(shown, hosts, SENTINEL_PORT if kind == "sentinel" else PORT, kind),
        path=path,
        master=master,
        db=db,
        username=unquote(username) or options.get("username") or None,
        password=unquote(password) or None,
        sentinel_username=options.get("sentinel_username"),
        sentinel_password=options.get("sentinel_password"),
        tls=_tls(shown, options) if tls else None,
        prefix=_prefix(shown, options.get("prefix", "semel")),
        strict=int(_number(shown, options, "strict", 0, 0, STRICT_MAX)),
        fsync=_boolean(shown, options, "fsync"),
        timeout_s=_number(shown, options, "timeout", TIMEOUT_S, 0.05, 3600),
        pool=int(_number(shown, options, "pool", POOL, 1, POOL_MAX)),
        together=tuple(name for name in options.get("together", "").split(",") if name),
    )


def _hosts(shown: str, hosts: str, port: int, kind: str) -> tuple[tuple[str, int], ...]:
    addresses = []
    for host in hosts.split(","):
        match = re.fullmatch(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]*)(?::(\d+))?", host)
        if match is None or not 0 < int(match[2] or port) < 65536:
            raise ConfigError(f"ledger {shown}: {host!r} is not host:port")
        addresses.append((match[1].strip("[]") or "localhost", int(match[2] or port)))
    if kind == "one" and len(addresses) > 1:
        raise ConfigError(f"ledger {shown}: several hosts need redis+cluster:// or redis+sentinel://")
    return tuple(addresses)


def _path(scheme: str, kind: str, shown: str, path: str, options: dict[str, str]) -> tuple[str, str, int]:
    """Return the socket, the name of the master, and the number of the database."""
    steps = [unquote(step) for step in path.split("/")[1:] if step]
    if scheme == "unix":
        if not path.startswith("/"):
            raise ConfigError(f"ledger {shown}: expected unix:///path/to/redis.sock")
        return unquote(path), "", _db(shown, options.get("db", "0"))
    if kind == "sentinel":
        if not steps:
            raise ConfigError(f"ledger {shown}: expected redis+sentinel://host1,host2/master-name/0")
        master, *steps = steps
    else:
        master = ""
    if len(steps) > 1:
        raise ConfigError(f"ledger {shown}: expected {EXAMPLES}")
    db = _db(shown, steps[0] if steps else options.get("db", "0"))
    if kind == "cluster" and db:
        raise ConfigError(f"ledger {shown}: a Cluster has only database 0; use prefix= to separate ledgers")
    return "", master, db


def _db(shown: str, text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"ledger {shown}: database {text!r} is not a number")
    return int(text)


def _prefix(shown: str, prefix: str) -> str:
    if not prefix or len(prefix) > 64 or "{" in prefix or "}" in prefix or not prefix.isprintable():
        raise ConfigError(f"ledger {shown}: prefix {prefix!r}: expected 1 to 64 characters without braces")
    return prefix


def _number(shown: str, options: dict[str, str], name: str, default: float, least: float, most: float) -> float:
    try:
        number = float(options.get(name, default))
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise ConfigError(f"ledger {shown}: {name}={options[name]}: expected a number from {least:g} to {most:g}")
    return number


def _boolean(shown: str, options: dict[str, str], name: str) -> bool:
    text = options.get(name, "no")
    if text not in ("yes", "no", "1", "0", "true", "false"):
        raise ConfigError(f"ledger {shown}: {name}={text}: expected yes or no")
    return text in ("yes", "1", "true")


def _tls(shown: str, options: dict[str, str]) -> dict[str, Any]:
    if options.get("verify", "required") not in ("required", "none"):
        raise ConfigError(f"ledger {shown}: verify={options['verify']}: expected required or none")
    tls_options: dict[str, Any] = {ours: options[name] for name, ours in TLS.items() if name in options}
    if tls_options.get("ssl_cert_reqs") == "none":
        tls_options["ssl_check_hostname"] = False
    return tls_options
