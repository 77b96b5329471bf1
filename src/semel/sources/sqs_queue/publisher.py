"""Publishes forwarded events to an SQS queue: ten in a request, several requests at a time.

The body is the message, the metadata is a message attribute. An event counts as published when SQS names it in a
response. In every other case (a lost response, a refusal, a timeout) it counts as not published: the sender delivers it
again, and the consumer detects the duplicate.
"""

from __future__ import annotations

import asyncio
import random as _random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from semel.aws import AwsClient, AwsError, Connect
from semel.ports import Fact
from semel.sources.sqs_queue.answers import ENTRIES_MAX, entry_error
from semel.sources.sqs_queue.client import client_factory, sqs_client
from semel.sources.sqs_queue.options import DEAD_LETTER_MAX_BYTES, check_queue_url, doctor_fact, is_throttled
from semel.values.errors import ConfigError, MalformedEvent
from semel.values.forwarded import (
    METADATA_KEY,
    METADATA_MAX_BYTES,
    TOO_LARGE,
    UNFIT,
    ForwardedEvent,
    ForwardMetadata,
    encode_metadata,
)
from semel.values.log import log
from semel.values.retry import backoff_s
from semel.values.strict_json import parse

MESSAGE_MAX_BYTES = DEAD_LETTER_MAX_BYTES  # body and attributes together; also the limit of a whole batch
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_GROUP = re.compile(r"[!-~]{1,128}")  # letters, digits and punctuation
_identity = msgspec.msgpack.Encoder().encode  # unambiguous: the length precedes every part


class Outgoing:
    """One event that is being published. `reason` is empty when the queue has it."""

    __slots__ = ("entry", "group", "reason", "size")

    def __init__(self, event: ForwardedEvent, fifo: bool, size_max: int, reason: str) -> None:
        text, metadata = _sqs_text(event.body), _escaped(encode_metadata(event.metadata))
        self.reason = reason  # until a response arrives
        self.group = event.group
        self.size = (
            len(event.body if text is None else text.encode()) + len(metadata.encode()) + len(METADATA_KEY + "String")
        )
        self.entry: dict[str, Any] | None = None  # None: the queue cannot accept it
        if self.size > size_max:
            self.reason = f"{TOO_LARGE}{self.size:,} bytes with its metadata; the queue accepts {size_max:,}"
        elif len(metadata.encode()) > METADATA_MAX_BYTES:
            self.reason = f"{TOO_LARGE}its metadata has more than {METADATA_MAX_BYTES:,} bytes"
        elif not text:
            self.reason = f"{UNFIT}SQS accepts only non-empty text without most control characters"
        else:
            attributes = {METADATA_KEY: {"DataType": "String", "StringValue": metadata}}
            self.entry = {"MessageBody": text, "MessageAttributes": attributes}
            if fifo:
                id = _deduplication_id(event)
                group = event.group
                if not _GROUP.fullmatch(group):
                    group = sha256(group.encode("utf-8", "surrogatepass")).hexdigest() if group else id
                self.entry |= {"MessageGroupId": group, "MessageDeduplicationId": id}


def _sqs_text(body: bytes) -> str | None:
    """Return the body as text that SQS accepts, or None if there is none.

    JSON can contain U+FFFE and U+FFFF, which SQS refuses. In JSON they occur only in strings, so they can be escaped.
    """
    try:
        text = body.decode()
        if _FORBIDDEN.search(text) is None:
            return text
        escaped = _escaped(text)
        return escaped if parse(body) == parse(escaped.encode()) else None
    except (UnicodeDecodeError, MalformedEvent):
        return None


def _escaped(text: str) -> str:
    return _FORBIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _deduplication_id(event: ForwardedEvent) -> str:
    """Deduplication id: equal for a repeated delivery, which a FIFO queue then drops for five minutes.

    No other events may share it. The same event id with another payload is a conflict and must be reported. The same
    event in another envelope is another delivery, and a business key can distinguish two effects in them.
    """
    metadata: ForwardMetadata = msgspec.structs.replace(event.metadata, trace="")
    return sha256(_identity((encode_metadata(metadata), event.body))).hexdigest()


