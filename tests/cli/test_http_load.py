"""The load generator's client against servers that are slow, close, or talk nonsense."""

from __future__ import annotations

import asyncio
import datetime
import socket
import ssl
import struct
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.cli.scripted import answering, listening, read_request, scripted

from semel.cli import http_load
from semel.cli.http_load import Answer, Line, NoAnswer, Target, target
from semel.values.errors import ConfigError

T = TypeVar("T")

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nbody"

both_loops = pytest.mark.parametrize("run", [asyncio.run, http_load.run], ids=["asyncio", "uvloop"])
Run = Callable[..., T]


def ask(
    url: str, times: int = 1, timeout_s: float = 10.0, run: Run[list[Answer | NoAnswer]] = asyncio.run
) -> list[Answer | NoAnswer]:
    async def asked() -> list[Answer | NoAnswer]:
        line = Line(target(url), timeout_s)
        try:
            return [await line.ask(REQUEST) for _ in range(times)]
        finally:
            line.close()

    return run(asked())


async def with_line(url: str, use: Callable[[Line], Awaitable[T]], timeout_s: float = 10.0) -> T:
    line = Line(target(url), timeout_s)
    try:
        return await use(line)
    finally:
        line.close()


@both_loops
def test_one_connection_serves_many_requests(run: Run[tuple[list[Answer | NoAnswer], int]]) -> None:
    async def many(line: Line) -> tuple[list[Answer | NoAnswer], int]:
        return [await line.ask(REQUEST) for _ in range(50)], line.opened

    bodies: list[bytes] = []

    def answer(number: int, body: bytes) -> bytes:
        bodies.append(body)
        return OK

    with scripted(answer) as url:
        answers, opened = run(with_line(url, many))
    assert answers == [Answer(200, b"ok")] * 50
    assert bodies == [b"body"] * 50
    assert opened == 1


@both_loops
@pytest.mark.parametrize(
    "said",
    [
        OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"),
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil",
    ],
    ids=["close", "HTTP/1.0", "an answer too many"],
)
def test_a_connection_that_is_no_use_any_more_is_replaced(said: bytes, run: Run[tuple[list[object], int]]) -> None:
    async def twice(line: Line) -> tuple[list[object], int]:
        return [(await line.ask(REQUEST))[:2] for _ in range(3)], line.opened

    with scripted(answering(said)) as url:
        answers, opened = run(with_line(url, twice))
    assert answers == [(200, b"ok")] * 3
    assert opened == 3


