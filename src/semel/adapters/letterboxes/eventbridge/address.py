"""What `eventbridge://bus?region=eu-central-1&…` says. Credentials are never part of it."""

from __future__ import annotations

import re
from typing import Literal, TypeAlias, cast
from urllib.parse import parse_qsl, urlsplit

from msgspec import Struct

from semel.values.errors import ConfigError

Oversize: TypeAlias = Literal["truncate", "reference"]

SOURCE = "semel"
OPTIONS = ("region", "endpoint", "source", "oversize")

_NAME = re.compile(r"[A-Za-z0-9._/-]{1,256}")
_ARN = re.compile(r"arn:[a-z-]+:events:(?P<region>[a-z0-9-]+):[0-9]{12}:event-bus/[A-Za-z0-9._/-]{1,256}")
_SOURCE = re.compile(r"[A-Za-z0-9._-]{1,256}")


class Address(Struct, frozen=True):
    """Which bus, and what is put there."""

    bus: str  # its name, or its ARN where it belongs to another account
    region: str | None = None  # None: by AWS_REGION or the profile
    endpoint: str | None = None  # None: the service itself
    source: str = SOURCE
    oversize: Oversize = "truncate"

    def __str__(self) -> str:
        return f"EventBridge bus {self.bus} ({self.endpoint or self.region or 'region of the environment'})"


def parse(url: str) -> Address:
    parts = urlsplit(url)
    shown = url.partition("?")[0]  # whoever wrote a secret into an option must not find it in a log
    if "@" in parts.netloc:
        raise ConfigError(
            "dead_letters eventbridge://…: a URL with user and password is refused, they would end up in logs; "
            "credentials come by the usual AWS chain: environment, profile, or the role of the machine"
        )
    bus = (parts.netloc + parts.path).rstrip("/")
    arn = _ARN.fullmatch(bus)
    if parts.scheme != "eventbridge" or not (arn or _NAME.fullmatch(bus)):
        raise ConfigError(
            f"dead_letters {shown!r}: expected eventbridge://bus?region=eu-central-1, with the name of a bus or its ARN"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in OPTIONS:
            raise ConfigError(f"dead_letters {shown!r}: unknown option {name!r}; known are: {', '.join(OPTIONS)}")
    return Address(
        bus=bus,
        region=options.get("region") or (arn["region"] if arn else None),
        endpoint=_endpoint(shown, options.get("endpoint")),
        source=_source(shown, options.get("source", SOURCE)),
        oversize=_oversize(shown, options.get("oversize", "truncate")),
    )


def _endpoint(shown: str, endpoint: str | None) -> str | None:
    if not endpoint:
        return None
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        raise ConfigError(
            f"dead_letters {shown!r}: endpoint: expected http://host:port or https://host, without credentials"
        )
    return endpoint


def _source(shown: str, source: str) -> str:
    if not _SOURCE.fullmatch(source) or source.startswith("aws."):
        raise ConfigError(
            f"dead_letters {shown!r}: source={source[:80]!r}: expected letters, digits, '.', '_' and '-', and not "
            "aws.…, which is Amazon's own"
        )
    return source


def _oversize(shown: str, oversize: str) -> Oversize:
    if oversize not in ("truncate", "reference"):
        raise ConfigError(f"dead_letters {shown!r}: oversize={oversize[:80]!r}: expected truncate or reference")
    return cast(Oversize, oversize)
