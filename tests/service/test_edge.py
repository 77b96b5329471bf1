"""The edge of HTTP: what parsers keep to themselves, what comes behind a body, and who never reads or never ends."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests.service.running import Reply, Running, event, service

from semel.service.admission import BodyBudget, Reservation

SECRET = "0123456789abcdef0123"
IN_FLIGHT = 8
LOOK_S = 0.2  # the kernel lists all connections of the machine: thousands after some tests

SETTINGS = f"""
[server]
read_timeout = 3
idle_timeout = 2
header_max = 8_000
max_in_flight = {IN_FLIGHT}

[[endpoints]]
path = "/events"
mode = "inline"

[[endpoints]]
path = "/key"
mode = "inline"
verify = {{ scheme = "header", secrets = ["env:SECRET"] }}

[[endpoints]]
path = "/signed"
mode = "inline"
verify = {{ scheme = "hmac-hex", secrets = ["env:SECRET"] }}

[[endpoints]]
path = "/basic"
mode = "inline"
verify = {{ scheme = "basic", username = "genesys", secrets = ["env:SECRET"] }}

[[routes]]
name = "shown"
topics = ["**"]
console = true
"""

CLOUD_EVENT = {"ce-specversion": "1.0", "ce-source": "/crm", "ce-type": "refund.requested"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with service(tmp_path_factory.mktemp("edge"), SETTINGS, env={"SECRET": SECRET}) as running:
        yield running


def connected(running: Running, receive_buffer: int = 0) -> socket.socket:
    connection = socket.socket()
    if receive_buffer:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", running.port))
    return connection


def healthy(running: Running, number: int | str) -> bool:
    return bool(running.post("/events", event(number)).json["status"] == "processed")


def established(running: Running) -> int:
    """Connections at the side of the service, as the kernel counts them."""
    return len(queues(running))


def unread(running: Running) -> int:
    """Bytes that the service has sent and the client has not read."""
    return sum(queues(running))


def queues(running: Running) -> list[int]:
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = (row for row in rows if row[1].endswith(f":{running.port:04X}") and row[3] == "01")
    return [int(row[4].split(":")[0], 16) for row in ours]


# ------------------------------------------------------------------------------------------- what is never said


@pytest.mark.parametrize(
    "begun",
    [
        b"X: ",
        b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-T: ",  # a trailer
        b"Transfer-Encoding: chunked\r\n\r\n5;",  # an extension of a chunk
    ],
)
def test_incomplete_data_in_the_parser_is_limited_like_all_headers(running: Running, begun: bytes) -> None:
    """The rest arrives in one piece together with its beginning, and goes no further than the limit."""
    with connected(running) as endless:
        endless.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\n" + begun + b"y" * 40_000)
        assert endless.recv(1000).startswith(b"HTTP/1.1 431 ")
    assert healthy(running, f"after-endless-{begun!r}")


def test_many_small_trailers_count_like_headers(running: Running) -> None:
    with connected(running) as endless:
        endless.sendall(b"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n")
        endless.sendall(b"X: y\r\n" * 5_000)
        assert endless.recv(1000).startswith(b"HTTP/1.1 431 ")


def test_a_trailer_is_no_header(running: Running) -> None:
    body = json.dumps(event("trailer")).encode()
    head = b"POST /key HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n"
    chunks = b"\r\n%x\r\n%s\r\n0\r\n" % (len(body), body)
    key = b"X-Api-Key: %s\r\n" % SECRET.encode()
    assert running.raw(head + chunks + key + b"\r\n").startswith(b"HTTP/1.1 401 ")
    offer = b"Content-Encoding: gzip\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    answer = running.raw(head + key + chunks + offer)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"processed" in answer
    assert answer.count(b"HTTP/1.1 ") == 1


# ------------------------------------------------------------------------------------------- many at a time, unread


def test_a_few_requests_may_come_at_once_and_many_end_the_connection(running: Running) -> None:
    one = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    last = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    assert running.raw(one * 7 + last).count(b"HTTP/1.1 200 ") == 8
    assert running.raw(one * 1_000).count(b"HTTP/1.1 ") < 100
    assert healthy(running, "after-pipelining")


@pytest.mark.parametrize("closing", [False, True])
def test_a_client_that_does_not_read_responses_is_closed(running: Running, closing: bool) -> None:
    """Also one that the service closes itself: that waits for its reader too."""
    running.until(lambda: established(running) == 0, "others are still connected", every_s=LOOK_S)
    asks = b"GET /openapi.json HTTP/1.1\r\nHost: x\r\n"
    with connected(running, receive_buffer=2048) as deaf:
        full = before = -1
        while full < (1 if closing else 6):  # what the kernel takes no more, the service keeps
            before = unread(running)
            try:
                deaf.sendall(asks + b"\r\n")
            except ConnectionError:  # a slow machine: it was closed before all were sent
                break
            if before == 0:  # under load, more requests before the first response would end the connection
                running.until(lambda: unread(running) > 0, "the service did not respond", every_s=LOOK_S)
            time.sleep(0.02)
            full += 0 < before == unread(running)
        assert before > 0
        if closing:
            with suppress(ConnectionError):
                deaf.sendall(asks + b"Connection: close\r\n\r\n")
        running.until(lambda: established(running) == 0, "who does not read was not closed", 20, every_s=LOOK_S)
    assert healthy(running, f"after-deaf-{closing}")


# ------------------------------------------------------------------------------------------------------- upgrades


@pytest.mark.parametrize("pause_s", [0.0, 0.3])
def test_an_offer_of_another_protocol_is_ignored_and_the_body_is_read(running: Running, pause_s: float) -> None:
    """As Java's HttpClient sends it over plain http, with keep-alive: the next request is answered too."""
    with connected(running) as java:
        for number in range(2):
            body = json.dumps(event(f"java-{pause_s}-{number}")).encode()
            java.sendall(
                b"POST /events HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\nHost: x\r\n"
                b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n\r\n" % len(body)
            )
            time.sleep(pause_s)
            java.sendall(body)
            answer = http.client.HTTPResponse(java, method="POST")
            answer.begin()
            assert (answer.status, json.loads(answer.read())["status"]) == (200, "processed")


