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

from semel.app import IncomingMessage
from semel.core.routing import Planner
from semel.ports import MessageIdVerifier, StoredOutbox
from semel.service import responses
from semel.service.admission import Admission, BodyBudget, Reservation
from semel.service.broker_forwarding import BrokerForwarding, forwarded_event
from semel.service.delivery_handler import DeliveryHandler
from semel.service.endpoints import ServedEndpoint
from semel.service.incident_log import UnverifiedLog
from semel.service.provider_callbacks import ProviderCallbacks
from semel.service.responses import HttpResponse
from semel.values.cloudevents import is_structured
from semel.values.errors import ConfigError, LedgerUnavailable, MalformedEvent, VerifierUnavailable
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
        processor: DeliveryHandler,
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
            response = await self._respond(endpoint, scope, receive)
        else:
            with self._observer.receiving(endpoint.path, dict(scope["headers"])):
                response = await self._respond(endpoint, scope, receive)
                self._observer.responded(endpoint.path, response.status)
        await reply(response, send)

    async def _respond(self, endpoint: ServedEndpoint, scope: Scope, receive: Receive) -> HttpResponse:
        """Check the headers, read the body and wait for a slot, then answer. A sender that gets no slot soon is asked
        to retry: more concurrency would only make every sender wait."""
        if scope["method"] != "POST":
            return responses.NOT_POST
        headers: Mapping[bytes, bytes] = dict(scope["headers"])
        if len(headers) < len(scope["headers"]):
            headers = _joined(scope["headers"])
        unproven = (b"ce-id" in headers or b"ce-specversion" in headers) and not endpoint.proves_headers
        # In structured mode the body holds all attributes, and `ce-` headers are ignored.
        structured = unproven and is_structured(headers.get(b"content-type", b"").decode("latin-1"))
        if unproven and not structured and endpoint.callback_provider is None:
            return responses.UNPROVEN_HEADERS
        if headers.get(b"content-encoding", b"identity") != b"identity":  # never decoded: a small body stays small
            return responses.ENCODED
        length = headers.get(b"content-length")
        if length is not None and (not length.isdigit() or len(length) > 19):
            return responses.UNREADABLE_LENGTH
        if length is not None and int(length) > endpoint.body_max:
            return responses.too_large(endpoint.body_max)
        try:
            async with asyncio.timeout(self._read_timeout_s):
                first = await receive()
        except TimeoutError:
            return responses.TOO_SLOW
        if first["type"] == "http.request" and not first.get("more_body", False):  # nearly always: in one piece
            body: bytes = first.get("body", b"")
            if len(body) > endpoint.body_max:
                return responses.too_large(endpoint.body_max)
            admitted = await self._admission.acquire()
        else:
            with self._body_budget.reserve() as reservation:
                pieces = await self._read_pieces(endpoint, first, receive, reservation)
                if isinstance(pieces, HttpResponse):
                    return pieces
                body, admitted = pieces, await self._admission.acquire()
        if not admitted:
            return self._overloaded(endpoint)
        try:
            return await self._answer(endpoint, headers, body, scope.get("query_string", b""))
        finally:
            self._admission.release()

    async def _read_pieces(
        self, endpoint: ServedEndpoint, event: MutableMapping[str, Any], receive: Receive, reservation: Reservation
    ) -> bytes | HttpResponse:
        """Read a body that arrives in several pieces. Returns it, or the response that refuses it."""
        body, body_max = bytearray(), endpoint.body_max
        try:
            async with asyncio.timeout(self._read_timeout_s) as timeout:
                reservation.start_reading(timeout)
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
        except TimeoutError:
            return self._overloaded(endpoint) if reservation.evicted else responses.TOO_SLOW
        finally:
            reservation.finish_reading()

    def _overloaded(self, endpoint: ServedEndpoint) -> HttpResponse:
        if self._observer is not None:
            self._observer.overloaded(endpoint.path)
        return responses.overloaded(endpoint.overload_status)

    async def _answer(
        self, endpoint: ServedEndpoint, headers: Mapping[bytes, bytes], body: bytes, query: bytes
    ) -> HttpResponse:
        """Verify the delivery, then record a callback, forward the event, store it in the inbox, or process it."""
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
        options, attributes = endpoint.decode_options, None
        if (message_id_of := self._message_id_of.get(endpoint.path)) is not None:
            assert self._planner is not None  # every caller with event endpoints passes one
            # The proven id is stored with the event, so that a replay makes the same key.
            options = replace(options or self._planner.decode_options, message_id=message_id_of(headers))
        if (b"ce-id" in headers or b"ce-specversion" in headers) and endpoint.proves_headers:
            attributes = _texts(headers)  # CloudEvents in binary mode
        message = IncomingMessage(body, endpoint.tenant, options, attributes)
        if endpoint.publisher is not None:
            return await self._forward(endpoint, message)
        try:
            outcome = await (self._processor.accept if endpoint.mode == "inbox" else self._processor.process)(message)
        except LedgerUnavailable:  # logged by the ledger breaker
            fail_open_outcome = await self._processor.without_ledger(message)
            if fail_open_outcome is None:
                return responses.ledger_down(LEDGER_DOWN_S)
            outcome = fail_open_outcome
        return responses.response_for(outcome, endpoint.busy_status)

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

    async def _forward(self, endpoint: ServedEndpoint, message: IncomingMessage) -> HttpResponse:
        assert self._planner is not None
        forwarded = forwarded_event(self._planner, message, self._trace())
        if isinstance(forwarded, Outcome):
            return responses.response_for(forwarded, endpoint.busy_status)
        event, accepted = forwarded
        if reason := await self._forwarding[endpoint.path].forward(event):
            return responses.not_forwarded(reason, BROKER_DOWN_S)
        return responses.response_for(accepted, endpoint.busy_status)


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


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> Mapping[bytes, bytes]:
    """Headers with repeated names. Their values are joined, as HTTP defines it, so that no value can be chosen over
    another."""
    headers: dict[bytes, bytes] = {}
    for name, value in pairs:
        headers[name] = headers[name] + b", " + value if name in headers else value
    return headers


def _texts(headers: Mapping[bytes, bytes]) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()}


async def reply(response: HttpResponse, send: Send) -> None:
    """Send a response, unless the sender has disconnected."""
    if response is responses.DISCONNECTED:
        return
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})
