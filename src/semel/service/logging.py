"""What may be written into a log: short, on one line, and never a body, a secret, or what an object says of itself.

A value is shown only when its kind is known to be harmless; everything else is shown as its kind. Lines are flat: a
list shows its items, anything deeper is a kind. Names decide too: whatever is called a body or a password is masked.
The one thing that nobody can help is a text into which a program has put a secret by itself.
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

# What is so named is never shown,
_CREDENTIAL = re.compile(
    r"secret|token|passw|passphrase|pwd|credential|cookie|header|signature|bearer|auth|(api|access|private|account)key|dsn"
)
# and of what is so named only numbers ("body_bytes": 120).
_CONTENT = re.compile(r"body|bodies|payload|document|content|^(data|raw|text|result|event)s?$")

_PLAIN = (date, time, timedelta, Decimal, UUID, PurePath, IPv4Address, IPv6Address, IPv4Network, IPv6Network)

Scalar: TypeAlias = bool | int | float | str | None


def shown(name: str, value: object) -> Scalar | list[Scalar]:
    """The value of a field, as it may stand in a log."""
    hidden = _hidden(name[:NAME_MAX])
    if hidden == "all" or (hidden == "content" and not isinstance(value, (int, float, type(None)))):
        return MASK
    if isinstance(value, (list, tuple, set, frozenset)):
        items = [harmless(item, ITEM_MAX) for item in islice(value, ITEMS_MAX)]
        return items if len(value) <= ITEMS_MAX else [*items, f"… ({len(value)} items)"]
    return harmless(value)


def harmless(value: object, most: int = TEXT_MAX) -> Scalar:
    """One value without regard to its name; what is not known to be harmless is told by its kind."""
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
                return said_by(value)
        if isinstance(value, _PLAIN):
            return one_line(str(value), most)
        if isinstance(value, Collection):
            return f"<{_kind(value)} of {len(value)}>"
    except Exception:  # an object may do anything when it is asked something
        pass
    return f"<{_kind(value)}>"


def said_by(error: BaseException) -> str:
    """An error's kind. Its words only where they are ours or the system's: others like to quote what they choked on."""
    words: object = None
    if isinstance(error, SemelError) and not isinstance(error, MalformedEvent):
        words = error
    elif isinstance(error, OSError):
        words = error.strerror
    return _kind(error) if words is None else f"{_kind(error)}: {one_line(str(words))}"


def one_line(text: str, most: int = TEXT_MAX) -> str:
    """Without anything that moves the cursor, ends a line or turns the direction of writing around."""
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


# One format for every line that the process logs, ours, uvicorn's and those of libraries: JSON, or text for people.
#
# Everything passes `masking` on its way out, so no body and no secret gets into a log, no value forges a line, and no
# line grows without bound. A line that repeats itself too often is left out for the rest of the second, and counted.

EVENT_MAX = 1_000  # characters of a line's own words
FIELDS_MAX = 40
FRAMES_MAX = 20  # the innermost ones
CAUSES_MAX = 10
SAME_MAX = 100  # lines with the same words in one second
SAME_KINDS_MAX = 1_000  # different words that are told apart in one second

NOT_FIELDS = frozenset(
    (
        *("timestamp", "level", "logger", "event", "exception", "trace_id", "span_id"),  # ours: nobody else says them
        "color_message",  # uvicorn says everything twice
    )
)

Style: TypeAlias = Literal["auto", "console", "json"]
Fields: TypeAlias = dict[str, Any]


def configure(
    style: Style = "auto", level: str = "info", stream: TextIO | None = None, *, access: bool = False
) -> None:
    """Send all logs to `stream` (standard error). `auto`: text on a terminal, JSON elsewhere. May be called again.

    `level` is for Semel and uvicorn. Everybody else says no more than "info": in "debug", libraries like to tell what
    they send. `access`: also uvicorn's line for each request."""
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
    wanted = logging.getLevelNamesMapping()[level.upper()]
    root.setLevel(max(wanted, logging.INFO))
    logging.getLogger("semel").setLevel(wanted)
    logging.getLogger("uvicorn").setLevel(wanted)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = access or name != "uvicorn.access"


