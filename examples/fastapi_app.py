"""Semel in a FastAPI application: webhooks at /semel/events beside your own routes.

uvicorn examples.fastapi_app:api
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from semel import Context, Event, Semel

semel = Semel(os.environ.get("LEDGER", "sqlite:///semel.db"))


@semel.on("interaction.created", effect="transaction")
async def open_ticket(event: Event, ctx: Context) -> dict[str, str]:
    ctx.tx.execute("create table if not exists ticket (interaction text)")
    ctx.tx.execute("insert into ticket values (?)", (event.body["id"],))
    return {"ticket": event.body["id"]}


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncIterator[None]:
    async with semel, semel.handling():  # handles the inbox items; not needed with mode="inline"
        yield


api = FastAPI(lifespan=lifespan)
api.mount("/semel", semel.asgi(mode="inbox"))


@api.get("/tickets")
async def tickets() -> dict[str, int]:
    return {"dead": len(await semel.entries("dead")), "done": len(await semel.entries("done"))}
