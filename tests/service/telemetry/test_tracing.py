"""Spans: the trace of a delivery goes through us, into the inbox and out again, and on to where it is forwarded."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.trace import (
    NonRecordingSpan,
    NoOpTracerProvider,
    SpanKind,
    StatusCode,
    TraceFlags,
    get_current_span,
    use_span,
)
from tests.service.telemetry.spans import Spans, ids, parent_of, remembered

from semel.service import tracing
from semel.service.tracing import NOTHING, Tracing

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"
REMOTE = {b"traceparent": PARENT.encode(), b"tracestate": b"vendor=1"}


@pytest.fixture
def spans() -> Iterator[Spans]:
    with remembered() as spans:
        yield spans


def test_the_steps_of_a_delivery_lie_inside_its_receive(spans: Spans) -> None:
    with spans.tracing.receive({}, "/events"):
        for step in ("claim", "handle", "settle"):
            with spans.tracing.step(step, "greet" if step == "handle" else ""):
                pass
    ended = spans.ended()
    receive = ended["semel.receive"]
    assert (receive.kind, receive.parent) == (SpanKind.SERVER, None)
    assert receive.attributes == {"semel.endpoint": "/events"}
    for step in ("semel.claim", "semel.handle", "semel.settle"):
        assert parent_of(ended[step]) == ids(receive)
    assert ended["semel.handle"].attributes == {"semel.handler": "greet"}
    assert tracing.traceparent() == "", "nothing is current afterwards"


def test_a_delivery_belongs_to_the_trace_of_its_sender(spans: Spans) -> None:
    with spans.tracing.receive(REMOTE):
        forwarded = tracing.headers()
    receive = spans.ended()["semel.receive"]
    assert parent_of(receive) == (int(TRACE, 16), 0xB7AD6B7169203331)
    assert receive.parent is not None
    assert receive.parent.is_remote
    assert forwarded == {
        "traceparent": f"00-{TRACE}-{ids(receive)[1]:016x}-01",
        "tracestate": "vendor=1",
    }


def test_an_inbox_item_is_handled_in_the_trace_of_its_delivery(spans: Spans) -> None:
    with spans.tracing.receive(REMOTE):
        kept = tracing.traceparent()
    with spans.tracing.resume(kept):
        with spans.tracing.step("handle", "greet"):
            pass
    ended = spans.ended()
    resumed = ended["semel.handle-from-inbox"]
    assert resumed.kind == SpanKind.CONSUMER
    assert parent_of(resumed) == ids(ended["semel.receive"])
    assert parent_of(ended["semel.handle"]) == ids(resumed)


def test_an_inbox_item_without_a_trace_starts_one(spans: Spans) -> None:
    with spans.tracing.resume(""):
        pass
    assert spans.ended()["semel.handle-from-inbox"].parent is None


def test_inside_a_web_framework_receive_is_a_child_of_its_span(spans: Spans) -> None:
    outer = spans.tracing.start_span("POST /hooks", SpanKind.SERVER, Context(), {})
    with use_span(outer, end_on_exit=True):
        with spans.tracing.receive(REMOTE):
            pass
    ended = spans.ended()
    assert parent_of(ended["semel.receive"]) == ids(ended["POST /hooks"])
    assert ended["semel.receive"].kind == SpanKind.INTERNAL


def test_deliveries_at_the_same_time_do_not_mix_their_traces(spans: Spans) -> None:
    async def deliver(number: int) -> tuple[str, str]:
        trace = f"{number + 1:032x}"
        with spans.tracing.receive({b"traceparent": f"00-{trace}-b7ad6b7169203331-01".encode()}):
            await asyncio.sleep(0)
            with spans.tracing.step("handle", "greet"):
                await asyncio.sleep(0.001)
                return trace, tracing.headers()["traceparent"].split("-")[1]

    async def all_of_them() -> list[tuple[str, str]]:
        return await asyncio.gather(*map(deliver, range(50)))

    assert all(sent == forwarded for sent, forwarded in asyncio.run(all_of_them()))


def test_an_error_is_raised_and_its_text_is_not_recorded(spans: Spans) -> None:
    with pytest.raises(ValueError, match="4111 1111"):
        with spans.tracing.step("handle", "greet"):
            raise ValueError("card 4111 1111 1111 1111")
    span = spans.ended()["semel.handle"]
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, "ValueError")
    assert "4111" not in span.to_json()


def test_a_cancelled_step_is_no_error(spans: Spans) -> None:
    with pytest.raises(asyncio.CancelledError):
        with spans.tracing.step("handle", "greet"):
            raise asyncio.CancelledError
    assert spans.ended()["semel.handle"].status.status_code == StatusCode.UNSET


def test_notes_are_about_the_current_span(spans: Spans) -> None:
    tracing.set_attributes(outcome="nobody listens")
    with spans.tracing.receive({}):
        tracing.set_attributes(outcome="done", attempt=2)
        tracing.add_event("granted", handler="greet")
    receive = spans.ended()["semel.receive"]
    assert receive.attributes == {"semel.outcome": "done", "semel.attempt": 2}
    assert [(event.name, event.attributes) for event in receive.events] == [
        ("semel.granted", {"semel.handler": "greet"})
    ]


def test_a_provider_that_fails_stops_no_delivery(spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[str] = []

    def fail(*_: object, **__: object) -> None:
        failures.append("failed")
        raise RuntimeError("the exporter is broken")

    monkeypatch.setattr(spans.tracing, "start_span", fail)
    with spans.tracing.receive(REMOTE):
        with spans.tracing.step("handle", "greet"):
            pass
    assert failures == ["failed"] * 2


# -------------------------------------------------------------------------------------------------- no provider


def test_without_a_provider_and_without_a_trace_there_is_nothing_to_do() -> None:
    off = Tracing(NoOpTracerProvider())
    assert not off.enabled
    assert off.receive({b"host": b"localhost"}) is off.step("claim") is off.resume("") is NOTHING
    with NOTHING:
        assert (tracing.headers(), tracing.traceparent(), tracing.ids()) == ({}, "", None)


def test_without_a_provider_a_trace_is_passed_on_as_it_came() -> None:
    off = Tracing(NoOpTracerProvider())
    with off.receive(REMOTE):
        assert tracing.headers() == {"traceparent": PARENT, "tracestate": "vendor=1"}
        kept = tracing.traceparent()
    assert tracing.headers() == {}
    with off.resume(kept):
        assert tracing.headers() == {"traceparent": PARENT}


# --------------------------------------------------------------------------------------------------- malformed


@pytest.mark.parametrize(
    "malformed",
    [
        b"",
        b"hello",
        b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331",
        b"00-00000000000000000000000000000000-b7ad6b7169203331-01",
        b"00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        b"ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        b"00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
        PARENT.encode() + b"-more",
        PARENT.encode() + b"\r\nx-forged: 1",
        PARENT.encode() * 1_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_malformed_traceparent_is_ignored(spans: Spans, malformed: bytes) -> None:
    with spans.tracing.receive({b"traceparent": malformed}):
        pass
    with spans.tracing.resume(malformed.decode("latin-1")):
        pass
    assert [span.parent for span in spans.ended().values()] == [None, None]


def test_a_header_that_is_too_long_is_left_out_without_a_word(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    """A word for each of them would be a gift to whoever sends them."""
    with spans.tracing.receive({**REMOTE, b"tracestate": b"vendor=" + b"x" * 600}):
        assert set(tracing.headers()) == {"traceparent"}
    with spans.tracing.receive({**REMOTE, b"traceparent": PARENT.encode() * 20}):
        assert TRACE not in tracing.traceparent()
    assert caplog.text == ""


@given(parent=st.binary(max_size=80), state=st.binary(max_size=600), dead_letter=st.text(max_size=80))
def test_nothing_that_a_sender_can_send_raises(parent: bytes, state: bytes, dead_letter: str) -> None:
    off = Tracing(NoOpTracerProvider())
    with off.receive({b"traceparent": parent, b"tracestate": state}), off.resume(dead_letter):
        assert all(text.isprintable() and text.isascii() for text in tracing.headers().values())
    with off.receive({b"traceparent": PARENT.encode(), b"tracestate": state}):
        assert tracing.headers()["traceparent"] == PARENT
        assert all(text.isprintable() and text.isascii() for text in tracing.headers().values())


def test_the_parent_is_not_sampled_when_its_sender_did_not_sample_it(spans: Spans) -> None:
    with spans.tracing.receive({b"traceparent": PARENT.encode()[:-2] + b"00"}):
        assert tracing.headers()["traceparent"].endswith("-00")
    assert spans.ended() == {}


# ------------------------------------------------------------------------------------------------ configuration

CONFIGURED = """
import sys
if "without-sdk" in sys.argv:
    sys.modules["opentelemetry.sdk"] = None
