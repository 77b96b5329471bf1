"""Checks of a queue: its options, its attributes when a source is opened, and the facts for `semel doctor`.

A missing dead-letter queue is better found at opening than with the first poison message.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from semel.ports import Fact
from semel.sources.lifecycle import is_logged
from semel.sources.sqs_queue.answers import DEAD_LETTER_MAX_BYTES
from semel.sources.sqs_queue.client import DENIED, MISSING, SqsClient, SqsError
from semel.values.errors import ConfigError
from semel.values.log import log

WAIT_MAX_S = 20
VISIBILITY_MAX_S = 12 * 3600
POLLERS_MAX = 100
IN_FLIGHT_MAX = 20_000  # SQS allows this many for a FIFO queue; the 120,000 of a standard queue need too much memory
FEW_RECEIVES = 10  # every Busy and every Retry counts as a receive
DAY_S = 86_400
NOWHERE = (
    "rejected messages have nowhere to go and would be redelivered until they expire: set dead_letters to the URL of "
    "another queue, or give the queue a redrive policy"
)
Pause: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits after this many failures in a row."""


def check_options(queue: str, dead_letters: str, pollers: int, max_in_flight: int, visibility: int, wait: int) -> None:
    """Raises ConfigError that names the wrong option."""
    for name, url in (("queue", queue), ("dead_letters", dead_letters)):
        if (url or name == "queue") and not url.startswith(("https://", "http://")):
            raise ConfigError(f"{name}={url!r}: expected the URL of a queue, https://sqs.<region>.amazonaws.com/…")
    if queue == dead_letters:
        raise ConfigError(f"dead_letters={queue!r}: a queue cannot keep its own dead letters; name another one")
    for name, number, least, most in (
        ("pollers", pollers, 1, POLLERS_MAX),
        ("max_in_flight", max_in_flight, 1, IN_FLIGHT_MAX),
        ("visibility", visibility, 1, VISIBILITY_MAX_S),
        ("wait", wait, 1, WAIT_MAX_S),
    ):
        if type(number) is not int or not least <= number <= most:
            raise ConfigError(f"{name}={number!r}: expected a whole number, at least {least} and at most {most:,}")


async def check_queues(client: SqsClient, queue: str, dead_letters: str, pause: Pause) -> int:
    """Check both queues and return the maximum size of a dead letter in bytes.

    Waits while the service is unreachable. Raises ConfigError for a problem that needs a change by an operator.
    """
    attributes = await _attributes(client, queue, pause)
    if attributes is not None and not dead_letters and "RedrivePolicy" not in attributes:
        raise ConfigError(f"{queue}: {NOWHERE}")
    receives = redrive_after(attributes or {})
    if receives is not None and receives < FEW_RECEIVES:
        log.warning("queue_check", source=queue, finding=low_redrive_warning(receives))
    target_attributes = await _attributes(client, dead_letters, pause) if dead_letters else None
    return int((target_attributes or {}).get("MaximumMessageSize", DEAD_LETTER_MAX_BYTES))


def doctor_fact(name: str, failure: SqsError) -> Fact:
    """Fact for `semel doctor`. "out of reach" marks a failure that can be over soon; Semel starts despite it."""
    if failure.code in DENIED:
        return Fact(name, str(failure), "warning")
    return Fact(name, str(failure) if failure.definite else f"out of reach: {failure}", "error")


async def diagnose(client: SqsClient, queue: str, dead_letters: str, forwarded: bool = False) -> list[Fact]:
    """Facts for `semel doctor`, read once."""

    async def read_attributes(name: str, url: str) -> Mapping[str, str] | Fact:
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        except SqsError as failure:
            return doctor_fact(name, failure)
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        return attributes

    facts = [Fact("queue", queue)]
    if forwarded:
        trusted = "every sender with access to this queue can set any tenant (trusted metadata)"
        facts.append(Fact("forwarded", trusted))
    attributes = await read_attributes("attributes", queue)
    if isinstance(attributes, Fact):
        return [*facts, attributes]
    facts += [
        Fact("waiting", f"{int(attributes.get('ApproximateNumberOfMessages', 0)):,}"),
        Fact("in flight", f"{int(attributes.get('ApproximateNumberOfMessagesNotVisible', 0)):,}"),
        Fact("kept for", f"{int(attributes.get('MessageRetentionPeriod', 0)) / DAY_S:g} days"),
    ]
    receives = redrive_after(attributes)
    if receives is not None and receives < FEW_RECEIVES:
        facts.append(Fact("redrive", low_redrive_warning(receives), "warning"))
    elif receives is not None:
        facts.append(Fact("redrive", f"after {receives} receives"))
    if not dead_letters and receives is None:
        return [*facts, Fact("dead letters", NOWHERE, "error")]
    if not dead_letters:
        return [*facts, Fact("dead letters", "left to the redrive policy")]
    target = await read_attributes("dead letters", dead_letters)
    if isinstance(target, Fact):
        return [*facts, target]
    return [*facts, Fact("dead letters", f"{int(target.get('ApproximateNumberOfMessages', 0)):,} in {dead_letters}")]


async def _attributes(client: SqsClient, queue: str, pause: Pause) -> Mapping[str, str] | None:
    """Read a queue's attributes. None: permission denied."""
    failures = 0
    while True:
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=queue, AttributeNames=["All"])
        except SqsError as failure:
            if failure.code in MISSING:
                raise ConfigError(f"{queue}: no such queue in this account and region ({failure})") from None
            if failure.code in DENIED:
                log.warning("queue_check", source=queue, finding="not checked: sqs:GetQueueAttributes is denied")
                return None
            if failure.definite and "hrottl" not in failure.code:
                raise ConfigError(f"{queue}: {failure}") from None
            failures += 1
            if is_logged(failures):
                log.warning("source_receive_failed", source=queue, failures=failures, error=str(failure))
            await pause(failures)
        else:
            attributes: Mapping[str, str] = answer.get("Attributes", {})
            return attributes


def redrive_after(attributes: Mapping[str, str]) -> int | None:
    """Number of receives after which the redrive policy gives up. None: the queue has no redrive policy."""
    try:
        return int(json.loads(attributes["RedrivePolicy"])["maxReceiveCount"])
    except (KeyError, TypeError, ValueError):
        return None


def low_redrive_warning(receives: int) -> str:
    return (
        f"the redrive policy gives up after {receives} receives. Busy and Retry count as receives, so events that "
        f"could still succeed may become dead letters. Set maxReceiveCount to {FEW_RECEIVES} or more"
    )
