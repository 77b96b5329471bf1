"""Handing events on to a queue of SQS, ten in a request, several requests at a time.

A parcel is there when the queue has named it in an answer. Whatever else happens (a lost answer, a refusal, the end of
our time) it counts as not there: its sender brings it again, and the consumer finds the duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from semel.adapters.sources.sqs.checking import told_of
from semel.adapters.sources.sqs.client import Client, Connect, Failed, connecting, plain
from semel.adapters.sources.sqs.grouping import ENTRIES_MAX
from semel.adapters.sources.sqs.parcels import MESSAGE_MAX_BYTES, Outgoing
from semel.values.errors import ConfigError
from semel.values.log import log
from semel.values.parcel import UNFIT, Parcel
from semel.values.retry import backoff_s

TIMEOUT_S = 5.0
REQUESTS = 16  # at a time
BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
LOST_TRIES = 2  # a connection that was idle may be gone; where the second try is lost too, the service is
CONTENTS = ("InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong", "ParamValidationError")
"""What may be the fault of one message of a batch. Only the first is never anything else, so that its sender is told
not to come again; a parameter may be wrong because the queue was changed."""


class SqsPublisher:
    """Hands events on to one queue. Opened by the first `publish`, on whose loop it lives until it is closed.

    queue: the URL of a queue, standard or FIFO (.fifo). In a FIFO queue a parcel's group is its message group.
    region, endpoint: where the URL or the usual AWS chain does not say.
    timeout: seconds after which what is not known to be there is answered as such.
    """

    def __init__(
        self,
        queue: str,
        *,
        region: str = "",
        endpoint: str = "",
        timeout: float = TIMEOUT_S,
        random: Callable[[], float] = _random.random,
        connect: Connect | None = None,
    ) -> None:
        if not queue.startswith(("https://", "http://")):
            raise ConfigError(f"queue={queue!r}: expected the URL of a queue, https://sqs.<region>.amazonaws.com/…")
        if not 0 < timeout <= 60:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, above 0 and at most 60")
        self.queue = queue
        self.timeout = timeout
        self._fifo = queue.endswith(".fifo")
        self._random = random
        self._connect = connect or connecting(queue, region, endpoint, REQUESTS, 0)
        self._client: Client | None = None
        self._size_max = MESSAGE_MAX_BYTES
        self._opening = asyncio.Lock()
        self._requests = asyncio.Semaphore(REQUESTS)
        self._under_way: set[asyncio.Task[list[str]]] = set()

    async def publish(self, parcels: Sequence[Parcel]) -> list[str]:
        """Each answer is empty when the queue has the parcel. Never waits longer than the timeout."""
        publishing = asyncio.ensure_future(self._publish(parcels))
        self._under_way.add(publishing)
        publishing.add_done_callback(self._under_way.discard)
        return await publishing

    async def _publish(self, parcels: Sequence[Parcel]) -> list[str]:
        late = f"no answer of SQS within {self.timeout:g} s"
        outgoing: list[Outgoing] = []
        try:
            async with asyncio.timeout(self.timeout):
                client = await self._opened()
                outgoing = [Outgoing(parcel, self._fifo, self._size_max, late) for parcel in parcels]
                await self._send_all(client, [one for one in outgoing if one.entry is not None])
        except TimeoutError:
            pass  # what is known of each by now is its answer
        except ConfigError as error:
            late = str(error)
        return [one.why for one in outgoing] or [late] * len(parcels)

    async def _opened(self) -> Client:
        async with self._opening:
            if self._client is None:
                client = Client(self._connect)
                await client.open()
                try:
                    self._size_max = await _size_max(client, self.queue)
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _send_all(self, client: Client, outgoing: Sequence[Outgoing]) -> None:
        batches = list(_batches(outgoing))
        if self._fifo or len(batches) == 1:  # one after the other, so that none overtakes another of its group
            for some in batches:
                await self._send(client, some)
            return
        async with asyncio.TaskGroup() as sending:
            for some in batches:
                sending.create_task(self._send(client, some))

    async def _send(self, client: Client, some: list[Outgoing]) -> None:
        """Until the queue has them, or another try is no use. Ends at the timeout, with what was known by then."""
        tries = lost = 0
        while some:
            if tries:
                await asyncio.sleep(backoff_s(tries, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
            tries += 1
            try:
                async with self._requests:
                    entries = [{"Id": str(at), **(one.entry or {})} for at, one in enumerate(some)]
                    answer = await client.ask("send_message_batch", self.timeout, QueueUrl=self.queue, Entries=entries)
            except Failed as failure:
                lost += not failure.definite
                if failure.code in CONTENTS and len(some) > 1:  # of one of them: the others must not suffer for it
                    for one in some:
                        await self._send(client, [one])
                    return
                for one in some:
                    one.why = _why(failure)
                if not _is_throttled(failure) and (failure.definite or lost >= LOST_TRIES):
                    return
            else:
                some = self._read(answer, some)

    def _read(self, answer: Mapping[str, Any], some: list[Outgoing]) -> list[Outgoing]:
        """Which of them are worth another try. What the queue has neither taken nor refused is not there."""
        for entry in answer.get("Successful", ()):
            some[int(entry["Id"])].why = ""
        again = []
        for entry in answer.get("Failed", ()):
            one = some[int(entry["Id"])]
            failure = Failed(
                plain(entry.get("Code")), str(entry.get("Message", ""))[:300], bool(entry.get("SenderFault"))
            )
            one.why = _why(failure)
            if _is_throttled(failure) or not failure.definite:
                again.append((int(entry["Id"]), one))
        return [one for at, one in sorted(again, key=lambda found: found[0]) if not self._is_overtaken(one, some[at:])]

    def _is_overtaken(self, one: Outgoing, rest: Sequence[Outgoing]) -> bool:
        """A later one of its group is in a FIFO queue: behind that, it would be out of order."""
        return self._fifo and bool(one.group) and any(not other.why and other.group == one.group for other in rest)

    async def diagnose(self) -> list[tuple[str, str]]:
        """Facts about the queue, for `semel doctor`, also of a publisher that was never used."""
        client = Client(self._connect)
        facts = [("queue", self.queue)]
        try:
            await client.open()
        except ConfigError as error:
            return [*facts, ("client", f"error: {error}")]
        try:
            told = await client.ask("get_queue_attributes", QueueUrl=self.queue, AttributeNames=["All"])
        except Failed as failure:
            return [*facts, ("attributes", told_of(failure))]
        finally:
            await client.close()
        attributes: Mapping[str, str] = told.get("Attributes", {})
        most = int(attributes.get("MaximumMessageSize", MESSAGE_MAX_BYTES))
        large = f"{most:,} bytes"
        return [
            *facts,
            ("order", "within a group" if self._fifo else "none"),
            ("waiting", f"{int(attributes.get('ApproximateNumberOfMessages', 0)):,}"),
            ("messages", f"warning: at most {large}; larger events are refused" if most < MESSAGE_MAX_BYTES else large),
        ]

    async def close(self) -> None:
        """Return when what is under way has been answered."""
        while self._under_way:
            await asyncio.wait(self._under_way)
        client, self._client = self._client, None
        self._opening, self._requests = asyncio.Lock(), asyncio.Semaphore(REQUESTS)  # another loop may be the next
        if client is not None:
            await client.close()


async def _size_max(client: Client, queue: str) -> int:
    """What the queue takes; what every queue takes where we are not told."""
    try:
        told = await client.ask("get_queue_attributes", QueueUrl=queue, AttributeNames=["MaximumMessageSize"])
    except Failed as failure:
        log.info("queue_limit_unknown", source=queue, error=str(failure))
        return MESSAGE_MAX_BYTES
    return min(MESSAGE_MAX_BYTES, int(told.get("Attributes", {}).get("MaximumMessageSize", MESSAGE_MAX_BYTES)))


def _batches(outgoing: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    """In order, at most ten, and no more bytes than one request may have."""
    batch: list[Outgoing] = []
    size = 0
    for one in outgoing:
        if batch and (len(batch) == ENTRIES_MAX or size + one.size > MESSAGE_MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.size
    if batch:
        yield batch


def _is_throttled(failure: Failed) -> bool:
    return "hrottl" in failure.code


def _why(failure: Failed) -> str:
    return f"{UNFIT if failure.code == CONTENTS[0] else ''}{failure}"
