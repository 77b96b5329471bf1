"""Spans from receive to settle, and the W3C trace context that comes with a delivery and goes on with its effects.

    semel.receive ─┬─ semel.claim
                   ├─ semel.handle → the forward carries `headers()`
                   └─ semel.settle
    semel.receive … (stored in the inbox as `traceparent()`) … semel.handle-from-inbox ─ the same three

Only opentelemetry-api is needed. Without a provider nothing is recorded, and a delivery that carries no trace costs
next to nothing; the trace of one that does is still passed on. Spans say handler, outcome, key (a digest), attempt,
endpoint and status; never a body, a header, or the text of an error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from types import TracebackType
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from semel import __version__
from semel.values.log import log

TRACESTATE_MAX = 512  # characters; W3C asks for no more, and the rest would only be a burden to whoever comes next
TRACEPARENT_MAX = 64  # 55, and a little for versions to come

NOTHING: AbstractContextManager[None] = nullcontext()  # one for all: it has no state

_w3c = TraceContextTextMapPropagator()


class Tracing:
    """Begins spans. Made when the service starts, after whoever sets a provider: that is looked at once."""

    def __init__(self, provider: TracerProvider | None = None) -> None:
        """By default the provider of the process."""
        provider = provider or trace.get_tracer_provider()
        self.enabled = not isinstance(provider, (trace.ProxyTracerProvider, trace.NoOpTracerProvider))
        self._tracer = provider.get_tracer("semel", __version__)

    def receive(self, headers: Mapping[bytes, bytes], endpoint: str = "") -> AbstractContextManager[None]:
        """Around a delivery, from its headers to its answer. Names of headers are in lower case.

        Inside the span of a web framework it is a child of that one, which knows the headers already."""
        carries = b"traceparent" in headers
        if not self.enabled and not carries:
            return NOTHING
        outer = trace.get_current_span().get_span_context().is_valid
        parent = _remote(headers.get(b"traceparent", b""), headers.get(b"tracestate", b"")) if carries else Context()
        return _Span(
            self,
            "semel.receive",
            SpanKind.INTERNAL if outer else SpanKind.SERVER,
            get_current() if outer else parent,
            {"semel.endpoint": endpoint} if endpoint else {},
        )

    def resume(self, traceparent: str) -> AbstractContextManager[None]:
        """Around the handling of a letter: in the trace in which its delivery was accepted."""
        if not self.enabled and not traceparent:
            return NOTHING
        parent = _remote(traceparent.encode("ascii", "replace"), b"")
        return _Span(self, "semel.handle-from-inbox", SpanKind.CONSUMER, parent, {})

    def step(self, step: str, handler: str = "") -> AbstractContextManager[None]:
        """Around a step of the flow: "claim", "handle", "settle"."""
        if not self.enabled:
            return NOTHING
        attributes = {"semel.handler": handler} if handler else {}
        return _Span(self, f"semel.{step}", SpanKind.INTERNAL, get_current(), attributes)

    def begin(self, name: str, kind: SpanKind, parent: Context, attributes: dict[str, str]) -> trace.Span:
        return self._tracer.start_span(name, parent, kind, attributes)


class _Span:
    """A span for the length of a block. What goes wrong with tracing stays here; an error of the block passes."""

    __slots__ = ("_attributes", "_kind", "_name", "_parent", "_span", "_token", "_tracing")

    def __init__(
        self, tracing: Tracing, name: str, kind: SpanKind, parent: Context, attributes: dict[str, str]
    ) -> None:
        self._tracing, self._name, self._kind = tracing, name, kind
        self._parent, self._attributes = parent, attributes
        self._span: trace.Span | None = None

    def __enter__(self) -> None:
        with suppress(Exception):
            span = self._tracing.begin(self._name, self._kind, self._parent, self._attributes)
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


def note(**attributes: str | int | bool) -> None:
    """Say something about the current span: handler, outcome, key, attempt, status."""
    span = trace.get_current_span()
    if span.is_recording():
        span.set_attributes({f"semel.{name}": value for name, value in attributes.items()})


def happened(name: str, **attributes: str | int | bool) -> None:
    """Say that something happened within the current span, which may be about several events and handlers."""
    span = trace.get_current_span()
    if span.is_recording():
        span.add_event(f"semel.{name}", {f"semel.{name}": value for name, value in attributes.items()})


def traceparent() -> str:
    """Of the current span, to be kept with what is handled later. Empty when there is none."""
    return headers().get("traceparent", "")


def headers() -> dict[str, str]:
    """What a request carries so that it belongs to the current span. No baggage: it could be about customers."""
    if not trace.get_current_span().get_span_context().is_valid:
        return {}
    carrier: dict[str, str] = {}
    _w3c.inject(carrier)
    return carrier


def ids() -> tuple[str, str] | None:
    """The trace and the span that are current, in hex."""
    context = trace.get_current_span().get_span_context()
    return (
        (trace.format_trace_id(context.trace_id), trace.format_span_id(context.span_id)) if context.is_valid else None
    )


# --------------------------------------------------------------------------------------------------- trace context


class _Pair(Getter[tuple[str, str]]):
    """How the propagator reads our two headers."""

    def get(self, carrier: tuple[str, str], key: str) -> list[str] | None:
        found = carrier[0] if key == "traceparent" else carrier[1] if key == "tracestate" else ""
        return [found] if found else None

    def keys(self, carrier: tuple[str, str]) -> list[str]:
        return ["traceparent", "tracestate"]


_pair = _Pair()


def _remote(parent: bytes, state: bytes) -> Context:
    """Where the sender's trace stands. What is malformed is left out, as W3C asks."""
    if not parent or len(parent) > TRACEPARENT_MAX:
        return Context()
    if len(state) > TRACESTATE_MAX:
        state = b""
    with suppress(Exception):  # it reads what anybody can send
        return _w3c.extract((parent.decode("latin-1"), state.decode("latin-1")), Context(), _pair)
    return Context()


