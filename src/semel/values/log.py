"""Structured log lines: a stable event name and fields, written through the standard library's logger "semel".

    log.warning("event_retry", handler="crm", key=key, attempt=2, next_in_s=4.1)

A plain formatter prints `event_retry handler=crm key=8870… attempt=2 next_in_s=4.1`. The service's formatter reads the
name and the fields of the message. `docs/logs.md` lists every name. Fields hold no customer data: no body, no
recipient, and no text of an exception that user code raised.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import Any

from semel.values.errors import MalformedEvent, SemelError

_PLAIN = re.compile(r"[^\s\"=\\]+")
_ESCAPED = {'"': '\\"', "\\": "\\\\"}


class LogEvent:
    """The message of one log line. `str()` is its text form."""

    __slots__ = ("fields", "name")

    def __init__(self, name: str, fields: dict[str, Any]) -> None:
        self.name = name
        self.fields = fields

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{name}={_text(value)}" for name, value in self.fields.items())])


class Log:
    """Writes log events. A field whose value is None is left out."""

    def __init__(self, name: str = "semel") -> None:
        self._logger = logging.getLogger(name)
        self.enabled = self._logger.isEnabledFor  # asked for every event: no call of our own around it

    def write(self, level: int, name: str, /, exc: BaseException | None = None, **fields: Any) -> None:
        """`exc` adds its traceback."""
        if self._logger.isEnabledFor(level):
            self._write(level, name, fields, exc)

    def debug(self, name: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, name, fields)

    def info(self, name: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._write(logging.INFO, name, fields)

    def warning(self, name: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.WARNING):
            self._write(logging.WARNING, name, fields)

    def error(self, name: str, /, **fields: Any) -> None:
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, name, fields)

    def exception(self, name: str, /, **fields: Any) -> None:
        """An error with the traceback of the exception that is being handled."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, name, fields, True)

    def _write(self, level: int, name: str, fields: dict[str, Any], exc: BaseException | bool | None = None) -> None:
        message = LogEvent(name, {field: value for field, value in fields.items() if value is not None})
        self._logger.log(level, message, exc_info=exc, stacklevel=3)


log = Log()


def _text(value: object) -> str:
    match value:
        case BaseException():
            text = _words(value)
        case float():
            text = f"{value:g}"
        case _:
            text = str(value)
    if _PLAIN.fullmatch(text) and text.isprintable():
        return text
    escaped = (_ESCAPED.get(char) or (char if char.isprintable() else ascii(char)[1:-1]) for char in text)
    return f'"{"".join(escaped)}"'


def _words(error: BaseException) -> str:
    """The class of an error. Its message only where Semel wrote it: others quote what they could not process."""
    kind = type(error).__name__
    return f"{kind}: {error}" if isinstance(error, SemelError) and not isinstance(error, MalformedEvent) else kind


REPEAT_S = 30.0  # often enough for an operator who looks now, and no flood over a day


class IncidentLog:
    """Logs one problem when it starts, every `REPEAT_S` while it lasts, and when it ends."""

    def __init__(
        self,
        start_event: str,
        end_event: str = "",
        clock: Callable[[], float] = time.monotonic,
        *,
        level: int = logging.ERROR,
        **fields: Any,
    ) -> None:
        """`start_event` and `end_event` are names of log events; both get `fields`. The end is one level below."""
        self._start_event, self._end_event, self._fields = start_event, end_event, fields
        self._level = level
        self._clock = clock
        self._since: float | None = None  # None: no incident is open
        self._logged_at = self._last = 0.0

    def report(self, error: str, **details: Any) -> None:
        """Record a failure; `details` are fields of its line.

        After a long silence it starts a new incident, because not every success is reported.
        """
        now = self._clock()
        if self._since is None or now - self._last > 2 * REPEAT_S:
            self._since = self._logged_at = now
            log.write(self._level, self._start_event, **self._fields, **details, error=error)
        elif now - self._logged_at >= REPEAT_S:
            self._logged_at = now
            lasts_s = round(now - self._since)
            log.write(self._level, self._start_event, **self._fields, **details, lasts_s=lasts_s, error=error)
        self._last = now

    def resolve(self) -> None:
        """Record a success: end the incident, if one is open."""
        if self._since is not None:
            if self._end_event:
                after_s = round(self._clock() - self._since)
                log.write(self._level - 10, self._end_event, **self._fields, after_s=after_s)
            self._since = None