def test_an_offer_with_a_body_in_chunks_hides_no_other_request(running: Running) -> None:
    body = json.dumps(event("offered")).encode()
    head = b"POST /events HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nUpgrade: websocket\r\n"
    request = head + b"Connection: close, Upgrade\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    answer = running.raw(request)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert b'"processed"' in answer


def test_connect_is_refused(running: Running) -> None:
    answer = running.raw(b"CONNECT example.org:443 HTTP/1.1\r\nHost: example.org\r\n\r\nGET / HTTP/1.1\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1 ") == 1


# ------------------------------------------------------------------------------------------------- bodies and turns


@pytest.mark.parametrize("piece", [b"", b"{"])
def test_a_sender_without_a_body_takes_no_slot(running: Running, piece: bytes) -> None:
    head = b"POST /signed HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n"
    with ExitStack() as opened:
        for _ in range(8 * IN_FLIGHT):
            opened.enter_context(connected(running)).sendall(head + piece)
        time.sleep(0.3)  # they are all being waited for
        assert established(running) >= 8 * IN_FLIGHT
        replies = [signed(running, json.dumps(event(f"beside-{piece!r}-{number}")).encode()) for number in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 200]
    assert healthy(running, f"after-silent-{piece!r}")


def test_a_full_budget_evicts_the_body_that_arrives_for_longest() -> None:
    budget = BodyBudget(100)
    evicted: list[str] = []

    async def body(name: str, reservation: Reservation, size: int, seconds: float) -> None:
        with reservation:
            try:
                async with asyncio.timeout(30) as timeout:
                    reservation.start_reading(timeout)
                    reservation.grow(size)
                    await asyncio.sleep(seconds)
            except TimeoutError:
                assert reservation.evicted
                evicted.append(name)

    async def story() -> None:
        stalled = [asyncio.create_task(body(f"stalled-{number}", budget.reserve(), 40, 30)) for number in range(2)]
        await asyncio.sleep(0)
        assert budget.used == 80
        await body("quick", budget.reserve(), 60, 0.01)
        assert evicted == ["stalled-0"]
        assert budget.used == 40
        stalled[1].cancel()  # its sender went away
        await asyncio.gather(*stalled, return_exceptions=True)
        assert budget.used == 0
        await body("larger than the budget", budget.reserve(), 101, 30)
        assert evicted[1:] == ["larger than the budget"]
        assert budget.used == 0

    asyncio.run(asyncio.wait_for(story(), 20))