@both_loops
def test_an_answer_in_small_pieces_is_put_together(run: Run[list[Answer | NoAnswer]]) -> None:
    def slowly(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        read_request(connection)
        for byte in b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":
            connection.sendall(bytes([byte]))
            time.sleep(0.001)
        connection.recv(1)

    with listening(slowly) as url:
        assert ask(url, run=run) == [Answer(200, b"ok")]


@both_loops
def test_an_answer_that_ends_with_its_connection_is_whole(run: Run[list[Answer | NoAnswer]]) -> None:
    def until_closed(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nall of it")

    with listening(until_closed) as url:
        assert ask(url, times=2, run=run) == [Answer(200, b"all of it", keep=False)] * 2


@both_loops
@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 200 OK\r\nContent-Le", OK[:-1], b"HTTP/1.1 200 OK\r\n"])
def test_a_connection_that_closes_early_is_no_answer(said: bytes, run: Run[list[Answer | NoAnswer]]) -> None:
    def half(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(said)

    with listening(half) as url:
        answers = ask(url, times=2, run=run)
    assert [answer[0] for answer in answers] == ["closed", "closed"]


@both_loops
def test_a_reset_connection_is_no_answer(run: Run[list[Answer | NoAnswer]]) -> None:
    def reset(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\nsome")  # without the reset, this would end with the connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with listening(reset) as url:
        (answer,) = ask(url, run=run)
    assert answer[0] == "closed"


@both_loops
def test_a_server_that_says_nothing_or_too_little_is_given_up_in_time(run: Run[list[Answer | NoAnswer]]) -> None:
    landed = threading.Event()

    def drip(connection: socket.socket) -> None:
        read_request(connection)
        landed.set()
        for _ in range(400):
            connection.sendall(b"X")  # a head that never ends
            time.sleep(0.02)

    with listening(drip) as url:
        begun = time.monotonic()
        answers = ask(url, timeout_s=0.3, run=run)
        took_s = time.monotonic() - begun
    assert landed.is_set()
    (answer,) = answers
    assert isinstance(answer, NoAnswer)
    assert (answer.failure, "0.3 s" in answer.detail) == ("timeout", True)
    assert took_s < 6, "it did not wait for the end of the drip"


@both_loops
def test_a_line_that_timed_out_is_good_for_the_next_request(run: Run[list[Answer | NoAnswer]]) -> None:
    with scripted(lambda number, body: None if number == 0 else OK) as url:
        answers = ask(url, times=2, timeout_s=0.5, run=run)
    assert [answer[0] for answer in answers] == ["timeout", 200]


@both_loops
def test_an_old_deadline_does_not_end_a_later_request(run: Run[list[Answer | NoAnswer]]) -> None:
    """The connection has one timer for all its requests: it was set for the first."""

    async def slowly(line: Line) -> list[Answer | NoAnswer]:
        answers = []
        for _ in range(5):
            answers.append(await line.ask(REQUEST))
            await asyncio.sleep(0.25)
        return answers

    with scripted(answering(OK)) as url:
        assert run(with_line(url, slowly, timeout_s=0.6)) == [Answer(200, b"ok")] * 5


@both_loops
def test_a_server_that_closed_meanwhile_is_reached_anew(run: Run[list[Answer | NoAnswer]]) -> None:
    closed = threading.Event()

    def one_answer(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK)
        connection.close()
        closed.set()

    async def later(line: Line) -> list[Answer | NoAnswer]:
        first = await line.ask(REQUEST)
        await asyncio.to_thread(closed.wait, 10)
        await asyncio.sleep(0.1)
        return [first, await line.ask(REQUEST)]

    with listening(one_answer) as url:
        assert run(with_line(url, later)) == [Answer(200, b"ok")] * 2


@both_loops
def test_nobody_there_is_told(run: Run[list[Answer | NoAnswer]]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    (answer,) = ask(f"http://127.0.0.1:{port}/", run=run)
    assert answer[0] == "not connected"


def test_a_name_with_two_addresses_is_reached_at_the_one_that_listens() -> None:
    with scripted(answering(OK)) as url:
        found = target(url)._replace(addresses=("127.0.0.9", "127.0.0.1"))

        async def asked() -> Answer | NoAnswer:
            line = Line(found, 10)
            answer = await line.ask(REQUEST)
            line.close()
            return answer

        assert asyncio.run(asked()) == Answer(200, b"ok")


@pytest.mark.parametrize("said", [b"220 mail ready\r\n\r\n", b"\x16\x03\x01" * 50 + b"\r\n\r\n"])
def test_what_is_not_http_is_told(said: bytes) -> None:
    with scripted(answering(said)) as url:
        (answer,) = ask(url)
    assert answer[0] == "not HTTP"


def test_an_answer_to_nothing_closes_the_connection() -> None:
    spoken = threading.Event()

    def eager(connection: socket.socket) -> None:
        read_request(connection)
        connection.sendall(OK)
        time.sleep(0.1)
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil")
        spoken.set()
        connection.recv(1)

    async def later(line: Line) -> tuple[list[Answer | NoAnswer], int]:
        first = await line.ask(REQUEST)
        await asyncio.to_thread(spoken.wait, 10)
        await asyncio.sleep(0.1)
        return [first, await line.ask(REQUEST)], line.opened

    with listening(eager) as url:
        answers, opened = asyncio.run(with_line(url, later))
    assert answers == [Answer(200, b"ok")] * 2
    assert opened == 2


# ------------------------------------------------------------------------------------------------------------ TLS


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
def test_tls_is_spoken_with_whom_the_machine_trusts(
    trusted: bool, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (answer,) = ask(url.replace("http://127.0.0.1", "https://localhost"))
    assert answer[0] == (200 if trusted else "not connected"), answer


# ---------------------------------------------------------------------------------------------------------- targets


@pytest.mark.parametrize(
    ("url", "port", "path", "loopback"),
    [
        ("http://127.0.0.1:8080/events", 8080, "/events", True),
        ("http://127.3.2.1", 80, "/", True),
        ("http://[::1]:8080/a?b=1", 8080, "/a?b=1", True),
        ("http://[::ffff:127.0.0.1]/", 80, "/", True),
        ("https://192.0.2.1/x", 443, "/x", False),
        ("http://0.0.0.0:80/", 80, "/", False),
    ],
)
def test_a_url_says_where_requests_go(url: str, port: int, path: str, loopback: bool) -> None:
    found = target(url)
    assert (found.port, found.path, found.loopback, found.tls is not None) == (port, path, loopback, "https" in url)


@pytest.mark.parametrize(
    "url",
    ["", "127.0.0.1", "http://", "file:///etc/passwd", "http://127.0.0.1:x/", "http://127.0.0.1/\r\nX: 1", "http://é/",
     "http://no.such.host.invalid/"],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match=r".+"):
        target(url)


def test_the_head_of_a_request_names_its_host() -> None:
    found: Target = target("http://127.0.0.1:8080/events?x=1")
    assert found.head("POST", None, "A: b") == (
        b"POST /events?x=1 HTTP/1.1\r\nHost: 127.0.0.1:8080\r\nUser-Agent: semel-storm\r\nA: b\r\n"
    )
