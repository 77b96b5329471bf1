"""Destinations that are broken, slow, greedy or not who they say they are."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import tracemalloc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.service.destinations.servers import (
    EVENT,
    PATIENCE_S,
    Ctx,
    Raw,
    answering,
    opened,
    outcome_of,
    raw,
    run,
    saying,
    sink,
    until,
)

from semel.destinations import Forward, reach
from semel.destinations.outcomes import OutcomeUnknown
from semel.http_client import client
from semel.http_client.client import BODY_MAX_BYTES
from semel.values.outcome import Reject, Retry

Speak = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
HEAD_200 = b"HTTP/1.1 200 OK\r\n"


@pytest.fixture
def patient_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections stay in hand however slow the machine is."""
    monkeypatch.setattr(client, "KEEPALIVE_S", 60.0)


def told(speak: Speak, *, park: bool = False, timeout_s: float = PATIENCE_S) -> Any:
    """What a forward comes to when the destination speaks so. It has always been sent."""

    async def story() -> Any:
        async with raw(speak) as server, opened(server.url, timeout_s=timeout_s) as crm:
            try:
                return await outcome_of(Forward(crm, park=park))
            finally:
                assert len(server.requests) == 1
                await until(lambda: server.ended == server.connections)  # nothing hangs on

    return run(story())


@pytest.mark.parametrize("body", [b"", b'{"ticket":', b"x" * 99])
def test_a_2xx_whose_body_breaks_off_is_done(body: bytes) -> None:
    """The status is the answer; to repeat what was acknowledged would be the worse mistake."""
    assert told(saying(HEAD_200 + b"Content-Length: 100\r\n\r\n" + body)) == {"status": 200}


def test_a_2xx_whose_body_never_ends_is_done() -> None:
    said = saying(HEAD_200 + b"Content-Length: 100\r\n\r\n{", hold=True)
    assert told(said, timeout_s=0.5) == {"status": 200}


def test_a_refusal_whose_body_breaks_off_is_a_refusal() -> None:
    came_to = told(saying(b"HTTP/1.1 422 No\r\nContent-Length: 100\r\n\r\nno"))
    assert isinstance(came_to, Reject)
    assert came_to.http_status == 422


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTT",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nBad Header\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 " + b"a" * 100_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x00\x00",
    ],
)
def test_a_missing_answer_is_retried_and_unknown_for_a_parking_route(said: bytes) -> None:
    came_to = told(saying(said))
    assert isinstance(came_to, Retry)
    assert came_to.after is None
    assert came_to.reason_class == "no_answer"
    assert came_to.reason.startswith("crm (127.0.0.1): ")
    with pytest.raises(OutcomeUnknown):
        told(saying(said), park=True)


@pytest.mark.parametrize("drop", [b"X-Drip: 1\r\n", b"X"], ids=["headers", "one header"])
def test_an_answer_that_drips_is_cut_off(drop: bytes) -> None:
    came_to = told(dripping(HEAD_200, drop), timeout_s=0.5)
    assert isinstance(came_to, Retry)


def test_an_answer_that_is_announced_for_ever_is_cut_off() -> None:
    came_to = told(dripping(b"", b"HTTP/1.1 100 Continue\r\n\r\n"), timeout_s=0.5)
    assert isinstance(came_to, Retry)
    assert (came_to.reason_class, "0.5 s" in came_to.reason) == ("no_answer", True)


def dripping(first: bytes, drop: bytes) -> Speak:
    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(first)
        while not writer.is_closing():
            writer.write(drop)
            await writer.drain()
            await asyncio.sleep(0.02)

    return drip


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade", b"HTTP/1.1 999 No", b"HTTP/1.0 600 ?"],
)
def test_a_status_that_means_nothing_is_in_doubt(head: bytes) -> None:
    assert isinstance(told(saying(head + b"\r\n\r\n")), Retry)
    with pytest.raises(OutcomeUnknown):
        told(saying(head + b"\r\n\r\n"), park=True)