TIMEOUT_S = 5.0
REQUESTS = 16  # at a time
BACKOFF_BASE_S = 0.05
BACKOFF_CAP_S = 1.0
LOST_ATTEMPTS = 2  # an idle connection can be dead; if the second attempt is lost too, the service is unreachable
CONTENTS = ("InvalidMessageContents", "InvalidParameterValue", "BatchRequestTooLong", "ParamValidationError")
"""Errors that one message of a batch can cause. Only the first is always the message's fault, so only its sender gets a
permanent refusal; a parameter can also be wrong because the queue was changed."""


class SqsPublisher:
    """Publishes events to one queue. The first `publish` opens it on its event loop.

    queue: the URL of a queue, standard or FIFO (.fifo). In a FIFO queue an event's group is its message group.
    region, endpoint: used where the URL or the usual AWS chain does not define them.
    timeout: seconds after which an unconfirmed event is reported as not published.
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
        check_queue_url("queue", queue)
        if not 0 < timeout <= 60:
            raise ConfigError(f"timeout={timeout!r}: expected seconds, above 0 and at most 60")
        self.queue = queue
        self.timeout = timeout
        self._fifo = queue.endswith(".fifo")
        self._random = random
        self._connect = connect or client_factory(queue, region, endpoint, REQUESTS, 0)
        self._client: AwsClient | None = None
        self._size_max = MESSAGE_MAX_BYTES
        self._opening = asyncio.Lock()
        self._requests = asyncio.Semaphore(REQUESTS)
        self._publishing: set[asyncio.Task[list[str]]] = set()

    async def publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        """Return one answer per event: empty when the queue has it, else the reason. Never exceeds the timeout."""
        publishing = asyncio.ensure_future(self._publish(events))
        self._publishing.add(publishing)
        publishing.add_done_callback(self._publishing.discard)
        return await publishing

    async def _publish(self, events: Sequence[ForwardedEvent]) -> list[str]:
        late = f"no answer from SQS within {self.timeout:g} s"
        outgoing: list[Outgoing] = []
        try:
            async with asyncio.timeout(self.timeout):
                client = await self._open_client()
                outgoing = [Outgoing(event, self._fifo, self._size_max, late) for event in events]
                await self._send_all(client, [item for item in outgoing if item.entry is not None])
        except TimeoutError:
            pass  # each event keeps the reason that is known by now
        except ConfigError as error:
            late = str(error)
        return [item.reason for item in outgoing] or [late] * len(events)

    async def _open_client(self) -> AwsClient:
        async with self._opening:
            if self._client is None:
                client = sqs_client(self._connect)
                await client.open()
                try:
                    self._size_max = await _size_max(client, self.queue)
                except BaseException:
                    await client.close()
                    raise
                self._client = client
            return self._client

    async def _send_all(self, client: AwsClient, outgoing: Sequence[Outgoing]) -> None:
        batches = list(_batches(outgoing))
        if self._fifo or len(batches) == 1:  # one after the other, to keep the order within a group
            for batch in batches:
                await self._send(client, batch)
            return
        async with asyncio.TaskGroup() as sending:
            for batch in batches:
                sending.create_task(self._send(client, batch))

    async def _send(self, client: AwsClient, batch: list[Outgoing]) -> None:
        """Send a batch until the queue has all of it or a retry is useless. The caller's timeout ends it."""
        attempts = lost = 0
        while batch:
            if attempts:
                await asyncio.sleep(backoff_s(attempts, self._random, BACKOFF_BASE_S, BACKOFF_CAP_S))
            attempts += 1
            try:
                async with self._requests:
                    entries = [{"Id": str(at), **(item.entry or {})} for at, item in enumerate(batch)]
                    answer = await client.ask("send_message_batch", self.timeout, QueueUrl=self.queue, Entries=entries)
            except AwsError as failure:
                lost += not failure.definite
                if failure.code in CONTENTS and len(batch) > 1:  # one message is at fault: send each alone
                    for item in batch:
                        await self._send(client, [item])
                    return
                for item in batch:
                    item.reason = _reason(failure)
                if not is_throttled(failure) and (failure.definite or lost >= LOST_ATTEMPTS):
                    return
            else:
                batch = self._read(answer, batch)

    def _read(self, answer: Mapping[str, Any], batch: list[Outgoing]) -> list[Outgoing]:
        """Record the response and return the items to retry. An item that the response lacks is not published."""
        for entry in answer.get("Successful", ()):
            batch[int(entry["Id"])].reason = ""
        again = []
        for entry in sorted(answer.get("Failed", ()), key=lambda entry: int(entry["Id"])):
            at = int(entry["Id"])
            failure = entry_error(entry)
            batch[at].reason = _reason(failure)
            # If a later event of its group is already in the FIFO queue, a retry would break the order.
            group = batch[at].group if self._fifo else ""
            is_overtaken = group and any(not other.reason and other.group == group for other in batch[at:])
            if (is_throttled(failure) or not failure.definite) and not is_overtaken:
                again.append(batch[at])
        return again

    async def diagnose(self) -> list[Fact]:
        """Facts about the queue for `semel doctor`. The publisher need not be open."""
        client = sqs_client(self._connect)
        facts = [Fact("queue", self.queue)]
        try:
            await client.open()
        except ConfigError as error:
            return [*facts, Fact("client", str(error), "error")]
        try:
            answer = await client.ask("get_queue_attributes", QueueUrl=self.queue, AttributeNames=["All"])
        except AwsError as failure:
            return [*facts, doctor_fact("attributes", failure)]
        finally:
            await client.close()
        attributes: Mapping[str, str] = answer.get("Attributes", {})
        size_max = int(attributes.get("MaximumMessageSize", MESSAGE_MAX_BYTES))
        return [
            *facts,
            Fact("order", "within a group" if self._fifo else "none"),
            Fact("waiting", f"{int(attributes.get('ApproximateNumberOfMessages', 0)):,}"),
            Fact("messages", f"at most {size_max:,} bytes; larger events are refused", "warning")
            if size_max < MESSAGE_MAX_BYTES
            else Fact("messages", f"{size_max:,} bytes"),
        ]

    async def close(self) -> None:
        """Wait for running calls, then disconnect."""
        while self._publishing:
            await asyncio.wait(self._publishing)
        client, self._client = self._client, None
        self._opening, self._requests = asyncio.Lock(), asyncio.Semaphore(REQUESTS)  # the next loop can be another one
        if client is not None:
            await client.close()


async def _size_max(client: AwsClient, queue: str) -> int:
    """Maximum message size of the queue, or the limit of every queue if it cannot be read."""
    try:
        answer = await client.ask("get_queue_attributes", QueueUrl=queue, AttributeNames=["MaximumMessageSize"])
    except AwsError as failure:
        log.info("queue_limit_unknown", source=queue, error=str(failure))
        return MESSAGE_MAX_BYTES
    return min(MESSAGE_MAX_BYTES, int(answer.get("Attributes", {}).get("MaximumMessageSize", MESSAGE_MAX_BYTES)))


def _batches(outgoing: Sequence[Outgoing]) -> Iterator[list[Outgoing]]:
    """Split into batches, in order: at most ten entries, and no more bytes than a request can hold."""
    batch: list[Outgoing] = []
    size = 0
    for item in outgoing:
        if batch and (len(batch) == ENTRIES_MAX or size + item.size > MESSAGE_MAX_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(item)
        size += item.size
    if batch:
        yield batch


def _reason(failure: AwsError) -> str:
    return f"{UNFIT if failure.code == CONTENTS[0] else ''}{failure}"
