"""The webhook source, as plain ASGI: a web framework would cost more than all the rest of the path.

    limits -> body -> admission -> verification -> inbox: stored durably, 200
                                                -> inline: processed here, the outcome decides the status
                                                -> forwarded: the broker confirmed it, 200
                                                -> provider callback: recorded in the outbox, 200

Nothing is parsed or claimed before it is verified. The body is read before admission, so that slow senders do not use
up the slots of all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeAlias

from msgspec.structs import replace

from semel.app import Message
from semel.core.resend import StoredOutbox
from semel.core.routing import Planner
from semel.ports import MessageIdVerifier
from semel.service import responses
from semel.service.admission import Admission, BodyBudget, Reservation
from semel.service.broker_forwarding import BrokerForwarding, forwarded_event
from semel.service.endpoints import ServedEndpoint
from semel.service.incident_log import UnverifiedLog
from semel.service.provider_callbacks import ProviderCallbacks
from semel.service.responses import HttpResponse
from semel.values.cloudevents import is_structured
from semel.values.errors import ConfigError, LedgerUnavailable, MalformedEvent, VerifierUnavailable
from semel.values.event import DecodeOptions
from semel.values.outcome import Outcome

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]

MAX_IN_FLIGHT = 256  # concurrent deliveries
ARRIVING_MAX_BYTES = 64 * 1024 * 1024  # of all bodies that are incomplete or wait for admission
READ_TIMEOUT_S = 10.0  # for a whole body
LEDGER_DOWN_S = 1.0  # Retry-After of a 503
VERIFIER_DOWN_S = 5.0
BROKER_DOWN_S = 1.0
QUERY = b":query"  # the query of the URL, among the headers, for schemes that sign it: no header can have this name


class DeliveryProcessor(Protocol):
    """Processes verified deliveries. `DeliveryHandler` implements it."""

    async def process(self, message: Message) -> Outcome:
        """Run the handlers. Raises LedgerUnavailable."""

    async def accept(self, message: Message) -> Outcome:
        """Store the event in the inbox. Raises LedgerUnavailable."""

    async def without_ledger(self, message: Message) -> Outcome | None:
        """Run the handlers without the ledger. None: not every route of the event fails open."""


class IngestObserver(Protocol):
    """Receives the start and the response of each delivery. `ServiceTelemetry` implements it."""

    def receiving(self, path: str, headers: Mapping[bytes, bytes]) -> AbstractContextManager[object]:
        """Entered when the headers are read, left when the response is known."""

    def responded(self, path: str, status: int) -> None:
        """Record the response status. Called inside `receiving`."""

    def overloaded(self, path: str) -> None:
        """Record a delivery that was refused because too many were in flight."""


class Ingest:
    """Answers the deliveries of all endpoints."""

    def __init__(
        self,
        processor: DeliveryProcessor,
        endpoints: Sequence[ServedEndpoint],
        *,
        max_in_flight: int = MAX_IN_FLIGHT,
        read_timeout_s: float = READ_TIMEOUT_S,
        observer: IngestObserver | None = None,
        planner: Planner | None = None,
        trace: Callable[[], str] = lambda: "",
        outbox: StoredOutbox | None = None,
    ) -> None:
        """`planner` decodes events; endpoints that forward, or whose verifier proves a message id, need it.
        `trace` returns the current trace, for endpoints that forward.
        `outbox` records provider callbacks."""
        self.endpoints = {endpoint.path: endpoint for endpoint in endpoints}
        self._planner = planner
        self._trace = trace
        self._forwarding = _forwarding(endpoints, planner)
        self._callbacks = _callbacks(endpoints, outbox)
        self._message_id_of = _message_ids(endpoints)
        self._processor = processor
        self._unverified = UnverifiedLog()
        self._admission = Admission(max_in_flight)
        self._body_budget = BodyBudget(ARRIVING_MAX_BYTES)
        self._read_timeout_s = read_timeout_s
        self._observer = observer

    async def deliver(self, endpoint: ServedEndpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, from its headers to the last byte of its response."""
        if self._observer is None:
            response = await self._admit(endpoint, scope, receive)
        else:
            with self._observer.receiving(endpoint.path, dict(scope["headers"])):
                response = await self._admit(endpoint, scope, receive)
                self._observer.responded(endpoint.path, response.status)
        await reply(response, send)

    async def _admit(self, endpoint: ServedEndpoint, scope: Scope, receive: Receive) -> HttpResponse:
        """Read the body and wait for a slot. A sender that gets no slot soon is asked to retry: more concurrency would
        only make every sender wait."""
        if scope["method"] != "POST":
            return responses.NOT_POST
        headers = _joined(scope["headers"])
        unproven = (b"ce-id" in headers or b"ce-specversion" in headers) and not endpoint.proves_headers
        if unproven and endpoint.callback_provider is None and not _is_structured(headers):
            return responses.UNPROVEN_HEADERS
        with self._body_budget.reserve() as reservation:
            body = await self._read_body(endpoint, headers, receive, reservation)
            if isinstance(body, HttpResponse):
                return body
            if not await self._admission.acquire():
                return self._overloaded(endpoint)
        try:
            return await self._answer(endpoint, headers, body, scope.get("query_string", b""))
        finally:
            self._admission.release()

    def _overloaded(self, endpoint: ServedEndpoint) -> HttpResponse:
        if self._observer is not None:
            self._observer.overloaded(endpoint.path)
        return endpoint.overloaded

    async def _answer(
        self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], body: bytes, query: bytes
    ) -> HttpResponse:
        try:
            if endpoint.verifier is not None and not await endpoint.verifier.verify({**headers, QUERY: query}, body):
                await self._unverified.record(endpoint, {**headers, QUERY: query}, body)
                return endpoint.not_verified
        except VerifierUnavailable as error:
            return responses.cannot_verify(str(error), VERIFIER_DOWN_S)
        if endpoint.unwrap is not None:
            try:
                inner = endpoint.unwrap(body)
            except MalformedEvent as error:
                return responses.response_for(Outcome("malformed", reason=str(error)), endpoint.busy_status)
            if inner is None:
                return responses.accepted(Outcome("ignored", reason="a control message of the transport, not an event"))
            body = inner
        if endpoint.callback_provider is not None:
            return await self._record_callback(endpoint, headers, body, query)
        options = endpoint.decode_options
        if endpoint.path in self._message_id_of:
            options = self._with_message_id(endpoint, headers)
        binary_mode = b"ce-id" in headers or b"ce-specversion" in headers  # of CloudEvents
        attributes = _texts(headers) if binary_mode and endpoint.proves_headers else None
        message = Message(body, endpoint.tenant, options, attributes)
        forward = endpoint.publisher is not None
        outcome = await (self._forward(endpoint, message) if forward else self._process(endpoint, message))
        if isinstance(outcome, HttpResponse):
            return outcome
        return responses.response_for(outcome, endpoint.busy_status)

    def _with_message_id(self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes]) -> DecodeOptions:
        """Decode options with the proven message id. They are stored with the event: a replay makes the same key."""
        assert self._planner is not None  # every caller with event endpoints passes one
        return replace(
            endpoint.decode_options or self._planner.decode_options,
            message_id=self._message_id_of[endpoint.path](headers),
        )

    async def _record_callback(
        self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], body: bytes, query: bytes
    ) -> HttpResponse:
        """Pass only verified input to the provider. If only the body is signed, that is the body and its type."""
        assert self._callbacks is not None
        proven = _texts(headers)
        if not endpoint.proves_headers:
            proven = {name: text for name, text in proven.items() if name == "content-type"}
        return await self._callbacks.handle(
            endpoint, proven, body, query.decode("latin-1") if endpoint.proves_query else ""
        )

    async def _process(self, endpoint: ServedEndpoint, message: Message) -> Outcome | HttpResponse:
        try:
            if endpoint.mode == "inbox":
                return await self._processor.accept(message)
            return await self._processor.process(message)
        except LedgerUnavailable:  # logged by the ledger breaker
            outcome = await self._processor.without_ledger(message)
            return responses.ledger_down(LEDGER_DOWN_S) if outcome is None else outcome

    async def _forward(self, endpoint: ServedEndpoint, message: Message) -> Outcome | HttpResponse:
        assert self._planner is not None
        forwarded = forwarded_event(self._planner, message, self._trace())
        if isinstance(forwarded, Outcome):
            return forwarded
        event, accepted = forwarded
        reason = await self._forwarding[endpoint.path].forward(event)
        return responses.not_forwarded(reason, BROKER_DOWN_S) if reason else accepted

    async def _read_body(
        self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], receive: Receive, reservation: Reservation
    ) -> bytes | HttpResponse:
        """Return the whole body, or the response that refuses it. Content-Encoding is never decoded: a small body
        cannot expand to a large one."""
        if headers.get(b"content-encoding", b"identity") != b"identity":
            return responses.ENCODED
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 19):
            return responses.UNREADABLE_LENGTH
        if length is not None and int(length) > endpoint.body_max:
            return responses.too_large(endpoint.body_max)
        event = await receive()
        if event["type"] == "http.request" and not event.get("more_body", False):  # nearly always
            body: bytes = event.get("body", b"")
            return body if len(body) <= endpoint.body_max else responses.too_large(endpoint.body_max)
        try:
            async with asyncio.timeout(self._read_timeout_s) as timeout:
                reservation.start_reading(timeout)
                return await _read_rest(event, receive, endpoint.body_max, reservation)
        except TimeoutError:
            return self._overloaded(endpoint) if reservation.evicted else responses.TOO_SLOW
        finally:
            reservation.finish_reading()


