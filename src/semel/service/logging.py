"""Configures the log of the process, and masks everything that is written to it.

All lines have one format: Semel's, uvicorn's and those of libraries. It is JSON, or text on a terminal. A log never
contains a body, a secret, or the text form of an unknown object. A value is shown only if its type is known to be
harmless; other values are shown as their type. Lists are shown item by item, deeper values as their type. Fields with
names such as `body` or `password` are masked. Only a secret that a program itself puts into a message text cannot be
masked. No value can forge a line, and the length of lines is limited. A line that repeats too often is omitted for the
rest of the second, and counted.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from itertools import islice
from pathlib import PurePath
from time import monotonic
from typing import Any, Literal, TextIO, TypeAlias
from uuid import UUID

import msgspec
import structlog

from semel.service.tracing import ids
from semel.values.errors import MalformedEvent, SemelError
from semel.values.log import LogEvent
from semel.values.secret import Secret

MASK = "***"
TEXT_MAX = 500  # characters of one value
ITEM_MAX = 100  # characters of one item of a list
ITEMS_MAX = 20
NAME_MAX = 64

# Fields with such names are masked,
_CREDENTIAL = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|cookie|header|signature|bearer|auth|(api|access|private|account)key|dsn"
)
# and of these fields only numbers are shown ("body_bytes": 120).
_CONTENT = re.compile(r"body|bodies|payload|document|content|^(data|raw|text|result|event)s?$")

_PLAIN = (date, time, timedelta, Decimal, UUID, PurePath, IPv4Address, IPv6Address, IPv4Network, IPv6Network)

Scalar: TypeAlias = bool | int | float | str | None


def shown(name: str, value: object) -> Scalar | list[Scalar]:
    """The value of a field as it may be logged."""
    hidden = _hidden(name[:NAME_MAX])
    if hidden == "all" or (hidden == "content" and not isinstance(value, (int, float, type(None)))):
        return MASK
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [harmless(item, ITEM_MAX) for item in islice(value, ITEMS_MAX)]
        return items if len(value) <= ITEMS_MAX else [*items, f"… ({len(value)} items)"]
    return harmless(value)


def harmless(value: object, most: int = TEXT_MAX) -> Scalar:
    """One value, regardless of its name. A value that is not known to be harmless is shown as its type."""
    try:
        match value:
            case None | bool():
                return value
            case Secret():
                return MASK
            case Enum():
                return one_line(value.name, most)
            case int():
                return int(value) if -(2**63) <= value < 2**63 else "<large number>"
            case float():
                return float(value)
            case str():
                return one_line(str(value), most)
            case bytes() | bytearray() | memoryview():
                return f"<{len(value)} bytes>"
            case BaseException():
                return describe_error(value)
        if isinstance(value, _PLAIN):
            return one_line(str(value), most)
        if isinstance(value, Collection):
            return f"<{_kind(value)} of {len(value)}>"
    except Exception:  # methods of an unknown object may raise anything
        pass
    return f"<{_kind(value)}>"


def describe_error(error: BaseException) -> str:
    """The type of an error. Its text is added only for errors of Semel and the system: others may quote input."""
    text: object = None
    if isinstance(error, SemelError) and not isinstance(error, MalformedEvent):
        text = error
    elif isinstance(error, OSError):
        text = error.strerror
    return _kind(error) if text is None else f"{_kind(error)}: {one_line(str(text))}"


def one_line(text: str, most: int = TEXT_MAX) -> str:
    """Escape characters that move the cursor, end a line or change the writing direction."""
    part = text[:most]
    if not part.isprintable():
        part = "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in part)
    return part if len(text) <= most else f"{part}… ({len(text)} characters)"


def _kind(value: object) -> str:
    return one_line(type(value).__name__, NAME_MAX)


@lru_cache(maxsize=1024)
def _hidden(name: str) -> str:
    plain = re.sub(r"[^a-z0-9]", "", name.casefold())
    return "all" if _CREDENTIAL.search(plain) else "content" if _CONTENT.search(plain) else ""


EVENT_MAX = 1_000  # characters of a message
FIELDS_MAX = 40
FRAMES_MAX = 20  # the innermost ones
CAUSES_MAX = 10
SAME_MAX = 100  # lines with the same message in one second
SAME_KINDS_MAX = 1_000  # different messages that are counted apart in one second

NOT_FIELDS = frozenset(
    (
        *("timestamp", "level", "logger", "event", "exception", "trace_id", "span_id"),  # set by Semel
        "color_message",  # uvicorn's copy of the message
    )
)

Style: TypeAlias = Literal["auto", "console", "json"]
Fields: TypeAlias = dict[str, Any]


def configure(
    style: Style = "auto", level: str = "info", stream: TextIO | None = None, *, access: bool = False
) -> None:
    """Send all logs to `stream` (standard error). `auto`: text on a terminal, JSON elsewhere. May be called again.

    `level` applies to Semel and uvicorn. Other libraries log at most "info", because at "debug" many of them log what
    they send. `access` adds uvicorn's line for each request."""
    stream = sys.stderr if stream is None else stream
    terminal = stream.isatty()
    colours = terminal and not os.environ.get("NO_COLOR")
    outlet = Outlet(stream)
    outlet.setFormatter(Lines(_console(colours) if style == "console" or (style == "auto" and terminal) else _json))

    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, Outlet)]:
        root.removeHandler(handler)
        handler.close()
    root.addHandler(outlet)
    number = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(number, logging.INFO))
    logging.getLogger("semel").setLevel(number)
    logging.getLogger("uvicorn").setLevel(number)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = access or name != "uvicorn.access"


