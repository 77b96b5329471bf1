"""What the flow reports becomes numbers and spans; and whatever happens to them, the flow goes on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.trace import NoOpTracerProvider, StatusCode
from tests.service.telemetry.page import value
from tests.service.telemetry.spans import Spans, ids, parent_of, remembered

from semel import Reject, Retry, Semel
from semel.ports import Telemetry
from semel.service.metrics import Metrics
from semel.service.telemetry import ServiceTelemetry
from semel.service.tracing import NOTHING, Tracing, headers
from semel.values.claim import Claim, Granted, Lease
from semel.values.outcome import Outcome


@pytest.fixture
def metrics() -> Iterator[Metrics]:
    metrics = Metrics()
    yield metrics
    metrics.close()


@pytest.fixture
def telemetry(metrics: Metrics) -> ServiceTelemetry:
    return ServiceTelemetry(metrics, Tracing(NoOpTracerProvider()))


@pytest.fixture
def spans() -> Iterator[Spans]:
    with remembered() as spans:
        yield spans


def granted(attempt: int = 1, takeover: bool = False, age_ms: int = 0) -> Granted:
    return Granted(Lease(Claim(b"\x01" * 16, "greet", "the text", 1, 1), 7), attempt, takeover, age_ms)


def message(id: str, **data: Any) -> dict[str, Any]:
    return {"id": id, "type": "interaction.created", "createdTime": 1678886400000, "data": data}


def test_it_is_what_the_engine_asks_for(telemetry: ServiceTelemetry) -> None:
    asked_for: Telemetry = telemetry
    assert asked_for.span("claim") is asked_for.span("settle") is NOTHING, "one context for all: nothing is made"


def test_a_handler_is_timed_also_without_spans_and_also_when_it_fails(
    telemetry: ServiceTelemetry, metrics: Metrics
) -> None:
    with telemetry.span("handle", "greet"):
        pass
    with pytest.raises(ValueError, match="passes through"):
        with telemetry.span("handle", "greet"):
            raise ValueError("passes through")
    assert value(metrics, "semel_handler_seconds_count", handler="greet") == 2


def test_the_first_grant_has_no_age_and_every_later_one_has(telemetry: ServiceTelemetry, metrics: Metrics) -> None:
    telemetry.granted(granted())
    assert value(metrics, "semel_lease_age_seconds_count", handler="greet") is None, "nothing to tell of this handler"
    telemetry.granted(granted(attempt=2, age_ms=4_000))
    telemetry.granted(granted(attempt=2, age_ms=40_000, takeover=True))
    telemetry.granted(granted(attempt=1, age_ms=1_000, takeover=True))  # a release took the attempt back
    assert value(metrics, "semel_lease_age_seconds_count", handler="greet") == 3
    assert value(metrics, "semel_lease_age_seconds_sum", handler="greet") == 45
    assert value(metrics, "semel_takeovers_total", handler="greet") == 2


def test_refusals_answers_and_round_trips_are_counted(telemetry: ServiceTelemetry, metrics: Metrics) -> None:
    telemetry.refused("greet")
    telemetry.answered(Outcome("done", handler="greet"))
    telemetry.answered(Outcome("malformed"))
    telemetry.asked("claim", 0.002, False)
    telemetry.asked("claim", 0.2, True)
    telemetry.failed_open("greet")
    assert value(metrics, "semel_fence_refusals_total", handler="greet") == 1
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="done") == 1
    assert value(metrics, "semel_deliveries_total", handler="", outcome="malformed") == 1
    assert value(metrics, "semel_ledger_seconds_count", what="claim") == 2
    assert value(metrics, "semel_ledger_failures_total", what="claim") == 1
    assert value(metrics, "semel_fail_open_runs_total", handler="greet") == 1


def test_a_delivery_is_in_flight_until_it_is_answered(telemetry: ServiceTelemetry, metrics: Metrics) -> None:
    with telemetry.receiving("/events", {}):
        with telemetry.receiving("/events", {}):
            assert value(metrics, "semel_in_flight") == 2
            telemetry.responded("/events", 503)
            telemetry.overloaded("/events")
        telemetry.responded("/events", 200)
    with pytest.raises(asyncio.CancelledError):
        with telemetry.receiving("/events", {}):
            raise asyncio.CancelledError
    assert value(metrics, "semel_in_flight") == 0
    assert value(metrics, "semel_http_seconds_count", endpoint="/events") == 3
    assert value(metrics, "semel_http_answers_total", endpoint="/events", status="503") == 1
    assert value(metrics, "semel_http_answers_total", endpoint="/events", status="200") == 1
    assert value(metrics, "semel_overload_refusals_total", endpoint="/events") == 1


def test_an_unknown_outcome_is_counted_as_other(telemetry: ServiceTelemetry, metrics: Metrics) -> None:
    telemetry.answered(Outcome("invented", handler="greet"))  # type: ignore[arg-type]
    assert value(metrics, "semel_deliveries_total", handler="greet", outcome="(other)") == 1


def test_nothing_that_goes_wrong_here_reaches_the_flow(caplog: pytest.LogCaptureFixture) -> None:
    metrics = Metrics()
    telemetry = ServiceTelemetry(metrics, Tracing(NoOpTracerProvider()))
    metrics.close()  # from now on every increment fails
    with pytest.raises(ValueError, match="released"):
        metrics.in_flight.up()
    with caplog.at_level(logging.ERROR, "semel"):
        telemetry.granted(granted(attempt=2))
        telemetry.refused("greet")
        telemetry.answered(Outcome("done", handler="greet"))
        telemetry.asked("claim", 0.1, True)
        telemetry.asked("something new", 0.1, False)
        telemetry.responded("/events", 200)
        telemetry.overloaded("/events")
        telemetry.failed_open("greet")
        for context in (
            telemetry.span("claim"),
            telemetry.span("handle", "greet"),
            telemetry.receiving("/events", {}),
        ):
            with context:
                pass
    assert len(caplog.records) == 1, "it is said, and said once"


# ------------------------------------------------------------------------------------- through the whole flow


def test_every_outcome_of_the_flow_is_counted(telemetry: ServiceTelemetry, metrics: Metrics) -> None:
    async def deliver() -> list[str]:
        app = Semel("memory://", telemetry=telemetry, random=lambda: 0.0)

        @app.on("interaction.created")
        async def greet(event: Any, ctx: Any) -> None:
            match event.body:
                case {"wants": "retry"}:
                    raise Retry(60)
                case {"wants": "reject"}:
                    raise Reject("never")

        async with app:
            bodies = [
                message("1"),
                message("1"),
                message("1", other=1),
                message("2", wants="retry"),
                message("2", wants="retry"),
            ]
            bodies += [message("3", wants="reject"), {"id": "4", "type": "nobody.wants", "createdTime": 1, "data": {}}]
            outcomes = [await app.process(body) for body in bodies]
            outcomes += await app.process_many([b"{"])
            return [outcome.status for outcome in outcomes]

    statuses = asyncio.run(deliver())
    assert statuses == ["done", "duplicate", "conflict", "retry", "busy", "dead", "ignored", "malformed"]
    for status in statuses:
        handler = "" if status in ("ignored", "malformed") else "greet"
        assert value(metrics, "semel_deliveries_total", handler=handler, outcome=status) == 1
    assert value(metrics, "semel_handler_seconds_count", handler="greet") == 3
    assert value(metrics, "semel_duplicates_total", handler="greet") == 1
    assert value(metrics, "semel_conflicts_total", handler="greet") == 1


def test_receive_claim_handle_and_settle_are_one_trace(metrics: Metrics, spans: Spans) -> None:
    telemetry = ServiceTelemetry(metrics, spans.tracing)
    trace = "0af7651916cd43dd8448eb211c80319c"
    forwarded: list[dict[str, str]] = []

    async def deliver() -> Outcome:
        app = Semel("memory://", telemetry=telemetry)

        @app.on("interaction.created")
        async def greet(event: Any, ctx: Any) -> None:
            forwarded.append(headers())

        async with app:
            with telemetry.receiving("/events", {b"traceparent": f"00-{trace}-b7ad6b7169203331-01".encode()}):
                outcome = await app.process(message("1", card="4111 1111 1111 1111"))
                telemetry.responded("/events", 200)
                return outcome

    outcome = asyncio.run(deliver())
    ended = spans.ended()
    receive = ended["semel.receive"]
    assert set(ended) == {"semel.receive", "semel.claim", "semel.handle", "semel.settle"}
    assert receive.parent is not None
    assert f"{receive.parent.trace_id:032x}" == trace
    for step in ("semel.claim", "semel.handle", "semel.settle"):
        assert parent_of(ended[step]) == ids(receive)
        assert ended[step].status.status_code == StatusCode.UNSET
    starts = [ended[name].start_time or 0 for name in ("semel.receive", "semel.claim", "semel.handle", "semel.settle")]
    assert starts == sorted(starts)
    assert forwarded == [{"traceparent": f"00-{trace}-{ids(ended['semel.handle'])[1]:016x}-01"}]
    assert receive.attributes == {
        "semel.endpoint": "/events",
        "semel.handler": "greet",
        "semel.outcome": "done",
        "semel.key": outcome.key,
        "semel.attempt": 1,
        "semel.status": 200,
    }
    assert [event.name for event in receive.events] == ["semel.granted", "semel.answered"]
    assert "4111 1111" not in "".join(span.to_json() for span in ended.values())
