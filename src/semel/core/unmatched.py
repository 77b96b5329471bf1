"""Events that no handler wants. A source that has heard "ack" forgets them, so it is said and counted what they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Literal, TypeAlias

from semel.ports import Delivery
from semel.values.log import log

Then: TypeAlias = Literal["ack", "reject"]

REASON = "no handler matches"
TOPICS_MAX = 200  # told apart; an event chooses its own topic
TOPIC_CHARS = 120
OTHER = "(other topics)"

_ID = re.compile(r"[0-9a-fA-F-]{16,}|\d+")


class Unmatched:
    """Says it of each topic: the first time, then the second, fourth, eighth …"""

    def __init__(
        self,
        topic_of: Callable[[Delivery], str],
        then: Then = "ack",
        source: str = "a source",
        told: Callable[[], None] | None = None,
    ) -> None:
        """`topic_of` is empty for what is no event at all, such as the heartbeat of a channel. `told` is called for
        each of them."""
        self._topic_of = topic_of
        self._then = then
        self._source = source
        self._told = told
        self._seen: dict[str, int] = {}

    async def answer(self, delivery: Delivery) -> bool:
        """Answer it as was chosen. True: it was rejected."""
        topic = self._topic_of(delivery)
        if topic:
            self._say(plain(topic))
        if topic and self._then == "reject":
            await delivery.reject(REASON)
            return True
        await delivery.ack()
        return False

    def _say(self, topic: str) -> None:
        if self._told is not None:
            self._told()
        if topic not in self._seen and len(self._seen) >= TOPICS_MAX:
            topic = OTHER
        count = self._seen[topic] = self._seen.get(topic, 0) + 1
        if count & (count - 1) == 0:
            log.warning("event_unmatched", source=self._source, topic=topic, count=count, answer=self._then)


def plain(topic: str) -> str:
    """A topic without what is another in each event."""
    parts = ("*" if _ID.fullmatch(part) else part for part in topic.split("."))
    text = ".".join(parts)[:TOPIC_CHARS]
    return text if text.isprintable() else repr(text)
