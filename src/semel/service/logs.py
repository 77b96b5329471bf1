"""One format for every line that the process logs, ours, uvicorn's and those of libraries: JSON, or text for people.

Everything passes `masking` on its way out, so no body and no secret gets into a log, no value forges a line, and no
line grows without bound. A line that repeats itself too often is left out for the rest of the second, and counted.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Literal, TextIO, TypeAlias

import msgspec
import structlog

from semel.service.masking import NAME_MAX, harmless, one_line, said_by, shown
from semel.service.tracing import ids
from semel.values.log import LogEvent

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

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
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
