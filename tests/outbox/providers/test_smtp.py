"""Features of SMTP: no secret is sent unencrypted, and bytes from before TLS are ignored."""

from __future__ import annotations

import asyncio
import base64
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec.structs import replace
from tests.outbox.providers.kits import SENDER, mail

from semel.providers.http import reach
from semel.providers.smtp import Smtp, SmtpOptions, Tls
from semel.testing.provider_laws import dispatch_of
from semel.values.delivery_state import Accepted, Answer, Contract, Refused, Unknown
from semel.values.errors import LeaseLost
from semel.values.outbox import checked_by
from semel.values.secret import Secret

CONTRACT = Contract(name="smtp", channels=("email",), timeout_s=30.0)
PASSWORD = "do-not-show-me"
GONE = "…"  # behind a reply: the server goes then


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of "localhost", with its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    path = tmp_path_factory.mktemp("smtp") / "localhost.pem"
    plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path.write_bytes(key.private_bytes(pem, *plain) + made.public_bytes(pem))
    return path


class Server:
    """Answers by the first word of a line. What it hears is kept, with whether it came over TLS."""

    def __init__(self, replies: dict[str, str], certificate: Path | None = None) -> None:
        usual = {"": "220 hello", "EHLO": "250-me\r\n250-STARTTLS\r\n250 AUTH PLAIN", "AUTH": "235 welcome"}
        more = {"MAIL": "250 ok", "RCPT": "250 ok", "DATA": "354 go on", ".": "250 taken", "QUIT": "221 bye"}
        self._replies = {**usual, **more, "STARTTLS": "220 now", **replies}
        self._certificate = certificate
        self.heard: list[tuple[str, bool]] = []

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        secure = False
        try:
            writer.write(f"{self._replies['']}\r\n".encode())
            while line := (await reader.readline()).decode().rstrip("\r\n"):
                word = line.split(" ")[0]
                self.heard.append((line, secure))
                if word == "DATA":
                    writer.write(f"{self._replies['DATA']}\r\n".encode())
                    await reader.readuntil(b"\r\n.\r\n")
                    word = "."
                if not (reply := self._replies[word]):
                    return
                writer.write(f"{reply.removesuffix(GONE)}\r\n".encode())
                await writer.drain()
                if reply.endswith(GONE):
                    return
                if word == "STARTTLS" and self._certificate is not None:
                    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
                    context.load_cert_chain(self._certificate)
                    await writer.start_tls(context)
                    secure = True
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()


def send_to(server: Server, *, tls: Tls = "off", host: str = "127.0.0.1", password: bool = True) -> Answer:
    async def story() -> Answer:
        listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        options = SmtpOptions(host=host, port=port, tls=tls, sender=SENDER, allow=[host])
        if password:
            options = replace(options, username="u", password=Secret(PASSWORD))
        smtp = Smtp(options, CONTRACT)
        dispatch = dispatch_of(mail(uuid4().hex))
        try:
            return await smtp.send(dispatch, smtp.prepare(dispatch))
        finally:
            listening.close()
            await asyncio.sleep(0)

    return asyncio.run(story())


