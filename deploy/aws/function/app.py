"""The function of `template.yaml`. Put your own handlers here."""

from __future__ import annotations

import logging
import os

from semel import Context, Event, Semel

logging.getLogger().setLevel(logging.INFO)
log = logging.getLogger(__name__)

app = Semel(os.environ["LEDGER"])  # once for a process, which then serves many invocations


@app.on("v2.detail.events.conversation.*.customer.end", effect="keyed")
async def on_end(event: Event, ctx: Context) -> dict[str, str]:
    """Once for each event, however often it is delivered. Hand `ctx.key` on to whoever can take it."""
    log.info("conversation %s has ended, key %s", event.subject, ctx.key)
    return {"conversation": event.subject}


handler = app.lambda_handler()