# ---------------------------------------------------------------------------------------------- headers unproven


def signed(running: Running, body: bytes, headers: dict[str, str] | None = None) -> Reply:
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    return running.post("/signed", body, {"X-Hub-Signature-256": f"sha256={signature}", **(headers or {})})


def test_headers_that_no_signature_covers_do_not_decide_what_an_event_is(running: Running) -> None:
    body = json.dumps(event("genuine")).encode()
    assert signed(running, body).json["status"] == "processed"
    for number in range(3):
        assert signed(running, body, CLOUD_EVENT | {"ce-id": f"forged-{number}"}).status == 400
        structured = {"Content-Type": "application/cloudevents+json"}
        replayed = signed(running, body, CLOUD_EVENT | structured | {"ce-id": f"forged-{number}"})
        assert (replayed.json["status"], replayed.json["id"]) == ("duplicate", "e-genuine")


def test_headers_beside_a_key_are_those_of_its_sender(running: Running) -> None:
    headers = CLOUD_EVENT | {"ce-id": "binary", "X-Api-Key": SECRET, "Content-Type": "application/json"}
    replies = [running.post("/key", {"any": "thing"}, headers) for _ in range(2)]
    assert [reply.json["status"] for reply in replies] == ["processed", "duplicate"]
    assert replies[0].json["id"] == "binary"


# ------------------------------------------------------------------------------------------------- Host and challenge


def sent(running: Running, version: str, *headers: str) -> bytes:
    body = json.dumps(event(f"{version}-{len(headers)}")).encode()
    head = [f"POST /events HTTP/{version}", *headers, f"Content-Length: {len(body)}", "Connection: close"]
    return running.raw("\r\n".join(head).encode() + b"\r\n\r\n" + body)


@pytest.mark.parametrize("hosts", [(), ("Host: a", "Host: a"), ("Host: a", "hOST: b")], ids=["none", "twice", "two"])
def test_a_request_without_exactly_one_host_is_400(running: Running, hosts: tuple[str, ...]) -> None:
    assert sent(running, "1.1", *hosts).startswith(b"HTTP/1.1 400 ")


def test_a_host_in_a_trailer_is_no_host(running: Running) -> None:
    chunked = b"POST /events HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    body = json.dumps(event("trailer")).encode()
    answer = running.raw(chunked + b"%x\r\n%s\r\n0\r\nHost: b\r\n\r\n" % (len(body), body))
    assert answer.startswith(b"HTTP/1.1 200 ")


def test_one_host_is_taken_and_http_1_0_needs_none(running: Running) -> None:
    assert b" 200 " in sent(running, "1.1", "Host: a").partition(b"\r\n")[0]
    assert b" 200 " in sent(running, "1.0").partition(b"\r\n")[0]
    assert b" 400 " in sent(running, "1.0", "Host: a", "Host: b").partition(b"\r\n")[0]


def test_the_401_of_basic_has_its_challenge_and_others_have_none(running: Running) -> None:
    refused = running.post("/basic", event("basic"))
    assert refused.status == 401
    assert refused.headers["www-authenticate"] == 'Basic realm="semel", charset="UTF-8"'
    other = running.post("/key", event("key"))
    assert (other.status, "www-authenticate" in other.headers) == (401, False)
    assert other.body == refused.body