def test_only_the_greeting_precedes_tls(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    server = Server({}, certificate)
    assert isinstance(send_to(server, tls="starttls", host="localhost"), Accepted)
    assert [line for line, secure in server.heard if not secure] == ["EHLO semel", "STARTTLS"]
    proof = base64.b64encode(f"\0u\0{PASSWORD}".encode()).decode()
    assert (f"AUTH PLAIN {proof}", True) in server.heard


def test_bytes_from_before_the_handshake_are_discarded(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody between us answers for the server: what they said in clear is not taken for its word."""
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    forged = (
        "220 now\r\n250-AUTH PLAIN\r\n250 forged\r\n235 forged\r\n250 forged\r\n250 forged\r\n354 forged\r\n250 forged"
    )
    answer = send_to(Server({"STARTTLS": forged, ".": "451 not now"}, certificate), tls="starttls", host="localhost")
    assert isinstance(answer, Refused), answer
    assert "forged" not in answer.reason


def test_no_mail_is_sent_without_tls_or_to_an_unknown_certificate(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stripped = Server({"EHLO": "250-me\r\n250 AUTH PLAIN"})
    answer = send_to(stripped, tls="starttls", host="localhost")
    assert isinstance(answer, Refused)
    assert "STARTTLS" in answer.reason
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    stranger = Server({}, certificate)
    answer = send_to(stranger, tls="starttls", host="localhost")
    assert isinstance(answer, Refused), answer
    assert "certificate" in answer.reason
    assert not [line for line, _ in [*stripped.heard, *stranger.heard] if line.startswith(("AUTH", "MAIL"))]


def meant(answer: Answer) -> str:
    match answer:
        case Accepted():
            return "accepted"
        case Refused(configuration=True, final=False):
            return "refuses its settings"
        case Refused(final=True):
            return "refused for good"
        case Refused():
            return "refused this time"
        case Unknown():
            return "unknown"


FINAL, THIS_TIME, NOBODY_KNOWS = "refused for good", "refused this time", "unknown"
SETTINGS = "refuses its settings"


@pytest.mark.parametrize(
    ("step", "reply", "expected"),
    [
        ("", "554 go away", FINAL),
        ("", "421 too many", THIS_TIME),
        ("", "HTTP/1.1 400", THIS_TIME),
        ("EHLO", "502 what", FINAL),
        ("EHLO", "250 no auth here", THIS_TIME),
        ("AUTH", "535 wrong", SETTINGS),
        ("AUTH", "534 too weak", SETTINGS),
        ("AUTH", "550 not here", SETTINGS),
        ("MAIL", "530 sign in first", SETTINGS),
        ("RCPT", "530 sign in first", SETTINGS),
        ("MAIL", "538 encrypt first", SETTINGS),
        (".", "530 sign in first", SETTINGS),
        ("AUTH", "454 later", THIS_TIME),
        ("MAIL", "550 not you", FINAL),
        ("MAIL", "452 full", THIS_TIME),
        ("RCPT", "550 nobody", FINAL),
        ("RCPT", "451 greylisted", THIS_TIME),
        ("DATA", "554 no", FINAL),
        ("DATA", "250 what?", THIS_TIME),
        (".", "550 spam", FINAL),
        (".", "451 later", THIS_TIME),
        (".", "354 what?", NOBODY_KNOWS),
        (".", "yes", NOBODY_KNOWS),
        (".", f"250-half{GONE}", NOBODY_KNOWS),
        (".", "2٥0 taken", NOBODY_KNOWS),
        (".", "250-" + "x" * 9000, NOBODY_KNOWS),
        (".", "", NOBODY_KNOWS),
        ("RCPT", "", THIS_TIME),
    ],
)
def test_each_reply_is_classified(step: str, reply: str, expected: str) -> None:
    answer = send_to(Server({step: reply}))
    assert meant(answer) == expected, answer
    assert PASSWORD not in repr(answer)


def test_a_server_without_authentication_needs_no_password() -> None:
    server = Server({})
    assert isinstance(send_to(server, password=False), Accepted)
    assert not [line for line, _ in server.heard if line.startswith("AUTH")]


@pytest.mark.parametrize(
    ("step", "reply", "found"),
    [
        ("AUTH", "535 wrong", "535"),
        ("MAIL", "530 sign in first", "530"),
        ("MAIL", "550 not you", "550"),
        ("", "", None),
    ],
)
def test_doctor_signs_in_and_sends_nothing(step: str, reply: str, found: str | None) -> None:
    server = Server({"RSET": "250 ok", **({step: reply} if step else {})})

    async def story() -> str | None:
        listening = await asyncio.start_server(server.talk, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        options = SmtpOptions(host="127.0.0.1", port=port, tls="off", sender=SENDER, allow=["127.0.0.1"])
        smtp = Smtp(replace(options, username="u", password=Secret(PASSWORD)), CONTRACT)
        try:
            return await reach(smtp)
        finally:
            listening.close()
            await asyncio.sleep(0)

    reason = asyncio.run(story())
    assert (reason is None) is (found is None), reason
    assert found is None or found in str(reason)
    assert PASSWORD not in str(reason)
    assert not [line for line, _ in server.heard if line.startswith(("RCPT", "DATA"))]


def test_a_failed_lease_check_before_the_mail_sends_none_of_it() -> None:
    def too_late() -> None:
        raise LeaseLost("stalled")

    server = Server({})
    with checked_by(too_late), pytest.raises(LeaseLost):
        send_to(server)
    assert server.heard[-1][0] == "DATA", "inconclusive: it did not come to the mail"
