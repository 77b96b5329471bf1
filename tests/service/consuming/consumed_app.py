"""Handlers for queues under test. `gated` runs until a file says that it may end."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from semel import Context, Event, Semel

LEASE_S = float(os.environ.get("LEASE", "25"))
app = Semel("sqlite:///semel.db", lease=LEASE_S)
runs = Path("runs.txt")  # appended, so that other processes see it


def note(line: str) -> None:
    with runs.open("a") as file:
        file.write(f"{line}\n")


def is_open() -> bool:
    return Path("open").exists()


@app.on("ok", timeout=0.9 * LEASE_S)
async def ok(event: Event, ctx: Context) -> None:
    note(f"{event.id} {os.getpid()}")


@app.on("gated", timeout=0.9 * LEASE_S)
async def gated(event: Event, ctx: Context) -> None:
    note(f"{event.id} {os.getpid()}")
    while not is_open():  # noqa: ASYNC110 - another process says so
        await asyncio.sleep(0.02)
    note(f"{event.id}-ended {os.getpid()}")
