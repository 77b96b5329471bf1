"""Runs a coroutine on the quickest loop there is."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


def run(main: Coroutine[Any, Any, Result]) -> Result:
    try:
        from uvloop import new_event_loop
    except ModuleNotFoundError:  # it is no part of the plain installation, and there is none for Windows
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
