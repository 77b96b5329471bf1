"""Spans from receive to settle, and W3C trace context from a delivery to its effects.

    semel.receive ─┬─ semel.claim
                   ├─ semel.handle → the forward carries `headers()`
                   └─ semel.settle
    semel.receive … (stored in the inbox as `traceparent()`) … semel.handle-from-inbox ─ the same three

Only opentelemetry-api is needed. Without a provider no span is recorded, and a delivery without trace context costs
almost nothing; the trace context of a delivery is still propagated. Span attributes are handler, outcome, key (a
digest), attempt, endpoint and status; never a body, a header, or the text of an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from types import TracebackType
from typing import cast

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semel import __version__
from semel.values.log import log

TRACESTATE_MAX = 512  # characters; W3C requires no more
TRACEPARENT_MAX = 64  # 55, and some more for later versions

NOTHING: AbstractContextManager[None] = nullcontext()  # one for all: it has no state

_w3c = TraceContextTextMapPropagator()


class Tracing:
    """Starts spans. Create it after the provider is set: the provider is read once."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """`provider` is the provider of the process by default."""
        provider = provider or trace.get_tracer_provider()
        self.enabled = not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        self._tracer = provider.get_tracer("semel", __version__)

    def receive(self, headers: Mapping[bytes, bytes], endpoint: str = "") -> AbstractContextManager[None]:
        """The span of a delivery, from its headers to its response. Header names are in lower case.

        Inside the span of a web framework it is a child of that span, which has read the headers already."""
        has_trace = b"traceparent" in headers
        if not self.enabled and not has_trace:
            return NOTHING
        outer = trace.get_current_span().get_span_context().is_valid
        parent = _remote(headers.get(b"traceparent", b""), headers.get(b"tracestate", b"")) if has_trace else Context()
        return _Span(
            self,
            "semel.receive",
            SpanKind.INTERNAL if outer else SpanKind.SERVER,
            get_current() if outer else parent,
            {"semel.endpoint": endpoint} if endpoint else {},
        )

    def resume(self, traceparent: str) -> AbstractContextManager[None]:
        """The span of an inbox item, in the trace in which its delivery was accepted."""
        if not self.enabled and not traceparent:
            return NOTHING
        parent = _remote(traceparent.encode("ascii", "replace"), b"")
        return _Span(self, "semel.handle-from-inbox", SpanKind.CONSUMER, parent, {})

    def step(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        """The span of a step of the flow: "claim", "handle" or "settle"."""
        if not self.enabled:
            return NOTHING
        attributes = {"semel.handler": handler} if handler else {}
        return _Span(self, f"semel.{step}", SpanKind.INTERNAL, get_current(), attributes)

    def start_span(self, name: str, kind: SpanKind, parent: Context, attributes: dict[str, str]) -> trace.Span:
        return self._tracer.start_span(name, parent, kind, attributes)


class _Span:
    """A span around a block. Errors of tracing are suppressed; an error of the block is raised."""

    __slots__ = ("_attributes", "_kind", "_name", "_parent", "_span", "_token", "_tracing")

    def __init__(
        self, tracing: Tracing, name: str, kind: SpanKind, parent: Context, attributes: dict[str, str]
    ) -> None:
        self._tracing, self._name, self._kind = tracing, name, kind
        self._parent, self._attributes = parent, attributes
        self._span: trace.Span | None = None

    def __enter__(self) -> None:
        with suppress(Exception):
            span = self._tracing.start_span(self._name, self._kind, self._parent, self._attributes)
            self._token = attach(trace.set_span_in_context(span, self._parent))
            self._span = span

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> None:
        if self._span is None:
            return
        with suppress(Exception):
            detach(self._token)
            if isinstance(error, Exception):  # not a cancellation
                self._span.set_status(Status(StatusCode.ERROR, type(error).__name__))
            self._span.end()


def set_attributes(**attributes: str | int | bool) -> None:
    """Set attributes of the current span: handler, outcome, key, attempt, status."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes({f"semel.{name}": value for name, value in attributes.items()})


def add_event(name: str, **attributes: str | int | bool) -> None:
    """Add an event to the current span, which may be about several deliveries and handlers."""
    span = trace.get_current_span()
    if span.is_recording():
        span.add_event(f"semel.{name}", {f"semel.{name}": value for name, value in attributes.items()})


def traceparent() -> str:
    """The traceparent of the current span, to store with an inbox item. Empty if there is no span."""
    return headers().get("traceparent", "")


def headers() -> dict[str, str]:
    """Headers that propagate the current span. No baggage: it may contain customer data."""
    if not trace.get_current_span().get_span_context().is_valid:
        return {}
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier


def ids() -> tuple[str, str] | None:
    """The ids of the current trace and span, in hex."""
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return None
    return trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)


class _Pair(Getter[tuple[str, str]]):
    """Lets the propagator read traceparent and tracestate from a pair."""

    def get(self, carrier: tuple[str, str], key: str) -> list[str] | None:
        value = carrier[0] if key == "traceparent" else carrier[1] if key == "tracestate" else ""
        return [value] if value else None

    def keys(self, carrier: tuple[str, str]) -> list[str]:
        return ["traceparent", "tracestate"]


_pair = _Pair()


def _remote(parent: bytes, state: bytes) -> Context:
    """The trace context of the sender. Malformed parts are ignored, as W3C requires."""
    if not parent or len(parent) > TRACEPARENT_MAX:
        return Context()
    if len(state) > TRACESTATE_MAX:
        state = b""
    with suppress(Exception):  # the input is not trusted
        return _w3c.extract((parent.decode("latin-1"), state.decode("latin-1")), Context(), _pair)
    return Context()


def configure_from_environment() -> None:
    """Export spans if the usual variables of OpenTelemetry are set, unless the process has a provider already.

    OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT) exports by OTLP, OTEL_TRACES_EXPORTER=console writes to standard
    output. This needs opentelemetry-sdk, and for OTLP opentelemetry-exporter-otlp-proto-http (or -grpc)."""
    kind = _exporter_kind(os.environ)
    if not kind or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        trace.set_tracer_provider(_provider(kind))
    except ImportError as error:
        packages = "opentelemetry-sdk" + (" opentelemetry-exporter-otlp-proto-http" if kind == "otlp" else "")
        log.warning("tracing_disabled", exporter=kind, missing=error.name, install=packages)
    except Exception as error:  # a service without spans is better than none
        log.warning("tracing_disabled", exporter=kind, reason_class=type(error).__name__)


def finish() -> None:
    """Export the remaining spans, for processes that exit without running their exit handlers."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        with suppress(Exception):
            shutdown()


def _exporter_kind(environment: Mapping[str, str]) -> str:
    """ "otlp", "console", or "" for none."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return ""
    if exporter in ("console", "otlp"):
        return exporter
    return "otlp" if any(environment.get(name) for name in endpoints) else ""


def _provider(kind: str) -> TracerProvider:
    sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
    resources = import_module("opentelemetry.sdk.resources")
    environment = os.environ
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {"service.version": __version__} | ({} if named else {"service.name": "semel"})
    provider = sdk.TracerProvider(resource=resources.Resource.create(attributes))
    if kind == "console":
        exporter = export.ConsoleSpanExporter()
    else:
        protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        module = f"opentelemetry.exporter.otlp.proto.{'grpc' if protocol == 'grpc' else 'http'}.trace_exporter"
        exporter = import_module(module).OTLPSpanExporter()
    provider.add_span_processor(export.BatchSpanProcessor(exporter))
    return cast(TracerProvider, provider)