class Outlet(logging.StreamHandler[TextIO]):
    """Writes lines, unless they repeat themselves too often. What was left out is told in the next second."""

    def __init__(self, stream: TextIO, clock: Callable[[], float] = monotonic) -> None:
        super().__init__(stream)
        self._clock = clock
        self._second = 0
        self._same: Counter[tuple[str, int, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._tell_left_out()
        same = (record.name, record.levelno, _template(record))
        if same not in self._same and len(self._same) >= SAME_KINDS_MAX:
            same = (record.name, record.levelno, "too many different lines")
        self._same[same] += 1
        if self._same[same] <= SAME_MAX:
            super().emit(record)

    def close(self) -> None:
        self.acquire()
        try:
            self._tell_left_out()
        finally:
            self.release()
        super().close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """Logging's own way is to print what could not be written, with everything in it."""
        kind = type(sys.exc_info()[1]).__name__
        with suppress(Exception):
            self.stream.write(f'{{"event":"log_line_failed","logger":"semel","error":"{kind}"}}\n')

    def _tell_left_out(self) -> None:
        left_out = {same: count - SAME_MAX for same, count in self._same.items() if count > SAME_MAX}
        self._same.clear()
        for (name, level, words), times in left_out.items():
            about = {"name": name, "levelno": level, "levelname": logging.getLevelName(level)}
            summary = LogEvent("lines_omitted", {"line": words, "times": times})
            super().emit(logging.makeLogRecord({**about, "msg": summary}))


class Lines(logging.Formatter):
    """A record as one line, in which everything is as it may be shown."""

    def __init__(self, render: Callable[[Fields], str]) -> None:
        super().__init__()
        self._render = render

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        line: Fields = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": one_line(record.name, NAME_MAX),
            "event": one_line(_words(record), EVENT_MAX),
        }
        for name in [name for name in fields if name not in NOT_FIELDS][:FIELDS_MAX]:
            line[one_line(str(name), NAME_MAX)] = shown(str(name), fields[name])
        if (error := _error(record)) is not None:
            line["exception"] = list(_story(error))
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
    """What makes two lines the same: their words before anything is put into them."""
    message: Any = record.msg
    words = message.name if isinstance(message, LogEvent) else message
    return one_line(words) if isinstance(words, str) else type(words).__name__


def _words(record: logging.LogRecord) -> str:
    """What a line says. Values are masked before they are put into it: afterwards all is text."""
    said: Any = record.msg
    if isinstance(said, LogEvent):
        return said.name
    if not isinstance(said, str):
        return str(harmless(said, EVENT_MAX))
    words = said
    with suppress(TypeError, ValueError, KeyError):  # a mistake in the program: its words alone are worth reading
        if isinstance(record.args, dict):
            words = words % _Named((name, shown(str(name), value)) for name, value in record.args.items())
        elif record.args:
            words = words % tuple(harmless(value) for value in record.args)
    return words.partition("\n")[0] if record.name == "asyncio" else words  # it goes on with how errors see themselves


class _Named(dict[str, object]):
    """Values for `%(name)s`. Logging takes the one dict of "%s" for that too, and so it must not show itself."""

    def __repr__(self) -> str:
        return f"<dict of {len(self)}>"


def _error(record: logging.LogRecord) -> BaseException | None:
    given: Any = record.exc_info
    return given[1] if isinstance(given, tuple) else None


def _story(error: BaseException) -> Iterator[str]:
    """What it was and where, and the same of what it came from."""
    cause: BaseException | None = error
    for depth in range(CAUSES_MAX):
        if cause is None:
            return
        yield f"because of {said_by(cause)}" if depth else said_by(cause)
        yield from _places(cause)
        for part in getattr(cause, "exceptions", ())[:CAUSES_MAX]:  # of a group
            yield f"with {said_by(part)}"
            yield from _places(part)
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def _places(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__)[-FRAMES_MAX:]:
        yield one_line(f"  at {frame.filename}:{frame.lineno} in {frame.name}")


# --------------------------------------------------------------------------------------------------------- styles


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