import logging
logging.basicConfig(format="%(levelname)s %(message)s", stream=sys.stderr)
from opentelemetry import trace
from semel.service import tracing
if "own" in sys.argv:
    from opentelemetry.sdk.trace import TracerProvider
    trace.set_tracer_provider(own := TracerProvider())
tracing.configure_from_environment()
if "own" in sys.argv:
    assert trace.get_tracer_provider() is own
spans = tracing.Tracing()
with spans.receive({}, "/events"):
    pass
tracing.finish()
print(spans.enabled)
"""


def configured(*arguments: str, **environment: str) -> tuple[str, str]:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CONFIGURED, *arguments],
        env=bare | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout, done.stderr


def test_without_the_variables_nothing_is_set_up() -> None:
    assert configured() == ("False\n", "")


def test_the_console_exporter_writes_spans_with_the_service_name() -> None:
    out, err = configured(OTEL_TRACES_EXPORTER="console")
    assert '"name": "semel.receive"' in out
    assert '"service.name": "semel"' in out
    assert (out.splitlines()[-1], err) == ("True", "")


def test_the_name_of_the_service_is_the_one_of_the_environment() -> None:
    out, _ = configured(OTEL_TRACES_EXPORTER="console", OTEL_SERVICE_NAME="webhooks-eu")
    assert '"service.name": "webhooks-eu"' in out


def test_an_otlp_endpoint_without_the_sdk_is_logged_once() -> None:
    out, err = configured("without-sdk", OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert out == "False\n"
    (line,) = err.splitlines()
    assert line.startswith("WARNING tracing_disabled exporter=otlp missing=opentelemetry.sdk")
    assert 'install="opentelemetry-sdk' in line


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_the_switches_of_opentelemetry_disable_tracing(off: dict[str, str]) -> None:
    assert configured(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1", **off) == ("False\n", "")


def test_a_provider_that_someone_has_set_stays() -> None:
    out, err = configured("own", OTEL_TRACES_EXPORTER="console")
    assert (out, err) == ("True\n", "")


def test_a_span_that_records_nothing_is_still_a_parent() -> None:
    """What the API gives without an SDK; the reason why a trace passes through."""
    with Tracing(NoOpTracerProvider()).receive(REMOTE):
        span = get_current_span()
    assert isinstance(span, NonRecordingSpan)
    assert span.get_span_context().trace_flags == TraceFlags.SAMPLED
