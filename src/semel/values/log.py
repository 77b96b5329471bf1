"""Structured log lines: a stable event name and fields, written through the standard library's logger "semel".

    log.warning("event_retry", handler="crm", key=key, attempt=2, next_in_s=4.1)

A plain formatter prints `event_retry handler=crm key=8870… attempt=2 next_in_s=4.1`. The service's formatter reads the
name and the fields of the message. `docs/logs.md` lists every name. Fields hold no customer data: no body, no
recipient, and no text of an exception that user code raised.
"""

from __future__ import annotations

import logging
import re
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