def _forwarding(endpoints: Sequence[ServedEndpoint], planner: Planner | None) -> Mapping[str, BrokerForwarding]:
    """By path. Endpoints that forward to one broker share its breaker and its lanes."""
    publishers = {
        id(endpoint.publisher): endpoint.publisher for endpoint in endpoints if endpoint.publisher is not None
    }
    if publishers and planner is None:
        raise ConfigError("an endpoint that forwards to a broker needs a planner: Ingest(…, planner=app.planner)")
    shared = {key: BrokerForwarding(publisher) for key, publisher in publishers.items()}
    return {endpoint.path: shared[id(endpoint.publisher)] for endpoint in endpoints if endpoint.publisher is not None}


def _message_ids(endpoints: Sequence[ServedEndpoint]) -> Mapping[str, Callable[[Mapping[bytes, bytes]], str]]:
    """By path, for endpoints whose verifier proves a message id."""
    readers: dict[str, Callable[[Mapping[bytes, bytes]], str]] = {}
    for endpoint in endpoints:
        verifier: object = endpoint.verifier
        if endpoint.callback_provider is None and isinstance(verifier, MessageIdVerifier):
            readers[endpoint.path] = verifier.message_id
    return readers


def _callbacks(endpoints: Sequence[ServedEndpoint], outbox: StoredOutbox | None) -> ProviderCallbacks | None:
    if not any(endpoint.callback_provider is not None for endpoint in endpoints):
        return None
    if outbox is None:
        raise ConfigError("an endpoint for provider callbacks needs an outbox: Ingest(…, outbox=ledger.outbox)")
    return ProviderCallbacks(outbox)


async def _read_rest(
    event: MutableMapping[str, Any], receive: Receive, body_max: int, reservation: Reservation
) -> bytes | HttpResponse:
    body = bytearray()
    while True:
        if event["type"] == "http.disconnect":
            return responses.DISCONNECTED
        piece: bytes = event.get("body", b"")
        body += piece
        if len(body) > body_max:
            return responses.too_large(body_max)
        reservation.grow(len(piece))
        if not event.get("more_body", False):
            return bytes(body)
        event = await receive()


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Headers by name. The values of a repeated header are joined, as HTTP defines it, so that no value can be chosen
    over another."""
    headers = dict(pairs)
    if len(headers) < len(pairs):
        headers = {}
        for name, value in pairs:
            headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _is_structured(headers: Mapping[bytes, bytes]) -> bool:
    """Whether this is a CloudEvent in structured mode: the body holds all attributes, and `ce-` headers are ignored."""
    return is_structured(headers.get(b"content-type", b"").decode("latin-1"))


def _texts(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


async def reply(response: HttpResponse, send: Send) -> None:
    """Send a response, unless the sender has disconnected."""
    if response is responses.DISCONNECTED:
        return
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})
