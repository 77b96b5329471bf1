"""An app that answers each event with a message."""

from __future__ import annotations

import os

from semel import Context, Event, Semel

app = Semel(os.environ.get("LEDGER", "sqlite:///semel.db"))


@app.on("interaction.created")
async def thank(event: Event, ctx: Context) -> None:
    ctx.notify(kind="thanks", recipient=event.body["to"], channel="sms", body="Thank you for calling.")
