"""What is sent, and what each answer comes to."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from tests.service.destinations.servers import (
    EVENT,
    Answer,
    Ctx,
    Request,
    answering,
    closed_port,
    destination,
    opened,
    outcome_of,
    raw,
    run,
    saying,
    sink,
    until,
)

from semel.destinations import Forward
from semel.destinations.destination import headers_for
from semel.destinations.outcomes import OutcomeUnknown
from semel.values.errors import ConfigError
from semel.values.event import Event
from semel.values.outcome import NotNow, Reject, Retry
from semel.values.secret import Secret


def answer_to(answer: Answer, *, park: bool = False, **options: Any) -> Any:
    """What a forward comes to when the destination answers so."""

    async def story() -> Any:
        async with sink(answer) as server, opened(server.url, **options) as crm:
            came_to = await outcome_of(Forward(crm, park=park))
            assert len(server.requests) == 1
            return came_to

    return run(story())


def sent(event: Event = EVENT, select: str = "", ctx: Ctx | None = None, **options: Any) -> Request:
    async def story() -> Request:
        async with sink() as server, opened(server.url, **options) as crm:
            assert await Forward(crm, select)(event, ctx or Ctx()) == {"status": 200}
            (request,) = server.requests
            return request

    return run(story())


# ------------------------------------------------------------------------------------------------ what is sent


def test_the_document_is_sent_byte_for_byte_with_the_key_of_the_effect() -> None:
    request = sent(ctx=Ctx(key="ab" * 16, attempt=3))
    assert request.body == EVENT.raw
    assert request.path == "/in?token=url-secret"
    assert request.headers["Idempotency-Key"] == "ab" * 16
    assert request.headers["Semel-Attempt"] == "3"
    assert request.headers["Content-Type"] == "application/json"
    assert request.headers["Accept-Encoding"] == "identity"
    assert "Cookie" not in request.headers


@pytest.mark.parametrize(
    ("select", "expected"), [("data", {"n": 1, "text": "hé"}), ("data.n", 1), ("data.text", "hé"), ("id", "a")]
)
def test_a_selected_part_is_sent_as_json(select: str, expected: Any) -> None:
    assert json.loads(sent(select=select).body) == expected


def test_a_part_that_is_not_there_is_dead_with_its_reason_and_nothing_is_sent() -> None:
    async def story() -> Any:
        async with sink() as server, opened(server.url) as crm:
            return await outcome_of(Forward(crm, "data.customer")), len(server.requests)

    came_to, requests = run(story())
    assert isinstance(came_to, Reject)
    assert "data.customer" in came_to.reason
    assert requests == 0


def test_configured_headers_are_sent_and_replace_the_usual_ones_in_any_spelling() -> None:
    headers = {"Authorization": Secret("Bearer s3cret-token"), "content-type": Secret("application/cloudevents+json")}
    request = sent(headers=headers)
    assert request.headers["Authorization"] == "Bearer s3cret-token"
    assert request.headers.getall("Content-Type") == ["application/cloudevents+json"]  # type: ignore[attr-defined]


def test_trace_headers_are_created_for_each_request_and_cannot_replace_the_key() -> None:
    asked: list[int] = []

    def trace() -> dict[str, str]:
        asked.append(1)
        return {"traceparent": "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01", "idempotency-key": "other"}

    request = sent(trace_headers=trace)
    assert request.headers["Traceparent"].startswith("00-abab")
    assert request.headers.getall("Idempotency-Key") == [Ctx().key]  # type: ignore[attr-defined]
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        ({"Idempotency-Key": Secret("sesame-open")}, "Idempotency-Key"),
        ({"content-LENGTH": Secret("sesame-open")}, "content-LENGTH"),
        ({"Transfer-Encoding": Secret("chunked")}, "Transfer-Encoding"),
        ({"X-Token": Secret("sesame-open\r\nX-Evil: 1")}, "X-Token"),
        ({"X-Token": Secret("sesame-open\n")}, "X-Token"),
        ({"X-Token": Secret("sesame-\0open")}, "X-Token"),
        ({"X Token": Secret("sesame-open")}, "'X Token'"),
        ({"X-Tok\r\nen": Secret("sesame-open")}, r"'X-Tok\\r\\nen'"),
        ({"": Secret("sesame-open")}, "''"),
    ],
)
def test_a_header_that_cannot_be_sent_is_a_configuration_error_without_its_value(
    headers: dict[str, Secret], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        sent(headers=headers)
    assert "open" not in str(caught.value)


# ------------------------------------------------------------------------------------------- what it comes to


@pytest.mark.parametrize("status", [200, 201, 202, 204, 206, 299])
def test_every_2xx_is_done(status: int) -> None:
    assert answer_to(answering(status)) == {"status": status}


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ('{"ticket": 7}', {"body": {"ticket": 7}}),
        ("[1]", {"body": [1]}),
        ("null", {"body": None}),
        ("", {}),
        ("<html>", {}),
        ('{"a":1,"a":2}', {}),
        (json.dumps("x" * 4_094), {"body": "x" * 4_094}),  # with its quotes 4 KB
        (json.dumps("x" * 4_095), {}),
        ("[" * 100 + "]" * 100, {}),
    ],
)
def test_a_small_json_body_is_kept_as_the_result_and_everything_else_is_not(text: str, kept: dict[str, Any]) -> None:
    assert answer_to(answering(200, text)) == {"status": 200, **kept}


@pytest.mark.parametrize("status", [400, 402, 403, 404, 405, 410, 413, 415, 418, 422, 451, 499])
def test_a_refusal_is_dead_with_status_and_a_clean_piece_of_the_body(status: int) -> None:
    came_to = answer_to(answering(status, 'no\r\n\tsuch \x1b[31mcustomer \u202e"7" ' + "x" * 5_000))
    assert isinstance(came_to, Reject)
    assert came_to.reason.startswith("crm (127.0.0.1): ")
    assert came_to.http_status == status
    assert f'{status}: no such [31mcustomer "7" xxx' in came_to.reason
    assert came_to.reason.endswith("x…")
    assert len(came_to.reason) < 300


@pytest.mark.parametrize("status", [401, 408, 409, 425, 500, 501, 502, 503, 504, 511, 599])
def test_temporary_failures_are_retried(status: int) -> None:
    came_to = answer_to(answering(status, "try later"))
    assert isinstance(came_to, Retry)
    assert (came_to.after, came_to.http_status) == (None, status)
    assert all(part in came_to.reason for part in ("crm (127.0.0.1)", "try later"))


@pytest.mark.parametrize("status", [500, 502, 503, 408, 409])
def test_retry_after_is_honoured_in_seconds_and_a_little_later(status: int) -> None:
    came_to = answer_to(answering(status, Retry_After="100"), random=lambda: 1.0)
    assert isinstance(came_to, Retry)
    assert came_to.after == pytest.approx(110)


def test_retry_after_is_honoured_as_a_date() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=1_000), usegmt=True)
    came_to = answer_to(answering(503, Retry_After=date))
    assert isinstance(came_to, Retry)
    assert came_to.after is not None
    assert 800 < came_to.after <= 1_100


@pytest.mark.parametrize("value", ["soon", "-5", "1e9", ""])
def test_a_retry_after_that_is_garbage_is_none(value: str) -> None:
    came_to = answer_to(answering(503, Retry_After=value))
    assert isinstance(came_to, Retry)
    assert (came_to.after, came_to.http_status) == (None, 503)


def test_429_is_not_now_for_as_long_as_the_destination_asks() -> None:
    came_to = answer_to(answering(429, "slow down", Retry_After="30"), random=lambda: 0.0)
    assert isinstance(came_to, NotNow)
    assert came_to.after == 30


@pytest.mark.parametrize("value", ["0", "later", ""])
def test_a_429_is_never_retried_at_once(value: str) -> None:
    came_to = answer_to(answering(429, Retry_After=value))
    assert isinstance(came_to, NotNow)
    assert 0.1 < came_to.after < 2


@pytest.mark.parametrize("status", [300, 301, 302, 303, 307, 308, 399])
def test_redirects_are_not_followed(status: int) -> None:
    async def story() -> Any:
        async with sink() as other:
            answer = answering(status, Location=f"{other.url}&more=secret")
            async with sink(answer) as server, opened(server.url) as crm:
                came_to = await outcome_of(Forward(crm))
                return came_to, len(server.requests), len(other.requests)

    came_to, asked, followed = run(story())
    assert isinstance(came_to, Reject)
    assert came_to.http_status == status
    assert came_to.reason.count("127.0.0.1") == 2, "who answered, and where it points to"
    assert "secret" not in came_to.reason
    assert (asked, followed) == (1, 0)


def test_a_location_that_is_garbage_is_not_shown() -> None:
    came_to = answer_to(answering(302, Location="http://[::1"))
    assert isinstance(came_to, Reject)
    assert came_to.http_status == 302
    assert "::1" not in came_to.reason


def test_a_secret_that_the_destination_repeats_is_neither_kept_nor_shown() -> None:
    headers = {"Authorization": Secret("Bearer s3cret-token"), "X-Pin": Secret("0"), "X-Empty": Secret("")}

    async def echo(request: Request, status: int) -> Any:
        return await answering(status, json.dumps({"got": request.headers["Authorization"].split()[-1]}))(request)

    for status in (200, 422, 500):
        came_to = answer_to(lambda request, status=status: echo(request, status), headers=headers)  # type: ignore[misc]
        assert "s3cret" not in repr(came_to)
        assert str(status) in repr(came_to)


def test_headers_that_are_not_secrets_do_not_hide_the_response() -> None:
    headers = {"X-Version": Secret("1"), "X-Empty": Secret(""), "X-Flag": Secret("a b c")}
    assert answer_to(answering(200, '{"abc":1}'), headers=headers) == {"status": 200, "body": {"abc": 1}}


# --------------------------------------------------------------------------------- where nothing may be repeated


@pytest.mark.parametrize("status", [408, 409, 500, 502, 503, 504])
def test_a_5xx_is_uncertain_for_a_parking_route(status: int) -> None:
    with pytest.raises(OutcomeUnknown, match=str(status)):
        answer_to(answering(status, Retry_After="5"), park=True)


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Reject), (302, Reject), (425, Retry), (401, Retry), (429, NotNow), (200, dict)]
)
def test_a_refusal_is_definite_for_a_parking_route(status: int, kind: type) -> None:
    assert isinstance(answer_to(answering(status), park=True), kind)


def test_a_timeout_after_the_request_was_sent_is_unknown_for_a_parking_route_and_a_retry_for_others() -> None:
    async def story() -> None:
        async with raw(saying(hold=True)) as server, opened(server.url, timeout_s=0.3) as crm:
            came_to = await outcome_of(Forward(crm))
            assert isinstance(came_to, Retry)
            assert (came_to.after, came_to.reason_class, "0.3 s" in came_to.reason) == (None, "no_answer", True)
            with pytest.raises(OutcomeUnknown, match=r"0\.3 s"):
                await Forward(crm, park=True)(EVENT, Ctx())
            assert len(server.requests) == 2, "the fault has not landed: nothing was sent"
            await until(lambda: server.ended == 2)  # the client let go of its connections

    run(story())


@pytest.mark.parametrize("park", [False, True])
def test_without_a_connection_nothing_was_sent_and_everybody_may_try_again(park: bool) -> None:
    async def story() -> Any:
        async with opened(f"http://127.0.0.1:{await closed_port()}/") as crm:
            return await outcome_of(Forward(crm, park=park))

    came_to = run(story())
    assert isinstance(came_to, Retry)
    assert came_to.reason_class == "not_sent"
    assert came_to.reason.startswith("crm (127.0.0.1): ")


def test_a_name_that_does_not_resolve_is_tried_again() -> None:
    async def story() -> Any:
        async with opened("http://nobody.invalid/") as crm:
            return await outcome_of(Forward(crm, park=True))

    came_to = run(story())
    assert isinstance(came_to, Retry)
    assert "nobody.invalid" in came_to.reason
    assert came_to.reason_class == "not_sent"


def test_a_destination_can_be_closed_and_used_again_on_another_loop() -> None:
    async def story(port: int = 0) -> int:
        async with sink(port=port) as server:
            assert await Forward(crm)(EVENT, Ctx()) == {"status": 200}
            await crm.close()
            await crm.close()
            return server.port

    async def port_of_a_sink() -> int:
        async with sink() as server:
            return server.port

    port = run(port_of_a_sink())
    crm = destination(f"http://127.0.0.1:{port}/")
    run(story(port))
    run(story(port))


def test_nothing_of_a_destination_shows_its_secrets() -> None:
    async def story() -> str:
        async with opened("http://127.0.0.1:9/in?token=url-secret", headers={"X-Token": Secret("s3cret")}) as crm:
            came_to = await outcome_of(Forward(crm))
            return f"{crm!r} {Forward(crm)!r} {crm.who} {crm.address} {came_to!r}"

    shown = run(story())
    assert "s3cret" not in shown
    assert "url-secret" not in shown


def test_a_cancelled_forward_is_cancelled_and_leaves_its_turn() -> None:
    async def story() -> None:
        async with raw(saying(hold=True)) as server, opened(server.url, concurrency=1) as crm:
            for _ in range(3):
                task = asyncio.create_task(Forward(crm)(EVENT, Ctx()))
                await until(lambda: server.connections > server.ended)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await until(lambda: server.connections == server.ended)
            assert len(server.requests) == 3

    run(story())


def test_a_request_has_each_header_once() -> None:
    own = {"authorization": Secret("x"), "CONTENT-TYPE": Secret("y"), "user-agent": Secret("z")}
    made = headers_for("k", 2, own, {"traceparent": "t", "IDEMPOTENCY-KEY": "evil", "accept": "trace"})
    names = [name.lower() for name in made]
    assert len(names) == len(set(names))
    assert (made["Idempotency-Key"], made["Semel-Attempt"], made["CONTENT-TYPE"]) == ("k", "2", "y")
