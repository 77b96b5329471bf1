"""The webhook source: raw ASGI, because a framework would cost more than the whole flow.

    limits → body → turn → verification → (inbox: durable, 200) or (inline: the flow, its outcome decides) → answer
                                        → (handed on: the broker has it, 200)
                                        → (a provider's callback: the outbox has heard it, 200)

Nothing is parsed before it is verified, and nothing is claimed before that. A body is read before its turn comes, or
whoever sends slowly would take the turns of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from semel.app import Message
from semel.core.outboxes import StoredOutbox
from semel.core.planning import Planner
from semel.ports import MessageIdVerifier
from semel.service import answers
from semel.service.answers import Answer
from semel.service.doors import Door
from semel.service.handing_on import HandingOn, parcel_of
from semel.service.hearing import Hearing
from semel.service.turns import Place, Room, Turns
from semel.service.unverified import Unverified
from semel.values.cloudevents import is_structured
from semel.values.errors import ConfigError, LedgerUnavailable, MalformedEvent, VerifierUnavailable
from semel.values.outcome import Outcome
from semel.values.reading import Reading

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_IN_FLIGHT = 256  # deliveries being answered at a time
ARRIVING_MAX_BYTES = 64 * 1024 * 1024  # of all bodies that wait for their rest or for their turn
READ_TIMEOUT_S = 10.0  # for a whole body
LEDGER_DOWN_S = 1.0  # what a sender is asked to wait
VERIFIER_DOWN_S = 5.0
BROKER_DOWN_S = 1.0
QUERY = b":query"  # the query of the URL, among the headers, for schemes that sign it: no header can have this name


class Handling(Protocol):
    """What happens to a verified delivery."""

    async def process(self, message: Message) -> Outcome:
        """Through the whole flow. Raises LedgerUnavailable."""

    async def accept(self, message: Message) -> Outcome:
        """Into the inbox. Raises LedgerUnavailable."""

    async def without_ledger(self, message: Message) -> Outcome | None:
        """The ledger is out of reach: what routes that fail open came to; None where one of them does not."""


class Watch(Protocol):
    """Is told of deliveries and answers."""

    def receiving(self, path: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[object]:
        """Around a delivery, from its headers to its answer."""

    def told(self, path: str, status: int) -> None:
        """What the sender is answered; said inside `receiving`."""

    def overloaded(self, path: str) -> None:
        """It was refused, because too many were in flight."""


class Ingest:
    """Answers deliveries at its doors."""

    def __init__(
        self,
        handling: Handling,
        doors: Sequence[Door],
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        read_timeout_s: float = READ_TIMEOUT_S,
        watch: Watch | None = None,
        planner: Planner | None = None,
        trace: Callable[[], str] = lambda: "",
        outbox: StoredOutbox | None = None,
    ) -> None:
        """`planner` is for doors that hand on, and for those whose verifier proves an id: how the app reads an event.
        `trace` is for doors that hand on: the trace that a delivery came in.
        `outbox` is for those that hear: who is told what became of messages."""
        self.doors = {door.path: door for door in doors}
        self._planner = planner
        self._trace = trace
        self._handing_on = _one_each(doors, planner)
        self._hearing = _hearing(doors, outbox)
        self._message_id_of = _message_ids(doors)
        self._handling = handling
        self._unverified = Unverified()
        self._turns = Turns(max_in_flight)
        self._room = Room(ARRIVING_MAX_BYTES)
        self._read_timeout_s = read_timeout_s
        self._watch = watch

    async def deliver(self, door: Door, scope: Scope, receive: Receive, send: Send) -> None:
        """One request from its first header to the last byte of its answer."""
        if self._watch is None:
            answer = await self._admit(door, scope, receive)
        else:
            with self._watch.receiving(door.path, dict(scope["headers"])):
                answer = await self._admit(door, scope, receive)
                self._watch.told(door.path, answer.status)
        await reply(answer, send)

    async def _admit(self, door: Door, scope: Scope, receive: Receive) -> Answer:
        """More at a time would only make everybody wait: who does not get a turn soon is told to come again."""
        if scope["method"] != "POST":
            return answers.NOT_POST
        headers = _joined(scope["headers"])
        described = b"ce-id" in headers or b"ce-specversion" in headers
        if described and not door.proves_headers and door.hears is None and not _is_structured(headers):
            return answers.UNPROVEN_HEADERS
        with self._room.place() as place:
            body = await self._body(door, headers, receive, place)
            if isinstance(body, Answer):
                return body
            if not await self._turns.take():
                return self._overloaded(door)
        try:
            return await self._answer(door, headers, body, scope.get("query_string", b""))
        finally:
            self._turns.give_back()

    def _overloaded(self, door: Door) -> Answer:
        if self._watch is not None:
            self._watch.overloaded(door.path)
        return door.overloaded

    async def _answer(self, door: Door, headers: Mapping[bytes, bytes], body: bytes, query: bytes) -> Answer:
        try:
            if door.verifier is not None and not await door.verifier.verify({**headers, QUERY: query}, body):
                await self._unverified.tell(door, {**headers, QUERY: query}, body)
                return door.not_verified
        except VerifierUnavailable as error:
            return answers.cannot_verify(str(error), VERIFIER_DOWN_S)
        if door.unwrap is not None:
            try:
                inner = door.unwrap(body)
            except MalformedEvent as error:
                return answers.answer(Outcome("malformed", reason=str(error)), door.busy_status)
            if inner is None:
                return answers.told(Outcome("ignored", reason="no event, but a word of its transport"))
            body = inner
        if door.hears is not None:
            return await self._hear(door, headers, body, query)
        described = b"ce-id" in headers or b"ce-specversion" in headers  # CloudEvents in binary mode
        reading = self._with_message_id(door, headers) if door.path in self._message_id_of else door.reading
        message = Message(body, door.tenant, reading, _texts(headers) if described and door.proves_headers else None)
        outcome = await (self._act_on(door, message) if door.publisher is None else self._hand_on(door, message))
        if isinstance(outcome, Answer):
            return outcome
        return answers.answer(outcome, door.busy_status)

    def _with_message_id(self, door: Door, headers: Mapping[bytes, bytes]) -> Reading:
        """How to decode a message whose id is proven. It is kept with the event: a replay must make the same key."""
        assert self._planner is not None  # whoever makes an Ingest for events passes it
        return replace(door.reading or self._planner.reading, message_id=self._message_id_of[door.path](headers))

    async def _hear(self, door: Door, headers: Mapping[bytes, bytes], body: bytes, query: bytes) -> Answer:
        """Its provider gets what is proven: where only the body is, no more than how that is to be read."""
        assert self._hearing is not None
        proven = _texts(headers)
        if not door.proves_headers:
            proven = {name: text for name, text in proven.items() if name == "content-type"}
        return await self._hearing.hear(door, proven, body, query.decode("latin-1") if door.proves_query else "")

    async def _act_on(self, door: Door, message: Message) -> Outcome | Answer:
        try:
            if door.mode == "inbox":
                return await self._handling.accept(message)
            return await self._handling.process(message)
        except LedgerUnavailable:  # what ails it is in the log
            ran = await self._handling.without_ledger(message)
            return answers.ledger_down(LEDGER_DOWN_S) if ran is None else ran

    async def _hand_on(self, door: Door, message: Message) -> Outcome | Answer:
        assert self._planner is not None
        parcel = parcel_of(self._planner, message, self._trace())
        if isinstance(parcel, Outcome):
            return parcel
        handed, accepted = parcel
        why = await self._handing_on[door.path].hand_on(handed)
        return answers.not_handed_on(why, BROKER_DOWN_S) if why else accepted

    async def _body(self, door: Door, headers: Mapping[bytes, bytes], receive: Receive, place: Place) -> bytes | Answer:
        """The whole body, or why it is not read. It is never decoded: a small body cannot become a large one."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return answers.ENCODED
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 19):
            return answers.UNREADABLE_LENGTH
        if length is not None and int(length) > door.body_max:
            return answers.too_large(door.body_max)
        event = await receive()
        if event["type"] == "http.request" and not event.get("more_body", False):  # nearly always
            body: bytes = event.get("body", b"")
            return body if len(body) <= door.body_max else answers.too_large(door.body_max)
        try:
            async with asyncio.timeout(self._read_timeout_s) as patience:
                place.arriving(patience)
                return await _rest(event, receive, door.body_max, place)
        except TimeoutError:
            return self._overloaded(door) if place.given_up else answers.TOO_SLOW
        finally:
            place.arrived()