@pytest.mark.parametrize("pause_s", [0.0, 0.1])
def test_an_unrequested_response_is_not_used_for_the_next_request(pause_s: float, patient_pool: None) -> None:
    """Else an event would be done that the destination refused."""
    ok = HEAD_200 + b"Content-Length: 0\r\n\r\n"
    said_twice = asyncio.Event()

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not said_twice.is_set():
            writer.write(ok)
            await asyncio.sleep(pause_s)
            writer.write(ok)
            await writer.drain()
            said_twice.set()
            await reader.read(65_536)  # the body of the first request
            await reader.read(65_536)  # the second, had it come this way
        writer.write(b"HTTP/1.1 422 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def story() -> None:
        async with raw(speak) as server, opened(server.url) as crm:
            assert await outcome_of(Forward(crm)) == {"status": 200}
            await said_twice.wait()
            await asyncio.sleep(0.2)  # it is here, too
            assert isinstance(await outcome_of(Forward(crm, park=True)), Reject)
            assert server.connections == 2

    run(story())


def test_nothing_is_sent_to_a_server_that_keeps_sending_unrequested_data(patient_pool: None) -> None:
    ok = HEAD_200 + b"Content-Length: 0\r\n\r\n"
    most = client.CONNECTIONS_MAX

    async def story() -> None:
        go_on = asyncio.Event()

        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await until(lambda: server.connections >= most)  # so that there are so many
            writer.write(ok)
            await go_on.wait()
            writer.write(ok)
            while await reader.read(65_536):
                pass

        async with raw(speak) as server, opened(server.url) as crm:
            answers = await asyncio.gather(*[outcome_of(Forward(crm)) for _ in range(most)])
            assert answers == [{"status": 200}] * most
            go_on.set()
            await asyncio.sleep(0.2)  # it is here
            came_to = await outcome_of(Forward(crm, park=True))
            assert isinstance(came_to, Retry)
            assert came_to.reason_class == "not_sent"
            assert len(server.requests) == server.connections == most
            assert await outcome_of(Forward(crm)) == {"status": 200}  # on a new connection

    run(story())


def test_an_endless_answer_is_dropped_after_its_limit() -> None:
    written = 0

    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        writer.write(HEAD_200 + b"Content-Length: 10000000000\r\n\r\n")
        while True:
            writer.write(b"[" * 65_536)
            await writer.drain()  # raises when the client drops the connection
            written += 65_536

    assert told(pour) == {"status": 200}
    assert written < 100 * BODY_MAX_BYTES  # buffers of two kernels and of asyncio; far from ten gigabytes


@pytest.mark.parametrize("chunked", [False, True])
def test_a_gzip_bomb_is_not_unpacked(chunked: bool) -> None:
    bomb = gzip.compress(b"0" * 20_000_000, 9)
    assert len(bomb) < BODY_MAX_BYTES
    head = HEAD_200 + b"Content-Encoding: gzip\r\nContent-Type: application/json\r\n"
    if chunked:
        said = head + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(bomb), bomb)
    else:
        said = head + b"Content-Length: %d\r\n\r\n%b" % (len(bomb), bomb)
    tracemalloc.start()
    try:
        assert told(saying(said)) == {"status": 200}
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_a_compressed_error_is_not_shown() -> None:
    body = gzip.compress(b"no such customer")
    head = b"HTTP/1.1 422 No\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    came_to = told(saying(head + body))
    assert isinstance(came_to, Reject)
    assert came_to.http_status == 422
    assert came_to.reason.endswith("422"), "nothing of the body"


def test_a_connection_that_is_used_again_and_then_hangs_is_in_doubt_too(patient_pool: None) -> None:
    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD_200 + b"Content-Length: 0\r\n\r\n")
        await reader.read()  # the second request, for ever

    async def story() -> int:
        async with raw(answer_once) as server, opened(server.url, timeout_s=1) as crm:
            assert await Forward(crm, park=True)(EVENT, Ctx()) == {"status": 200}
            with pytest.raises(OutcomeUnknown):
                await Forward(crm, park=True)(EVENT, Ctx())
            return server.connections

    assert run(story()) == 1, "the connection was not used again: the fault has not landed"


def test_cookies_are_not_kept() -> None:
    async def story() -> list[Any]:
        async with sink(answering(200, Set_Cookie="a=1; Path=/")) as server:
            url = f"http://localhost:{server.port}/"  # clients keep no cookies of bare addresses anyway
            async with opened(url, allow=["localhost"]) as crm:
                for _ in range(2):
                    await Forward(crm)(EVENT, Ctx())
            return [request.headers.get("Cookie") for request in server.requests]

    assert run(story()) == [None, None]


def test_a_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> tuple[int, int]:
        async with raw(saying(b"")) as proxy, sink() as server, opened(server.url) as crm:
            for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
                monkeypatch.setenv(name, proxy.url)
            await Forward(crm)(EVENT, Ctx())
            return proxy.connections, len(server.requests)

    assert run(story()) == (0, 1)


def test_a_connection_that_the_server_closed_while_idle_is_not_used_again() -> None:
    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(HEAD_200 + b"Content-Length: 0\r\n\r\n")
        await writer.drain()

    async def story() -> None:
        async with raw(once) as server, opened(server.url) as crm:
            for _ in range(3):
                assert await Forward(crm, park=True)(EVENT, Ctx()) == {"status": 200}
                await until(lambda: server.ended == server.connections)
                await asyncio.sleep(0.05)  # its closing reaches us
            assert server.connections == 3

    run(story())


# ---------------------------------------------------------------------------------------------------------- TLS


def certificate(folder: Path, name: str) -> Path:
    """Key and certificate of a server that calls itself by this name, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / f"{name}.pem"
    path.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
    return path


@pytest.mark.parametrize(
    ("name", "trusted", "expected"),
    [
        ("localhost", True, "200"),
        ("localhost", False, "TLS certificate"),
        ("elsewhere.example", True, "TLS certificate"),
    ],
)
def test_tls_is_verified_and_nothing_is_sent_to_a_stranger(
    name: str, trusted: bool, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = certificate(tmp_path, name)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(path))

    async def story() -> tuple[Any, str | None, Raw]:
        said = saying(HEAD_200 + b"Content-Length: 0\r\n\r\n")
        async with raw(said, ssl=context) as server:
            url = f"https://localhost:{server.port}/"
            async with opened(url, allow=["localhost"]) as crm:
                reached = await reach(crm)
                return await outcome_of(Forward(crm, park=True)), reached, server

    came_to, reached, server = run(story())
    assert expected in repr(came_to)
    assert (len(server.requests), reached is None) == ((1, True) if expected == "200" else (0, False))
    assert reached is None or expected in reached


def test_https_to_a_server_without_tls_is_no_connection() -> None:
    async def story() -> tuple[Any, str | None]:
        async with raw(saying(b"HTTP/1.1 400 Bad\r\n\r\n")) as server:
            async with opened(f"https://127.0.0.1:{server.port}/", timeout_s=0.3) as crm:
                return await outcome_of(Forward(crm, park=True)), await reach(crm)

    came_to, reached = run(story())
    assert isinstance(came_to, Retry)
    assert reached is not None
