"""Whether a queue can be worked with, asked when it is opened: better then than with the first poison message."""

from __future__ import annotations

import aio_pika

from semel.adapters.sources.rabbitmq.address import NAME_MAX_BYTES, check_name, check_url, shown
from semel.adapters.sources.rabbitmq.connecting import Failed, connect, hang_up, told_of
from semel.adapters.sources.rabbitmq.sending import declare
from semel.adapters.sources.rabbitmq.waiting import QUORUM, SUFFIX_MAX_BYTES, queue_arguments
from semel.values.errors import ConfigError
from semel.values.log import log

PREFETCH_MAX = 10_000  # messages in one process's memory; AMQP itself ends at 65,535
CONSUMER_TIMEOUT_MIN_S = 1.0
DAY_S = 86_400.0
DIFFERS = {  # what the broker names when it compares, and what it means
    "durable": "warning: it is not durable: everything in it is gone when the broker restarts",
    "x-queue-type": "warning: it is no quorum queue: what one node holds is lost with it",
    "x-message-ttl": "warning: its messages expire (x-message-ttl): what waits too long is not handled",
    "x-expires": "warning: it is deleted when nobody uses it (x-expires), with everything in it",
    "x-max-length": "warning: it drops messages when it is full (x-max-length)",
}

NOT_YET = "the queue is not there yet: it is made when the source is opened"


def check_options(url: str, queue: str, dead_letters: str, prefetch: int, consumer_timeout: float) -> None:
    """Raises ConfigError that says which option is wrong."""
    check_url(url)
    check_name("queue", queue)
    if not dead_letters:
        raise ConfigError(
            f"dead_letters: name a queue for what nobody can act on, {queue}.dead for one; without it such messages "
            "would come again for ever"
        )
    check_name("dead_letters", dead_letters)
    if len(queue.encode()) > NAME_MAX_BYTES - SUFFIX_MAX_BYTES:
        raise ConfigError(f"queue={queue!r}: its name is too long for the queues beside it in which retries wait")
    if queue == dead_letters:
        raise ConfigError(f"dead_letters={queue!r}: a queue cannot keep its own dead letters; name another one")
    if type(prefetch) is not int or not 1 <= prefetch <= PREFETCH_MAX:
        raise ConfigError(f"prefetch={prefetch!r}: expected a whole number, at least 1 and at most {PREFETCH_MAX:,}")
    if not CONSUMER_TIMEOUT_MIN_S <= consumer_timeout <= DAY_S:
        raise ConfigError(
            f"consumer_timeout={consumer_timeout!r}: expected seconds, as the broker has it; 1800 unless it was changed"
        )


async def check_queues(
    connection: aio_pika.Connection, queue: str, dead_letters: str, where: str, *, may_declare: bool, first: bool
) -> None:
    """Make them if we may. Raises Failed."""
    if may_declare:
        await declare(connection, dead_letters, QUORUM, where)
        await declare(connection, queue, queue_arguments(dead_letters), where)
        return
    for name in (dead_letters, queue):
        await declare(connection, name, None, where)
    if first and (kind := await _kind(connection, queue, where)).startswith("warning: "):
        log.warning("queue_check", source=queue, finding=kind.removeprefix("warning: "))


async def diagnose(
    url: str, queue: str, dead_letters: str, *, handed_on: bool, may_declare: bool
) -> list[tuple[str, str]]:
    """Facts for `semel doctor`, asked once. A value that begins with "error: " or "warning: " is one."""
    where = shown(url)
    facts = [("broker", where), ("queue", queue)]
    try:
        connection = await connect(url, "semel-doctor")
    except Failed as failure:
        return [*facts, ("connection", told_of(failure))]
    try:
        try:
            waiting, consumers = await declare(connection, queue, None, where)
        except Failed as failure:
            if failure.missing and may_declare:
                return [*facts, ("waiting", NOT_YET)]
            return [*facts, ("queue", f"error: {failure}")]
        facts += [
            ("waiting", f"{waiting:,}"),
            ("consumers", f"{consumers:,}"),
            ("kind", await _kind(connection, queue, where)),
        ]
        if handed_on:
            facts.append(("handed on", "whoever may send to this queue names the tenant of an event"))
        try:
            letters, _ = await declare(connection, dead_letters, None, where)
        except Failed as failure:
            if failure.missing and may_declare:
                return [*facts, ("dead letters", NOT_YET)]
            return [*facts, ("dead letters", f"error: {failure}")]
        return [*facts, ("dead letters", f"{letters:,} in {dead_letters}")]
    finally:
        await hang_up(connection)


async def _kind(connection: aio_pika.Connection, queue: str, where: str) -> str:
    """Declaring what is there changes nothing: the broker compares, and names the first thing that differs."""
    try:
        await declare(connection, queue, QUORUM, where)
    except Failed as failure:
        said = str(failure)
        for name, meaning in DIFFERS.items():
            if f"'{name}'" in said:
                return meaning
        return "a queue with arguments of its own" if "inequivalent" in said else "it could not be asked"
    return "a quorum queue"
