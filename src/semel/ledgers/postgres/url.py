"""The ledger's URL: where the server is, and how it is used.

    postgresql://user:password@host:5432/database?pool=10&schema=semel&sslmode=verify-full

Other options (TLS, several hosts, sockets) go to the driver unchanged. The password is never shown.
"""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from semel.ledgers.postgres.statements import is_schema_name
from semel.values.errors import ConfigError

SCHEMES = ("postgresql", "postgres")
DRIVERS_OWN = (  # options of libpq that asyncpg supports
    *("host", "port", "user", "password", "dbname", "passfile", "application_name", "target_session_attrs"),
    *("sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation"),
    *("ssl_min_protocol_version", "ssl_max_protocol_version", "krbsrvname", "gsslib"),
)


_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._%-]*)(:[0-9]{1,5})?", re.ASCII)
PORT_MAX = 65_535

_OPTION = re.compile(r"[a-z_]{1,40}", re.ASCII)


class Options(Struct, frozen=True):
    """Options of a PostgreSQL ledger. At most `pool` + `transactions` + 5 connections are open at a time."""

    dsn: str  # for the driver; contains the password
    where: str = "PostgreSQL"  # host and database, for messages
    schema: str = "semel"
    pool: int = 10  # connections for claims and settles
    transactions: int = 5  # connections for handlers with effect="transaction"
    group: int = 16  # transactional events that may share one commit
    pool_wait: float = 5.0  # seconds to wait for a free connection
    timeout: float = 15.0  # seconds that a statement of the ledger may take
    connect_timeout: float = 10.0
    statement_cache: int = 200  # 0: for a pgbouncer that shares connections by transaction

    def __repr__(self) -> str:
        return f"Options({self.where!r}, schema={self.schema!r}, pool={self.pool})"


LIMITS: dict[str, tuple[float, float]] = {
    "pool": (1, 1000),
    "transactions": (1, 1000),
    "group": (1, 1000),
    "pool_wait": (0.01, 600),
    "timeout": (0.1, 600),
    "connect_timeout": (0.1, 600),
    "statement_cache": (0, 10_000),
}


def parse(url: str) -> Options:
    """Parse a URL. Raises ConfigError with the problem and the known options."""
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise ConfigError("PostgreSQL URL: cannot be read: expected postgresql://user:password@host/database") from None
    if parts.scheme not in SCHEMES:
        raise ConfigError("expected a URL that begins with postgresql://")
    if parts.fragment or "@" in parts.path + parts.query or not _are_hosts(parts.netloc.rpartition("@")[2]):
        raise ConfigError(
            "PostgreSQL URL: cannot be read: write @ : / ? # and % in a user or password as %40 %3A %2F %3F %23 %25"
        )
    _check_ports(parts.netloc.rpartition("@")[2])
    ours: dict[str, str | int | float] = {}
    theirs: list[tuple[str, str]] = []
    for name, value in pairs:
        if name == "schema":
            ours[name] = _schema(value)
        elif name in LIMITS:
            ours[name] = _number(name, value)
        elif name in DRIVERS_OWN:
            theirs.append((name, value))
        else:
            known = ", ".join(["schema", *LIMITS, *DRIVERS_OWN])
            shown = f" {name!r}" if _OPTION.fullmatch(name) else ""
            raise ConfigError(f"PostgreSQL URL: unknown option{shown}; known are {known}")
    dsn = urlunsplit(parts._replace(scheme="postgresql", query=urlencode(theirs), fragment=""))
    return Options(dsn=dsn, where=_where(parts, dict(theirs)), **ours)  # type: ignore[arg-type]


def _are_hosts(text: str) -> bool:
    """True if the text is a list of hosts. Otherwise it may be part of a password and must not be shown."""
    return all(_HOST.fullmatch(host) is not None for host in text.split(","))


def _check_ports(hosts: str) -> None:
    for host in hosts.split(","):
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if port and not 1 <= int(port) <= PORT_MAX:
            raise ConfigError(f"PostgreSQL URL: port {port}: expected a number from 1 to {PORT_MAX}")


def _schema(name: str) -> str:
    if not is_schema_name(name) or name.startswith("pg_") or name in ("public", "information_schema"):
        raise ConfigError(
            f"PostgreSQL URL: schema={name!r}: expected a name of its own: lower-case characters, digits, underscores"
        )
    return name


def _number(name: str, text: str) -> int | float:
    least, most = LIMITS[name]
    whole = isinstance(Options.__struct_defaults__[Options.__struct_fields__.index(name) - 1], int)
    pattern = r"[0-9]{1,6}" if whole else r"[0-9]{1,6}(\.[0-9]{1,6})?"
    if re.fullmatch(pattern, text, re.ASCII) is None or not least <= float(text) <= most:
        kind = "a whole number" if whole else "a number of seconds"
        raise ConfigError(f"PostgreSQL URL: {name}={text!r}: expected {kind} from {least:g} to {most:g}")
    return int(text) if whole else float(text)


def _where(parts: SplitResult, query: dict[str, str]) -> str:
    """Return host and database, for messages. The text before the last @ may be a secret."""
    hosts = parts.netloc.rpartition("@")[2] or query.get("host", "")
    database = unquote(parts.path.lstrip("/")) or query.get("dbname", "")
    return f"PostgreSQL at {unquote(hosts) or 'the local socket'}" + (f", database {database}" if database else "")
