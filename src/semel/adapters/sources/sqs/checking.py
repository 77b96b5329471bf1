"""Whether a queue can be worked with, asked once when it is opened: better then than with the first poison message."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from semel.adapters.sources.sqs.client import DENIED, MISSING, Client, Failed
from semel.adapters.sources.sqs.letters import LETTER_MAX_BYTES
from semel.values.errors import ConfigError
from semel.values.log import log

WAIT_MAX_S = 20
VISIBILITY_MAX_S = 12 * 3600
POLLERS_MAX = 100
IN_FLIGHT_MAX = 20_000  # of a FIFO queue; what a standard one takes does not fit into one process's memory
FEW_RECEIVES = 10  # every Busy and every Retry is a receive, too
DAY_S = 86_400
NOWHERE = (
    "what nobody can act on would come again until it expires: set dead_letters to the URL of another queue, or give "
    "the queue a redrive policy"
)


def check_options(queue: str, dead_letters: str, pollers: int, max_in_flight: int, visibility: int, wait: int) -> None:
    """Raises ConfigError that says which option is wrong."""
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


async def check_queues(client: Client, queue: str, dead_letters: str, pause: Callable[[int], Awaitable[None]]) -> int:
    """How many bytes a dead letter may have. Waits while the service is out of reach; raises ConfigError for what only
    a person can change."""
    told = await _attributes(client, queue, pause)
    if told is not None and not dead_letters and "RedrivePolicy" not in told:
        raise ConfigError(f"{queue}: {NOWHERE}")
    most = receives_max(told or {})
    if most is not None and most < FEW_RECEIVES:
        log.warning("queue_check", source=queue, finding=few_receives(most))
    of_letters = await _attributes(client, dead_letters, pause) if dead_letters else None
    return int((of_letters or {}).get("MaximumMessageSize", LETTER_MAX_BYTES))


def told_of(failure: Failed) -> str:
    """For `semel doctor`. What may be over in a moment is no reason not to start."""
    if failure.code in DENIED:
        return f"warning: {failure}"
    return f"error: {failure}" if failure.definite else f"error: out of reach: {failure}"


async def diagnose(client: Client, queue: str, dead_letters: str, handed_on: bool = False) -> list[tuple[str, str]]:
    """Facts for `semel doctor`, asked once. A value that begins with "error: " or "warning: " is one."""

    async def told(url: str) -> Mapping[str, str] | str:
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=url, AttributeNames=["All"])
        except Failed as failure:
            return told_of(failure)
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        return attributes

    facts = [("queue", queue)]
    if handed_on:
        facts.append(("handed on", "notes are believed: whoever may send to this queue can name any tenant"))
    own = await told(queue)
    if isinstance(own, str):
        return [*facts, ("attributes", own)]
    facts += [
        ("waiting", f"{int(own.get('ApproximateNumberOfMessages', 0)):,}"),
        ("in flight", f"{int(own.get('ApproximateNumberOfMessagesNotVisible', 0)):,}"),
        ("kept for", f"{int(own.get('MessageRetentionPeriod', 0)) / DAY_S:g} days"),
    ]
    most = receives_max(own)
    if most is not None:
        facts.append(
            ("redrive", f"after {most} receives" if most >= FEW_RECEIVES else f"warning: {few_receives(most)}")
        )
    if not dead_letters:
        return [*facts, ("dead letters", "left to the redrive policy" if most is not None else f"error: {NOWHERE}")]
    of_letters = await told(dead_letters)
    if isinstance(of_letters, str):
        return [*facts, ("dead letters", of_letters)]
    return [*facts, ("dead letters", f"{int(of_letters.get('ApproximateNumberOfMessages', 0)):,} in {dead_letters}")]


async def _attributes(client: Client, queue: str, pause: Callable[[int], Awaitable[None]]) -> Mapping[str, str] | None:
    """None: we may not read them."""
    failures = 0
    while True:
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=queue, AttributeNames=["All"])
        except Failed as failure:
            if failure.code in MISSING:
                raise ConfigError(f"{queue}: there is no such queue in this account and region ({failure})") from None
            if failure.code in DENIED:
                log.warning("queue_check", source=queue, finding="not checked: sqs:GetQueueAttributes is denied")
                return None
            if failure.definite and "hrottl" not in failure.code:
                raise ConfigError(f"{queue}: {failure}") from None
            failures += 1
            if failures & (failures - 1) == 0:
                log.warning("source_receive_failed", source=queue, failures=failures, error=str(failure))
            await pause(failures)
        else:
            attributes: Mapping[str, str] = answer.get("Attributes", {})
            return attributes


def receives_max(told: Mapping[str, str]) -> int | None:
    """After how many receives the queue's own redrive policy gives up; None: it has none."""
    try:
        return int(json.loads(told["RedrivePolicy"])["maxReceiveCount"])
    except (KeyError, TypeError, ValueError):
        return None


def few_receives(most: int) -> str:
    return (
        f"its redrive policy gives up after {most} receives, and Busy and Retry are receives too: events that could "
        f"succeed may end among its dead letters; {FEW_RECEIVES} or more is right"
    )