# -------------------------------------------------------------------------------------------------- configuration


def configure_from_environment() -> None:
    """Export spans where the usual variables of OpenTelemetry ask for it, unless someone has set a provider already.

    OTEL_EXPORTER_OTLP_ENDPOINT (or …_TRACES_ENDPOINT) exports by OTLP, OTEL_TRACES_EXPORTER=console writes to standard
    output. It takes opentelemetry-sdk, and for OTLP opentelemetry-exporter-otlp-proto-http (or -grpc)."""
    wanted = _wanted(os.environ)
    if not wanted or not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    try:
        trace.set_tracer_provider(_provider(wanted))
    except ImportError as error:
        needed = "opentelemetry-sdk" + (" opentelemetry-exporter-otlp-proto-http" if wanted == "otlp" else "")
        log.warning("tracing_disabled", exporter=wanted, missing=error.name, install=needed)
    except Exception as error:  # a service without spans is better than none
        log.warning("tracing_disabled", exporter=wanted, reason_class=type(error).__name__)


def finish() -> None:
    """Export what is still waiting. For processes that end without running their exit handlers."""
    shutdown = getattr(trace.get_tracer_provider(), "shutdown", None)
    if shutdown is not None:
        with suppress(Exception):
            shutdown()


def _wanted(environment: Mapping[str, str]) -> str:
    """ "otlp", "console", or "" for nothing."""
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    endpoints = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true" or exporter == "none":
        return ""
    if exporter in ("console", "otlp"):
        return exporter
    return "otlp" if any(environment.get(name) for name in endpoints) else ""


def _provider(wanted: str) -> TracerProvider:
    sdk, export = import_module("opentelemetry.sdk.trace"), import_module("opentelemetry.sdk.trace.export")
    resources = import_module("opentelemetry.sdk.resources")
    made = sdk.TracerProvider(resource=resources.Resource.create(_resource(os.environ)))
    exporter = export.ConsoleSpanExporter() if wanted == "console" else _otlp(os.environ)
    made.add_span_processor(export.BatchSpanProcessor(exporter))
    provider: TracerProvider = made
    return provider


def _otlp(environment: Mapping[str, str]) -> Any:
    protocol = environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or environment.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    kind = "grpc" if protocol == "grpc" else "http"
    return import_module(f"opentelemetry.exporter.otlp.proto.{kind}.trace_exporter").OTLPSpanExporter()


def _resource(environment: Mapping[str, str]) -> dict[str, str]:
    named = environment.get("OTEL_SERVICE_NAME") or "service.name=" in environment.get("OTEL_RESOURCE_ATTRIBUTES", "")
    return {"service.version": __version__} | ({} if named else {"service.name": "semel"})
