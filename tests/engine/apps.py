"""What the engine's tests share: apps on each ledger, small events, and a clock for the memory ledger."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from semel import Semel

T = TypeVar("T")

_numbers = itertools.count()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(coroutine)


def message(id: str | None = None, type: str = "interaction.created", **data: Any) -> dict[str, Any]:
    return {"id": id or f"id-{next(_numbers)}", "type": type, "createdTime": 1678886400000, "data": data}


def app_on(ledger: str, folder: Path, **options: Any) -> Semel:
    return Semel("memory://" if ledger == "memory" else f"sqlite:///{folder}/semel.db", **options)


both_ledgers = pytest.mark.parametrize("ledger", ["memory", "sqlite"])

MakeApp = Callable[..., Semel]
