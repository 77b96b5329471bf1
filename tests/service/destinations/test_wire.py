"""What leaves on the wire, and how often. What comes back is asked of destinations, in the files beside this one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.service.destinations.servers import PATIENCE_S, Raw, raw, run, saying, until

from semel.http_client import client as wire
from semel.http_client.client import Answered, Client, Unanswered, Unsent
from semel.http_client.resolver import server_address
from semel.values.errors import LeaseLost
from semel.values.outbox import checked_by

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


@asynccontextmanager
async def client_of(server: Raw) -> AsyncIterator[Client]:
    made = Client(server_address("crm", server.url), ["127.0.0.1"], PATIENCE_S)
    try:
        yield made
    finally:
        await made.close()


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "GET"])
def test_a_sent_request_is_never_repeated(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even where HTTP would allow it, on a connection that was used before: that a message was sent twice is seen
    by whoever gets it."""
    monkeypatch.setattr(wire, "KEEPALIVE_S", 60.0)
    second = b""

    async def answer_one_and_hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal second
        writer.write(OK)
        second += await reader.readuntil(b"\r\n\r\n")

    async def story() -> None:
        async with raw(answer_one_and_hang_up) as server, client_of(server) as client:
            assert isinstance(await client.ask(server.url, None, {}, method), Answered)
            assert isinstance(await client.ask(server.url, None, {}, method), Unanswered)
            assert second.startswith(method.encode()), "inconclusive: the second request went another way"
            assert server.connections == 1

    run(story())


def test_a_request_is_sent_unchanged_with_each_header_once() -> None:
    async def story() -> None:
        async with raw(saying(OK)) as server, client_of(server) as client:
            headers = {"Accept": "a", "accept": "b", "host": "crm.example", "Transfer-Encoding": "chunked"}
            await client.ask(f"{server.url}a%2Fb?c=d%20e#f", b"{}", {**headers, "X-Name": "Jos\u00e9"})
            line, *fields = server.requests[0].decode().removesuffix("\r\n\r\n").split("\r\n")
            assert line == "POST /a%2Fb?c=d%20e HTTP/1.1"
            assert sorted(fields) == ["Content-Length: 2", "X-Name: Jos\u00e9", "accept: b", "host: crm.example"]

    run(story())


@pytest.mark.parametrize(("method", "told"), [("GET", []), ("POST", ["Content-Length: 0"])])
def test_a_request_without_a_body_has_content_length_0_unless_it_is_a_get(method: str, told: list[str]) -> None:
    async def story() -> None:
        async with raw(saying(OK)) as server, client_of(server) as client:
            await client.ask(server.url, None, {}, method)
            _, *fields = server.requests[0].decode().removesuffix("\r\n\r\n").split("\r\n")
            assert fields == [f"Host: 127.0.0.1:{server.port}", *told]

    run(story())


@pytest.mark.parametrize("headers", [{"X": "a\r\nY: b"}, {"X\r\nY": "b"}, {"X": "a\n"}, {"X": "a\0"}, {"X": "\x7f"}])
def test_a_header_that_would_be_two_is_not_sent(headers: dict[str, str]) -> None:
    async def story() -> None:
        async with raw(saying(OK)) as server, client_of(server) as client:
            answer = await client.ask(server.url, b"{}", headers)
            assert isinstance(answer, Unsent)
            assert "Y" not in answer.why  # it may be a secret
            assert server.connections == 0

    run(story())


def test_response_headers_are_found_in_any_case() -> None:
    async def story() -> None:
        said = b"HTTP/1.1 202 OK\r\nX-MESSAGE-id: m1\r\nContent-Length: 0\r\n\r\n"
        async with raw(saying(said)) as server, client_of(server) as client:
            answer = await client.ask(server.url, b"{}", {})
            assert isinstance(answer, Answered)
            assert (answer.status, answer.headers["x-message-id"]) == (202, "m1")

    run(story())


def test_a_connection_on_which_a_request_is_still_leaving_is_not_used_for_the_next_one() -> None:
    """Whoever answers before they have read it all may never read the rest."""

    servers: list[Raw] = []

    async def answer_at_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await until(lambda: servers[0].connections == 2)

    async def story() -> None:
        async with raw(answer_at_once, limit=1024) as server, client_of(server) as client:
            servers.append(server)
            for body in (b"x" * 30_000_000, b""):
                assert isinstance(await client.ask(server.url, body, {}), Answered)
            assert server.connections == 2

    run(story())


def test_a_cancelled_request_closes_its_connection() -> None:
    """What comes back on it would else be the answer to somebody else's request."""

    async def story() -> None:
        async with raw(saying(hold=True)) as server, client_of(server) as client:
            asking = asyncio.create_task(client.ask(server.url, b"{}", {}))
            await until(lambda: len(server.requests) == 1)
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled()
            await until(lambda: server.ended == 1)

    run(story())


def test_a_check_that_fails_before_the_first_byte_lets_nothing_leave() -> None:
    """The process stalled while it connected: the event or message may belong to another process by now."""
    checks = 0

    def too_late() -> None:
        nonlocal checks
        checks += 1
        raise LeaseLost("stalled")

    async def story() -> None:
        async with raw(saying(OK)) as server, client_of(server) as client:
            with checked_by(too_late), pytest.raises(LeaseLost):
                await client.ask(server.url, b"{}", {})
            assert isinstance(await client.ask(server.url, b"{}", {}), Answered), "outside of the block"
            assert (checks, len(server.requests)) == (1, 1)

    run(story())
