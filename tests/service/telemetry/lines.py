"""What the log says, caught without disturbing the logging of other tests."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from semel.service import logging as logs

NAMES = ("semel", "uvicorn", "uvicorn.error", "uvicorn.access", "somebody", "asyncio")


@contextmanager
def logging_restored() -> Iterator[None]:
    """Logging belongs to the whole process, and so to the other tests too."""
    loggers = [logging.getLogger(), *map(logging.getLogger, NAMES)]
    before = [(logger.level, logger.propagate, logger.handlers[:]) for logger in loggers]
    try:
        yield
    finally:
        for logger, (level, propagate, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.propagate, logger.handlers[:] = propagate, handlers


def configure(style: Any, level: str, stream: io.StringIO, **options: Any) -> None:
    """Without pytest, which listens too and fails at what we want to survive."""
    logging.getLogger().handlers.clear()
    logs.configure(style, level, stream, **options)


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def written(style: str, write: Callable[[], None], level: str = "debug") -> str:
    """What `write` makes the log say."""
    with logging_restored():
        out = io.StringIO()
        configure(style, level, out)
        write()
        return out.getvalue()
