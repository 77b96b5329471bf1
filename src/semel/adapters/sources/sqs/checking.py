"""Whether a queue can be worked with, asked once when it is opened: better then than with the first poison message."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct

from semel.adapters.sources.sqs.client import DENIED, MISSING, Client, Failed
from semel.adapters.sources.sqs.letters import LETTER_MAX_BYTES
from semel.values.errors import ConfigError

log = logging.getLogger("semel")

WAIT_MAX_S = 20
VISIBILITY_MAX_S = 12 * 3600
POLLERS_MAX = 100
IN_FLIGHT_MAX = 20_000  # of a FIFO queue; what a standard one takes does not fit into one process's memory
FEW_RECEIVES = 10  # every Busy and every Retry is a receive, too


class Limits(Struct, frozen=True):
    """What the queues have told of themselves."""

    letter_max: int = LETTER_MAX_BYTES


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


async def check_queues(
    client: Client, queue: str, dead_letters: str, visibility_s: int, pause: Callable[[int], Awaitable[None]]
) -> Limits:
    """Waits while the service is out of reach. Raises ConfigError for what only a person can change."""
    told = await _attributes(client, queue, pause)
    if not dead_letters:
        if told is not None and "RedrivePolicy" not in told:
            raise ConfigError(
                f"{queue}: what nobody can act on would come again until it expires: set dead_letters to the URL of "
                "another queue, or give the queue a redrive policy"
            )
        _warn_of_few_receives(queue, told or {})
        return Limits()
    _warn_of_few_receives(queue, told or {})
    of_letters = await _attributes(client, dead_letters, pause) or {}
    return Limits(letter_max=int(of_letters.get("MaximumMessageSize", LETTER_MAX_BYTES)))


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
                log.warning("%s: cannot be checked without the permission sqs:GetQueueAttributes", queue)
                return None
            if failure.definite and "hrottl" not in failure.code:
                raise ConfigError(f"{queue}: {failure}") from None
            failures += 1
            if failures & (failures - 1) == 0:
                log.warning("%s: out of reach (%d in a row): %s", queue, failures, failure)
            await pause(failures)
        else:
            attributes: Mapping[str, str] = answer.get("Attributes", {})
            return attributes


def _warn_of_few_receives(queue: str, told: Mapping[str, str]) -> None:
    try:
        most = int(json.loads(told["RedrivePolicy"])["maxReceiveCount"])
    except (KeyError, TypeError, ValueError):
        return
    if most < FEW_RECEIVES:
        log.warning(
            "%s: its redrive policy gives up after %d receives, and Busy and Retry are receives too: events that could "
            "succeed may end among its dead letters; %d or more is right",
            *(queue, most, FEW_RECEIVES),
        )
