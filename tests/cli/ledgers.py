"""Ledgers for the operator's commands to look at, made by a real app."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from semel import Context, Event, Reject, Semel


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder}/semel.db"


def an_app(folder: Path, verdict: dict[str, Any] | None = None) -> Semel:
    """Three handlers: one refuses (unless it is given a `verdict`), one leaves in doubt, one succeeds."""
    app = Semel(url_of(folder), origin="test")

    @app.on("crm.*", name="to-crm")
    async def refuse(event: Event, ctx: Context) -> Any:
        if verdict is not None:
            return verdict
        raise Reject(f"unknown customer \x1b[31m{event.body['customer']}")

    @app.on("mail.*", name="to-mail", effect="park")
    async def doubt(event: Event, ctx: Context) -> None:
        raise ConnectionResetError("the connection broke after the first byte")

    @app.on("fine.*", name="fine")
    async def succeed(event: Event, ctx: Context) -> dict[str, int]:
        return {"ticket": 7}

    return app


def message(kind: str, name: str, **data: Any) -> dict[str, Any]:
    return {"id": name, "type": f"{kind}.created", "createdTime": 1_678_886_400_000, "data": data}


def fill(folder: Path, dead: int = 3, uncertain: int = 1, done: int = 2, tenant: str = "") -> str:
    """The URL of a ledger with so many of each."""

    async def handle() -> None:
        async with an_app(folder) as app:
            for kind, count in (("crm", dead), ("mail", uncertain), ("fine", done)):
                for number in range(count):
                    outcome = await app.process(
                        message(kind, f"{tenant}{kind}-{number}", customer=f"\u202ec{number}"), tenant=tenant
                    )
                    assert outcome.status == {"crm": "dead", "mail": "uncertain", "fine": "done"}[kind]

    asyncio.run(handle())
    return url_of(folder)
