"""Checks of a queue: its existence when a source is opened, and the facts for `semel doctor`.

A missing dead-letter queue is better found at opening than with the first poison message.
"""

from __future__ import annotations

import aio_pika

from semel.ports import Fact
from semel.sources.lifecycle import TRUSTED_METADATA
from semel.sources.rabbitmq_queue.messages import QUORUM, queue_arguments
from semel.sources.rabbitmq_queue.options import RabbitOptions, display_url
from semel.sources.rabbitmq_queue.publisher import declare
from semel.sources.rabbitmq_queue.session import (
    RabbitError,
    close_connection,
    connect,
    doctor_fact,
)
from semel.values.log import log

DIFFERS = {  # argument that the broker names as different: what it means
    "durable": "the queue is not durable: a restart of the broker deletes every message in it",
    "x-queue-type": "this is not a quorum queue: the loss of one node can lose its messages",
    "x-message-ttl": "messages expire (x-message-ttl): a message that waits too long is never handled",
    "x-expires": "the queue is deleted with its messages when no consumer uses it (x-expires)",
    "x-max-length": "the queue drops messages when it is full (x-max-length)",
}

NOT_YET = "the queue does not exist yet: the source creates it at opening"


async def check_queues(connection: aio_pika.Connection, options: RabbitOptions, where: str, *, warn: bool) -> None:
    """Check that both queues exist, or create them with `declare`. Raises RabbitError."""
    if options.declare:
        await declare(connection, options.dead_letters, QUORUM, where)
        await declare(connection, options.queue, queue_arguments(options.dead_letters), where)
        return
    for name in (options.dead_letters, options.queue):
        await declare(connection, name, None, where)
    if warn and (kind := await _kind(connection, options.queue, where)).level == "warning":
        log.warning("queue_check", source=options.queue, finding=kind.value)


async def diagnose(options: RabbitOptions) -> list[Fact]:
    """Facts for `semel doctor`, read once."""
    where = display_url(options.url)
    facts = [Fact("broker", where), Fact("queue", options.queue)]
    try:
        connection = await connect(options.url, "semel-doctor")
    except RabbitError as failure:
        return [*facts, doctor_fact("connection", failure)]
    try:
        try:
            waiting, consumers = await declare(connection, options.queue, None, where)
        except RabbitError as failure:
            is_created = failure.missing and options.declare
            return [*facts, Fact("waiting", NOT_YET) if is_created else Fact("queue", str(failure), "error")]
        facts += [
            Fact("waiting", f"{waiting:,}"),
            Fact("consumers", f"{consumers:,}"),
            await _kind(connection, options.queue, where),
        ]
        if options.forwarded:
            facts.append(TRUSTED_METADATA)
        try:
            kept, _ = await declare(connection, options.dead_letters, None, where)
        except RabbitError as failure:
            is_created = failure.missing and options.declare
            missing = Fact("dead letters", NOT_YET) if is_created else Fact("dead letters", str(failure), "error")
            return [*facts, missing]
        return [*facts, Fact("dead letters", f"{kept:,} in {options.dead_letters}")]
    finally:
        await close_connection(connection)


async def _kind(connection: aio_pika.Connection, queue: str, where: str) -> Fact:
    """Describe the type of a queue. Declaring an existing queue changes nothing: the broker compares the arguments and
    names the first difference."""
    try:
        await declare(connection, queue, QUORUM, where)
    except RabbitError as failure:
        text = str(failure)
        for name, meaning in DIFFERS.items():
            if f"'{name}'" in text:
                return Fact("kind", meaning, "warning")
        other = "a queue with its own arguments" if "inequivalent" in text else "unknown: the broker did not answer"
        return Fact("kind", other)
    return Fact("kind", "a quorum queue")
