"""Semel as an AWS Lambda function, behind any trigger: EventBridge, SQS, SNS, Pipes, Kinesis, Kafka, RabbitMQ.

Handler: examples.lambda_app.handler (pip install 'semel[aws]'), with the ledger's URL in LEDGER.
"""

from __future__ import annotations

import logging
import os

from semel import Context, Event, Semel

log = logging.getLogger(__name__)

# Outside of the handler: made once for a process, which then serves many invocations.
app = Semel(os.environ.get("LEDGER", "dynamodb://semel"))


@app.on("v2.detail.events.conversation.*.customer.end", effect="keyed")
async def on_end(event: Event, ctx: Context) -> dict[str, str]:
    """Once for each event, however often it is delivered. Hand `ctx.key` on to whoever can take it."""
    log.info("conversation %s has ended, key %s", event.subject, ctx.key)
    return {"conversation": event.subject}


handler = app.lambda_handler()
