"""One log line for each finished delivery: a stable name, fields, and nothing that a customer said."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from semel import Context, Event, Reject, Retry, Semel
from semel.app import IncomingMessage, to_bytes
from semel.core.delivery_log import LINES_PER_S
from semel.core.inbox_flow import Acceptor
from semel.values.log import LogEvent

SECRET = "the customer's number is 4711"


def message(number: int = 1, **fields: Any) -> dict[str, Any]:
    return {"id": f"e-{number}", "type": "order.placed", "data": {"n": number}, **fields}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "semel")
    return caplog


def events(lines: pytest.LogCaptureFixture) -> list[LogEvent]:
    found: list[LogEvent] = []
    for record in lines.records:
        message: Any = record.msg
        if isinstance(message, LogEvent):
            found.append(message)
    return found


def deep() -> None:
    raise ValueError(SECRET)


async def story(*bodies: dict[str, Any]) -> None:
    async with Semel("memory://") as app:

        @app.on("order.placed", max_attempts=2)
        async def crm(event: Event, ctx: Context) -> object:
            match event.body["n"]:
                case 1:
                    return {"note": SECRET}
                case 2:
                    raise Retry(4.1, SECRET)
                case 3:
                    raise Reject(SECRET)
                case _:
                    deep()
            return None

        for body in bodies:
            await app.process(body)


def test_a_done_event_is_one_line_with_its_fields(lines: pytest.LogCaptureFixture) -> None:
    asyncio.run(story(message(1)))
    (event,) = events(lines)
    assert event.name == "event_done"
    assert lines.records[0].levelname == "INFO"
    duration_ms = event.fields.pop("duration_ms")
    assert 0 <= duration_ms < 60_000
    key = event.fields.pop("key")
    assert len(key) == 32
    assert event.fields == {"handler": "crm", "event_id": "e-1", "attempt": 1, "outcome": "done"}


def test_a_retry_has_its_delay_and_the_class_of_its_reason(lines: pytest.LogCaptureFixture) -> None:
    asyncio.run(story(message(2)))
    (event,) = events(lines)
    assert (event.name, lines.records[0].levelname) == ("event_retry", "WARNING")
    assert (event.fields["next_in_s"], event.fields["reason_class"]) == (4.1, "retry_requested")
    assert str(event).startswith("event_retry handler=crm key=")


def test_an_exception_is_named_by_its_class_and_its_place(lines: pytest.LogCaptureFixture) -> None:
    asyncio.run(story(message(4)))
    (event,) = events(lines)
    assert (event.name, event.fields["reason_class"]) == ("event_retry", "ValueError")
    assert event.fields["raised_at"].startswith("test_delivery_log.py:")
    assert "deep" in event.fields["raised_at"]


def test_what_a_handler_says_is_in_no_line(lines: pytest.LogCaptureFixture) -> None:
    asyncio.run(story(message(1), message(1), message(2), message(3), message(4), {"id": "x", "type": "y"}))
    names = [event.name for event in events(lines)]
    assert names == ["event_done", "event_duplicate", "event_retry", "event_dead", "event_retry", "event_ignored"]
    assert "4711" not in lines.text


def test_above_a_hundred_lines_a_second_there_is_one_summary(lines: pytest.LogCaptureFixture) -> None:
    count = 3 * LINES_PER_S

    async def burst() -> None:
        async with Semel("memory://") as app:

            @app.on("**")
            async def crm(event: Event, ctx: Context) -> None: ...

            await app.process_many([message(number) for number in range(count)])
            for _ in range(200):
                if "events_summary" in {event.name for event in events(lines)}:
                    break
                await asyncio.sleep(0.05)

    asyncio.run(burst())
    found = events(lines)
    summaries = [event for event in found if event.name == "events_summary"]
    written = sum(event.name == "event_done" for event in found)
    assert LINES_PER_S <= written <= 2 * LINES_PER_S, "the batch may reach into a second second"
    assert written + sum(event.fields["done"] for event in summaries) == count
    assert summaries[0].fields["lines_omitted"] == summaries[0].fields["done"]


def test_a_level_that_is_off_makes_no_line_and_no_summary(lines: pytest.LogCaptureFixture) -> None:
    logging.getLogger("semel").setLevel(logging.WARNING)
    asyncio.run(story(message(1)))
    assert events(lines) == []


def test_an_event_that_no_handler_matches_is_logged_with_its_type(lines: pytest.LogCaptureFixture) -> None:
    asyncio.run(story(message(type="order.plcaed")))
    (line,) = events(lines)
    assert line.name == "event_ignored"
    assert line.fields["event_id"] == "e-1"
    assert "order.plcaed" in line.fields["reason"]


def test_deliveries_that_the_inbox_answers_are_logged_too(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    lines.set_level(logging.DEBUG, "semel")

    async def accept_all() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:
            app.on("order.placed", name="crm")(lambda event, ctx: None)
            inbox: Any = app.ledger
            acceptor = Acceptor(inbox, app.planner, lambda: None)
            other = message(data={"n": 2})
            for body in (message(), message(), other, message(7, type="order.plcaed"), {"x": 1}):
                await acceptor.accept(IncomingMessage(to_bytes(body)))

    asyncio.run(accept_all())
    found = [(line.name, line.fields.get("handler"), line.fields.get("event_id")) for line in events(lines)]
    assert found == [
        ("event_accepted", "crm", "e-1"),
        ("event_duplicate", "crm", "e-1"),
        ("event_conflict", "crm", "e-1"),
        ("event_ignored", None, "e-7"),
        ("event_malformed", None, None),
    ]