def _one_each(doors: Sequence[Door], planner: Planner | None) -> Mapping[str, HandingOn]:
    """By path. Doors to one broker share what is known about it."""
    publishers = {id(door.publisher): door.publisher for door in doors if door.publisher is not None}
    if publishers and planner is None:
        raise ConfigError("a door that hands on needs to know how events are read: Ingest(…, planner=app.planner)")
    shared = {key: HandingOn(publisher) for key, publisher in publishers.items()}
    return {door.path: shared[id(door.publisher)] for door in doors if door.publisher is not None}


def _message_ids(doors: Sequence[Door]) -> Mapping[str, Callable[[Mapping[bytes, bytes]], str]]:
    """By path, for the doors whose verifier proves an id."""
    found: dict[str, Callable[[Mapping[bytes, bytes]], str]] = {}
    for door in doors:
        verifier: object = door.verifier
        if door.hears is None and isinstance(verifier, MessageIdVerifier):
            found[door.path] = verifier.message_id
    return found


def _hearing(doors: Sequence[Door], outbox: StoredOutbox | None) -> Hearing | None:
    if not any(door.hears is not None for door in doors):
        return None
    if outbox is None:
        raise ConfigError("a door that hears callbacks needs an outbox to tell: Ingest(…, outbox=ledger.outbox)")
    return Hearing(outbox)


async def _rest(event: MutableMapping[str, Any], receive: Receive, most: int, place: Place) -> bytes | Answer:
    body = bytearray()
    while True:
        if event["type"] == "http.disconnect":
            return answers.GONE
        piece: bytes = event.get("body", b"")
        body += piece
        if len(body) > most:
            return answers.too_large(most)
        place.grow(len(piece))
        if not event.get("more_body", False):
            return bytes(body)
        event = await receive()


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Headers by name. A repeated one is joined, as HTTP has it: then no part of it can be chosen over the others."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        headers = {}
        for name, value in pairs:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _is_structured(headers: Mapping[bytes, bytes]) -> bool:
    """CloudEvents in structured mode: the body has everything, and `ce-` headers beside it are not read."""
    return is_structured(headers.get(b"content-type", b"").decode("latin-1"))


def _texts(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


async def reply(answer: Answer, send: Send) -> None:
    """Send an answer."""
    if answer is answers.GONE:
        return
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    await send({"type": "http.response.body", "body": answer.body})
