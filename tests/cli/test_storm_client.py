"""The storm's HTTP client against servers that are slow, close, or send invalid responses."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.cli.scripted import Talk, answering, listening, read_request, scripted

from semel.cli import storm_load
from semel.cli.storm_load import HttpClient, NoResponse, Response, find_target
from semel.values.errors import ConfigError

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


def post(url: str, times: int = 1, timeout_s: float = 10.0, pause_s: float = 0.0) -> list[Response | NoResponse]:
    async def send() -> list[Response | NoResponse]:
        client = HttpClient(find_target(url), 1, timeout_s)
        responses = []
        try:
            for _ in range(times):
                responses.append(await client.send("POST", url, b"body"))
                await asyncio.sleep(pause_s)
        finally:
            await client.close()
        return responses

    return storm_load.run(send())


def counting(talk: Talk, connections: list[int]) -> Talk:
    def counted(connection: socket.socket) -> None:
        connections.append(1)
        talk(connection)

    return counted


def serve(response: bytes) -> Talk:
    def talk(connection: socket.socket) -> None:
        while read_request(connection) is not None:
            connection.sendall(response)

    return talk


def failures(responses: list[Response | NoResponse]) -> list[str]:
    return [response.failure if isinstance(response, NoResponse) else str(response.status) for response in responses]


def test_one_connection_serves_many_requests() -> None:
    connections: list[int] = []
    with listening(counting(serve(OK), connections)) as url:
        assert post(url, times=50) == [Response(200, b"ok")] * 50
    assert len(connections) == 1


@pytest.mark.parametrize(
    "response",
    [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\n\r\nok",
    ],
    ids=["close", "HTTP/1.0", "until closed"],
)
def test_a_connection_that_ends_with_its_response_is_replaced(response: bytes) -> None:
    def talk(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(response)

    connections: list[int] = []
    with listening(counting(talk, connections)) as url:
        assert post(url, times=3) == [Response(200, b"ok")] * 3
    assert len(connections) == 3


def test_a_response_in_small_pieces_is_put_together() -> None:
    def slowly(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_request(connection)
        for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.recv(1)

    with listening(slowly) as url:
        assert post(url) == [Response(200, b"ok")]


@pytest.mark.parametrize("content", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", OK[:-1], b"HTTP/1.1 200 OK\r\n"])
def test_a_connection_that_closes_early_is_no_response(content: bytes) -> None:
    def half(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(content)

    with listening(half) as url:
        assert failures(post(url, times=2)) == ["closed", "closed"]


def test_a_reset_connection_is_no_response() -> None:
    def reset(connection: socket.socket) -> None:
        read_request(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with listening(reset) as url:
        assert failures(post(url)) == ["closed"]


def test_a_response_that_never_ends_times_out() -> None:
    landed = threading.Event()

    def drip(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
        landed.set()
        for _ in range(400):
            connection.sendall(b"x")
            time.sleep(0.02)

    with listening(drip) as url:
        started = time.monotonic()
        responses = post(url, timeout_s=0.3)
        took_s = time.monotonic() - started
    assert landed.is_set(), "inconclusive: no request arrived"
    assert responses == [NoResponse("timeout", "no response within 0.3 s")]
    assert took_s < 6


def test_a_request_after_a_timeout_succeeds() -> None:
    with scripted(lambda number, body: None if number == 0 else OK) as url:
        assert failures(post(url, times=2, timeout_s=0.5)) == ["timeout", "200"]


def test_pauses_between_requests_do_not_count_as_timeouts() -> None:
    with scripted(answering(OK)) as url:
        assert post(url, times=5, timeout_s=0.6, pause_s=0.25) == [Response(200, b"ok")] * 5


def test_a_connection_that_the_server_closed_meanwhile_is_replaced() -> None:
    def one_response(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK)

    with listening(one_response) as url:
        assert post(url, times=2, pause_s=0.3) == [Response(200, b"ok")] * 2


def test_a_closed_port_is_not_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert failures(post(f"http://127.0.0.1:{port}/")) == ["not connected"]


def test_a_name_with_two_addresses_is_reached_at_the_one_that_listens() -> None:
    async def send(url: str) -> Response | NoResponse:
        target = find_target(url)._replace(addresses=("127.0.0.9", "127.0.0.1"))
        client = HttpClient(target, 1, 10)
        try:
            return await client.send("POST", url, b"body")
        finally:
            await client.close()

    with scripted(answering(OK)) as url:
        assert asyncio.run(send(url.replace("127.0.0.1", "localhost"))) == Response(200, b"ok")


def test_a_name_that_points_elsewhere_later_is_still_the_address_of_the_check() -> None:
    """The addresses were checked to be of this machine. No second look-up can change them."""

    async def send(url: str) -> Response | NoResponse:
        client = HttpClient(find_target(url), 1, 10)
        try:
            return await client.send("POST", url.replace("localhost", "elsewhere.invalid"), b"body")
        finally:
            await client.close()

    with scripted(answering(OK)) as url:
        assert asyncio.run(send(url.replace("127.0.0.1", "localhost"))) == Response(200, b"ok")


@pytest.mark.parametrize("content", [b"220 mail ready\r\n\r\n", b"\x16\x03\x01" * 50 + b"\r\n\r\n"])
def test_a_response_that_is_not_http_is_reported(content: bytes) -> None:
    with scripted(answering(content)) as url:
        assert failures(post(url)) == ["not HTTP"]


def test_a_redirect_is_not_followed() -> None:
    redirect = b"HTTP/1.1 307 Elsewhere\r\nLocation: http://192.0.2.7/\r\nContent-Length: 0\r\n\r\n"
    with scripted(answering(redirect)) as url:
        assert failures(post(url)) == ["307"]


def test_a_body_above_the_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm_load, "BODY_MAX_BYTES", 1_000)
    with scripted(answering(b"HTTP/1.1 200 OK\r\nContent-Length: 1001\r\n\r\n" + b"x" * 1001)) as url:
        assert failures(post(url)) == ["not HTTP"]


def test_a_second_response_to_one_request_is_not_taken_for_the_next() -> None:
    sent = threading.Event()

    def eager(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK)
        time.sleep(0.1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        sent.set()
        connection.recv(1)

    connections: list[int] = []
    with listening(counting(eager, connections)) as url:
        responses = post(url, times=2, pause_s=0.5)
    assert sent.is_set(), "inconclusive: the second response was not sent"
    assert responses == [Response(200, b"ok")] * 2
    assert len(connections) == 2


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    file = tmp_path / "certificate.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return file


@pytest.mark.parametrize("trusted", [True, False])
def test_a_certificate_must_be_trusted(trusted: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))

    def secure(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True) as wrapped:
            read_request(wrapped)
            wrapped.sendall(OK)
            wrapped.recv(1)

    with listening(secure) as url:
        responses = post(url.replace("http://127.0.0.1", "https://localhost"))
    assert failures(responses) == ["200" if trusted else "not connected"], responses


@pytest.mark.parametrize(
    ("url", "is_loopback"),
    [
        ("http://127.0.0.1:8080/events", True),
        ("http://127.3.2.1", True),
        ("http://[::1]:8080/a?b=1", True),
        ("http://[::ffff:127.0.0.1]/", True),
        ("https://192.0.2.1/x", False),
        ("http://0.0.0.0:80/", False),
    ],
)
def test_only_loopback_addresses_are_this_machine(url: str, is_loopback: bool) -> None:
    assert find_target(url).is_loopback is is_loopback


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1", "http://", "file:///etc/passwd", "http://127.0.0.1:x/", "http://127.0.0.1/\r\nX: 1", "http://é/",
     "http://no.such.host.invalid/"],
)  # fmt: skip
def test_an_invalid_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r".+"):
        find_target(url)
