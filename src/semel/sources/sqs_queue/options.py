"""Options of an SQS source, the checks of its queues at opening, and the facts for `semel doctor`.

A missing dead-letter queue is better found at opening than with the first poison message.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from semel.aws import DENIED, AwsClient, AwsError
from semel.ports import Fact
from semel.sources.lifecycle import TRUSTED_METADATA, SourceOptions
from semel.sources.sqs_queue.client import MISSING
from semel.values.errors import ConfigError
from semel.values.log import IncidentLog, log

DEAD_LETTER_MAX_BYTES = 256 * 1024  # every queue accepts this much: body and attributes together

WAIT_MAX_S = 20
VISIBILITY_MAX_S = 12 * 3600  # from the receipt, however often it is extended
POLLERS_MAX = 100
IN_FLIGHT_MAX = 20_000  # SQS allows this many for a FIFO queue; the 120,000 of a standard queue need too much memory


class SqsOptions(SourceOptions, frozen=True, kw_only=True):
    """Options of an SQS source.

    queue, dead_letters: URLs of queues. Without dead_letters, rejected messages are left to the queue's redrive policy.
    region, endpoint: used where the URL or the usual AWS chain does not define them.
    pollers: concurrent long polls. max_in_flight: messages that are received and not answered.
    visibility: seconds for which a message is invisible, extended while it is in flight; more than the handlers' lease.
    wait: seconds of one long poll.
    """

    queue: str
    region: str = ""
    endpoint: str = ""
    pollers: int = 4
    max_in_flight: int = 256
    visibility: int = 30  # above the lease of 25 s
    wait: int = WAIT_MAX_S  # the longest poll there is: the fewest empty ones

    def __post_init__(self) -> None:
        """Raises ConfigError that names the wrong option."""
        check_queue_url("queue", self.queue)
        if self.dead_letters:
            check_queue_url("dead_letters", self.dead_letters)
        if self.queue == self.dead_letters:
            raise ConfigError(
                f"dead_letters={self.queue!r}: a queue cannot keep its own dead letters; name another one"
            )
        for name, number, most in (
            ("pollers", self.pollers, POLLERS_MAX),
            ("max_in_flight", self.max_in_flight, IN_FLIGHT_MAX),
            ("visibility", self.visibility, VISIBILITY_MAX_S),
            ("wait", self.wait, WAIT_MAX_S),
        ):
            if type(number) is not int or not 1 <= number <= most:
                raise ConfigError(f"{name}={number!r}: expected a whole number, at least 1 and at most {most:,}")

    @property
    def fifo(self) -> bool:
        return self.queue.endswith(".fifo")


def check_queue_url(option: str, url: str) -> None:
    if not url.startswith(("https://", "http://")):
        raise ConfigError(f"{option}={url!r}: expected the URL of a queue, https://sqs.<region>.amazonaws.com/…")


FEW_RECEIVES = 10  # every Busy and every Retry counts as a receive
DAY_S = 86_400
NOWHERE = (
    "rejected messages have nowhere to go and would be redelivered until they expire: set dead_letters to the URL of "
    "another queue, or give the queue a redrive policy"
)
Pause: TypeAlias = Callable[[int], Awaitable[None]]
"""Waits after this many failures in a row."""


async def check_queues(client: AwsClient, options: SqsOptions, incident: IncidentLog, pause: Pause) -> int:
    """Check both queues and return the maximum size of a dead letter in bytes.

    Waits while the service is unreachable. Raises ConfigError for a problem that needs a change by an operator.
    """

    async def read_attributes(queue: str) -> Mapping[str, str] | None:
        """Read a queue's attributes. None: permission denied."""
        failures = 0
        while True:
            try:
                answer = await client.ask("get_queue_attributes", QueueUrl=queue, AttributeNames=["All"])
            except AwsError as failure:
                if failure.code in MISSING:
                    raise ConfigError(f"{queue}: no such queue in this account and region ({failure})") from None
                if failure.code in DENIED:
                    log.warning("queue_check", source=queue, finding="not checked: sqs:GetQueueAttributes is denied")
                    return None
                if failure.definite and not is_throttled(failure):
                    raise ConfigError(f"{queue}: {failure}") from None
                failures += 1
                incident.report(str(failure))
                await pause(failures)
            else:
                attributes: Mapping[str, str] = answer.get("Attributes", {})
                return attributes

    attributes = await read_attributes(options.queue)
    if attributes is not None and not options.dead_letters and "RedrivePolicy" not in attributes:
        raise ConfigError(f"{options.queue}: {NOWHERE}")
    receives = redrive_after(attributes or {})
    if receives is not None and receives < FEW_RECEIVES:
        log.warning("queue_check", source=options.queue, finding=low_redrive_warning(receives))
    target_attributes = await read_attributes(options.dead_letters) if options.dead_letters else None
    return int((target_attributes or {}).get("MaximumMessageSize", DEAD_LETTER_MAX_BYTES))


def is_throttled(failure: AwsError) -> bool:
    return "hrottl" in failure.code


def doctor_fact(name: str, failure: AwsError) -> Fact:
    """Fact for `semel doctor`. "out of reach" marks a failure that can be over soon; Semel starts despite it."""
    if failure.code in DENIED:
        return Fact(name, str(failure), "warning")
    return Fact(name, str(failure) if failure.definite else f"out of reach: {failure}", "error")


async def diagnose(client: AwsClient, options: SqsOptions) -> list[Fact]:
    """Facts for `semel doctor`, read once."""

    async def read_attributes(name: str, url: str) -> Mapping[str, str] | Fact:
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        except AwsError as failure:
            return doctor_fact(name, failure)
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        return attributes

    facts = [Fact("queue", options.queue)]
    if options.forwarded:
        facts.append(TRUSTED_METADATA)
    attributes = await read_attributes("attributes", options.queue)
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
    if not options.dead_letters and receives is None:
        return [*facts, Fact("dead letters", NOWHERE, "error")]
    if not options.dead_letters:
        return [*facts, Fact("dead letters", "left to the redrive policy")]
    target = await read_attributes("dead letters", options.dead_letters)
    if isinstance(target, Fact):
        return [*facts, target]
    kept = int(target.get("ApproximateNumberOfMessages", 0))
    return [*facts, Fact("dead letters", f"{kept:,} in {options.dead_letters}")]


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