class Outlet(logging.StreamHandler[TextIO]):
    """Writes lines, and omits those that repeat too often. The next second logs how many were omitted."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._second = 0
        self._same: Counter[tuple[str, int, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._log_omitted()
        same = (record.name, record.levelno, _template(record))
        if same not in self._same and len(self._same) >= SAME_KINDS_MAX:
            same = (record.name, record.levelno, "too many different lines")
        self._same[same] += 1
        if self._same[same] <= SAME_MAX:
            super().emit(record)

    def close(self) -> None:
        self.acquire()
        try:
            self._log_omitted()
        finally:
            self.release()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Log only the type of the error: the default prints the whole record, unmasked."""
        kind = type(sys.exc_info()[1]).__name__
        with suppress(Exception):
            self.stream.write(f'{{"event":"log_line_failed","logger":"semel","error":"{kind}"}}\n')

    def _log_omitted(self) -> None:
        omitted = {same: count - SAME_MAX for same, count in self._same.items() if count > SAME_MAX}
        self._same.clear()
        for (name, level, message), times in omitted.items():
            summary = LogEvent("lines_omitted", {"line": message, "times": times})
            fields = {"name": name, "levelno": level, "levelname": logging.getLevelName(level), "msg": summary}
            super().emit(logging.makeLogRecord(fields))


class Lines(logging.Formatter):
    """Formats a record as one line, with all values masked."""

    def __init__(self, render: Callable[[Fields], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        line: Fields = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": one_line(record.name, NAME_MAX),
            "event": one_line(_message(record), EVENT_MAX),
        }
        for name in [name for name in fields if name not in NOT_FIELDS][:FIELDS_MAX]:
            line[one_line(str(name), NAME_MAX)] = shown(str(name), fields[name])
        error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
        if error is not None:
            line["exception"] = list(_describe_causes(error))
        if (current := ids()) is not None:
            line["trace_id"], line["span_id"] = current
        return self._render(line)


_EVERY_RECORD_HAS = frozenset((*logging.makeLogRecord({}).__dict__, "message", "asctime", "taskName"))


def _fields(record: logging.LogRecord) -> Fields:
    """The fields of a log event; of any other record, its `extra`."""
    message: Any = record.msg  # logging takes any object
    if isinstance(message, LogEvent):
        return message.fields
    return {name: value for name, value in record.__dict__.items() if name not in _EVERY_RECORD_HAS}


def _template(record: logging.LogRecord) -> str:
    """The message before its values are filled in. Lines with the same template are counted together."""
    message: Any = record.msg
    template = message.name if isinstance(message, LogEvent) else message
    return one_line(template) if isinstance(template, str) else type(template).__name__


def _message(record: logging.LogRecord) -> str:
    """The message of a line. Values are masked before they are filled in."""
    message: Any = record.msg
    if isinstance(message, LogEvent):
        return message.name
    if not isinstance(message, str):
        return str(harmless(message, EVENT_MAX))
    with suppress(TypeError, ValueError, KeyError):  # arguments that do not fit: the template alone is logged
        if isinstance(record.args, dict):
            message = message % _Named((name, shown(str(name), value)) for name, value in record.args.items())
        elif record.args:
            message = message % tuple(harmless(value) for value in record.args)
    text: str = message
    return text.partition("\n")[0] if record.name == "asyncio" else text  # further lines show reprs of objects


class _Named(dict[str, object]):
    """Values for `%(name)s`. A single dict for "%s" arrives here too, so its repr must not show the values."""

    def __repr__(self) -> str:
        return f"<dict of {len(self)}>"


def _describe_causes(error: BaseException) -> Iterator[str]:
    """The error and its traceback, then its causes."""
    cause: BaseException | None = error
    for depth in range(CAUSES_MAX):
        if cause is None:
            return
        yield f"because of {describe_error(cause)}" if depth else describe_error(cause)
        yield from _frames(cause)
        for part in cause.exceptions[:CAUSES_MAX] if isinstance(cause, BaseExceptionGroup) else ():
            yield f"with {describe_error(part)}"
            yield from _frames(part)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _frames(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]:
        yield one_line(f"  at {frame.filename}:{frame.lineno} in {frame.name}")


def _json(line: Fields) -> str:
    return msgspec.json.encode(line).decode()


def _console(colours: bool) -> Callable[[Fields], str]:
    plain = structlog.dev.plain_traceback
    renderer = structlog.dev.ConsoleRenderer(colors=colours, sort_keys=False, exception_formatter=plain)

    def render(line: Fields) -> str:
        if "exception" in line:
            line["exception"] = "\n".join(f"    {part}" for part in line["exception"])
        return str(renderer(None, "", line))

    return render
