"""rediss://: the server's certificate is checked, unless the URL says otherwise."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from tests.support.servers.process import NoServer, not_here
from tests.support.servers.valkey import Valkey

from semel.ledgers.redis import RedisLedger
from semel.testing.harness import Caller, Harness
from semel.values.claim import Busy
from semel.values.errors import LedgerUnavailable


def write_certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate of its own authority, for loopback."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    cert_file, key_file = folder / f"{name}.crt", folder / f"{name}.key"
    cert_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


class Terminator:
    """TLS in front of a server, as stunnel does it: the servers that tests bring are built without."""

    def __init__(self, server: Valkey, cert: Path, key: Path) -> None:
        self._server = server
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(cert, key)
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever)
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _listen(self) -> int:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port: int = self._listener.sockets[0].getsockname()[1]
        return port

    async def _end(self) -> None:
        self._listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The handshake is part of this task, so that `_end` also closes a connection whose handshake fails."""
        server_writer = None
        try:
            await writer.start_tls(self._context)
            server_reader, server_writer = await asyncio.open_connection(self._server.host, self._server.port)
            await asyncio.gather(_pump(reader, server_writer), _pump(server_reader, writer))
        except OSError:
            pass  # the client does not trust the certificate
        finally:
            for stream in (server_writer, writer):
                if stream is not None:
                    stream.transport.abort()


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await source.read(1 << 16):
            sink.write(data)
    sink.close()


@pytest.fixture
def tls(tmp_path: Path) -> Iterator[tuple[str, Path, Path]]:
    """The URL of a server, its authority and a foreign one."""
    cert, key = write_certificate(tmp_path, "server")
    foreign, _ = write_certificate(tmp_path, "foreign")
    try:
        server = Valkey(tmp_path / "data")
        server.start()
    except NoServer as error:
        not_here(error)
    terminator = Terminator(server, cert, key)
    yield f"rediss://127.0.0.1:{terminator.port}", cert, foreign
    terminator.close()
    server.kill()


def test_a_trusted_certificate_is_accepted(tls: tuple[str, Path, Path]) -> None:
    url, authority, _ = tls
    harness = Harness(open=lambda: pytest.fail("opened below"), unit_ms=60_000)
    with Caller(lambda: RedisLedger.from_url(f"{url}?ca={authority}&timeout=30")) as ledger:
        ledger.grant(harness.claim("a"))
    with Caller(lambda: RedisLedger.from_url(f"{url}?verify=none&timeout=30")) as ledger:
        assert isinstance(ledger.claim(harness.claim("a")), Busy)


def test_another_certificate_is_refused(tls: tuple[str, Path, Path]) -> None:
    url, _, foreign = tls
    harness = Harness(open=lambda: pytest.fail("opened below"))
    for trusted in (f"?ca={foreign}&timeout=1", "?timeout=1"):
        with Caller(lambda: RedisLedger.from_url(url + trusted)) as ledger:  # noqa: B023
            with pytest.raises(LedgerUnavailable, match="certificate"):
                ledger.claim(harness.claim("a"))
