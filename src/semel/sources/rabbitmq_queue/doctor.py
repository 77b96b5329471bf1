"""Checks of a queue: its options, its existence when a source is opened, and the facts for `semel doctor`.

A missing dead-letter queue is better found at opening than with the first poison message.
"""

from __future__ import annotations

import aio_pika

from semel.ports import Fact
from semel.sources.rabbitmq_queue.messages import QUORUM, SUFFIX_MAX_BYTES, queue_arguments
from semel.sources.rabbitmq_queue.publisher import declare
from semel.sources.rabbitmq_queue.session import (
    NAME_MAX_BYTES,
    RabbitError,
    check_name,
    check_url,
    close_connection,
    connect,
    display_url,
    doctor_fact,
)
from semel.values.errors import ConfigError
from semel.values.log import log

PREFETCH_MAX = 10_000  # messages in the memory of one process; AMQP allows 65,535
CONSUMER_TIMEOUT_MIN_S = 1.0
DAY_S = 86_400.0
DIFFERS = {  # argument that the broker names as different: what it means
    "durable": "the queue is not durable: a restart of the broker deletes every message in it",
    "x-queue-type": "this is not a quorum queue: the loss of one node can lose its messages",
    "x-message-ttl": "messages expire (x-message-ttl): a message that waits too long is never handled",
    "x-expires": "the queue is deleted with its messages when no consumer uses it (x-expires)",
    "x-max-length": "the queue drops messages when it is full (x-max-length)",
}

NOT_YET = "the queue does not exist yet: the source creates it at opening"


def check_options(url: str, queue: str, dead_letters: str, prefetch: int, consumer_timeout: float) -> None:
    """Raises ConfigError that names the wrong option."""
    check_url(url)
    check_name("queue", queue)
    if not dead_letters:
        raise ConfigError(
            f"dead_letters: name a queue for rejected messages, for example {queue}.dead; without it the broker would "
            "redeliver them forever"
        )
    check_name("dead_letters", dead_letters)
    if len(queue.encode()) > NAME_MAX_BYTES - SUFFIX_MAX_BYTES:
        raise ConfigError(f"queue={queue!r}: the name is too long for the names of its retry queues")
    if queue == dead_letters:
        raise ConfigError(f"dead_letters={queue!r}: a queue cannot keep its own dead letters; name another one")
    if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
        raise ConfigError(f"prefetch={prefetch!r}: expected a whole number, at least 1 and at most {PREFETCH_MAX:,}")
    if not CONSUMER_TIMEOUT_MIN_S <= consumer_timeout <= DAY_S:
        raise ConfigError(
            f"consumer_timeout={consumer_timeout!r}: expected the broker's value in seconds; its default is 1800"
        )


async def check_queues(
    connection: aio_pika.Connection, queue: str, dead_letters: str, where: str, *, may_declare: bool, first: bool
) -> None:
    """Check that both queues exist, or create them with `may_declare`. Raises RabbitError."""
    if may_declare:
        await declare(connection, dead_letters, QUORUM, where)
        await declare(connection, queue, queue_arguments(dead_letters), where)
        return
    for name in (dead_letters, queue):
        await declare(connection, name, None, where)
    if first and (kind := await _kind(connection, queue, where)).level == "warning":
        log.warning("queue_check", source=queue, finding=kind.value)


async def diagnose(url: str, queue: str, dead_letters: str, *, forwarded: bool, may_declare: bool) -> list[Fact]:
    """Facts for `semel doctor`, read once."""
    where = display_url(url)
    facts = [Fact("broker", where), Fact("queue", queue)]
    try:
        connection = await connect(url, "semel-doctor")
    except RabbitError as failure:
        return [*facts, doctor_fact("connection", failure)]
    try:
        try:
            waiting, consumers = await declare(connection, queue, None, where)
        except RabbitError as failure:
            if failure.missing and may_declare:
                return [*facts, Fact("waiting", NOT_YET)]
            return [*facts, Fact("queue", str(failure), "error")]
        facts += [
            Fact("waiting", f"{waiting:,}"),
            Fact("consumers", f"{consumers:,}"),
            await _kind(connection, queue, where),
        ]
        if forwarded:
            trusted = "every sender with access to this queue can set any tenant (trusted metadata)"
            facts.append(Fact("forwarded", trusted))
        try:
            kept, _ = await declare(connection, dead_letters, None, where)
        except RabbitError as failure:
            if failure.missing and may_declare:
                return [*facts, Fact("dead letters", NOT_YET)]
            return [*facts, Fact("dead letters", str(failure), "error")]
        return [*facts, Fact("dead letters", f"{kept:,} in {dead_letters}")]
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
