"""Semel as an AWS Lambda function, behind any trigger: EventBridge, SQS, SNS, Pipes, Kinesis, Kafka, RabbitMQ.

Handler: examples.lambda_app.handler (pip install 'semel[aws]'), with the ledger's URL in LEDGER.
"""

from __future__ import annotations

import logging
import os

from semel import Context, Event, Semel

log = logging.getLogger(__name__)

# Outside the handler: created once per process, which serves many invocations.
app = Semel(os.environ.get("LEDGER", "dynamodb://semel"))


@app.on("v2.detail.events.conversation.*.customer.end", effect="keyed")
async def on_end(event: Event, ctx: Context) -> dict[str, str]:
    """Runs once for each event. Pass `ctx.key` to services that accept an idempotency key."""
    log.info("conversation %s has ended, key %s", event.subject, ctx.key)
    return {"conversation": event.subject}


handler = app.lambda_handler()
