"""Handlers for the service under test: each type of event says what its handler does."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from semel import Context, Event, Reject, Retry, Semel, keys
from semel.values.outcome import NotNow

LEASE_S = float(os.environ.get("LEASE", "40"))
app = Semel(os.environ.get("LEDGER", "sqlite:///semel.db"), lease=LEASE_S)
runs = Path(os.environ.get("RUNS", "runs.txt"))  # one line for each run: appended, so that other processes see it


def note(event: Event, ctx: Context) -> None:
    note_line(f"{event.id} {ctx.attempt} {os.getpid()}")


def note_line(line: str) -> None:
    with runs.open("a") as file:
        file.write(f"{line}\n")


def is_mended() -> bool:
    return Path("mended").exists()


@app.on("ok", timeout=0.9 * LEASE_S)
async def ok(event: Event, ctx: Context) -> dict[str, str]:
    note(event, ctx)
    return {"ran": event.id}


@app.on("slow", timeout=0.9 * LEASE_S)
async def slow(event: Event, ctx: Context) -> dict[str, str]:
    note(event, ctx)
    await asyncio.sleep(event.body["seconds"])
    note_line(f"{event.id} ended")
    return {"ran": event.id}


@app.on("again", timeout=0.9 * LEASE_S, max_attempts=3)
async def again(event: Event, ctx: Context) -> None:
    note(event, ctx)
    raise Retry(after=event.body.get("after", 0.1), reason="not yet")


@app.on("refused", timeout=0.9 * LEASE_S)
async def refused(event: Event, ctx: Context) -> None:
    note(event, ctx)
    if not is_mended():
        raise Reject("no such customer")


@app.on("doubtful", timeout=0.9 * LEASE_S, effect="park")
async def doubtful(event: Event, ctx: Context) -> None:
    note(event, ctx)
    raise ConnectionError("the line broke")


@app.on("later", timeout=0.9 * LEASE_S)
async def later(event: Event, ctx: Context) -> None:
    note(event, ctx)
    raise NotNow(3, "its downstream is closed")


@app.on("ticket", timeout=0.9 * LEASE_S, effect="transaction")
async def ticket(event: Event, ctx: Context) -> None:
    ctx.tx.execute("create table if not exists ticket (id text)")
    ctx.tx.execute("insert into ticket values (?)", (event.id,))


@app.on("open", timeout=0.9 * LEASE_S, fail_open=True)
async def open_(event: Event, ctx: Context) -> str:
    note(event, ctx)
    return f"token {ctx.token}"


@app.on("pair", timeout=0.9 * LEASE_S, key=keys.delivery)
async def audit(event: Event, ctx: Context) -> None:
    note_line(f"{event.id} audit")


@app.on("pair", timeout=0.9 * LEASE_S, key=lambda event: str(event.field("id" if is_mended() else "data.customer")))
async def crm(event: Event, ctx: Context) -> None:
    note_line(f"{event.id} crm")
