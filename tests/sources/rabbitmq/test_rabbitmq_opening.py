"""How a source is opened: what is made, what is refused, what `semel doctor` is told, and TLS."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from tests.facts import rendered
from tests.sources.rabbitmq.places import Place

from semel.ports import Stoppable
from semel.sources.rabbitmq_queue import RabbitSource
from semel.testing.laws.source_harness import SOON_S, document
from semel.testing.laws.sources import received
from semel.values.errors import ConfigError

MANUAL = Path(__file__).parents[3] / "docs" / "rabbitmq.md"


def run(story: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(story())


async def refused(source: RabbitSource) -> str:
    with pytest.raises(ConfigError) as error:
        await asyncio.wait_for(source.receive(1), SOON_S)
    await source.close()
    assert "test-password" not in str(error.value)
    return str(error.value)


def test_it_is_a_stoppable_source(place: Place) -> None:
    assert isinstance(place.source(), Stoppable)


def test_missing_queues_are_reported_or_created_with_declare(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)

    async def story() -> None:
        assert "declare" in await refused(place.source())
        source = place.source(declare=True)
        waiting = asyncio.ensure_future(source.receive(1))
        while not source._opened:
            await asyncio.sleep(0.01)
            assert not waiting.done(), await waiting
        await asyncio.to_thread(place.send, [document("e")])
        (delivery,) = await asyncio.wait_for(waiting, SOON_S)
        await delivery.reject("no")
        await source.close()
        again = place.source(declare=True)  # what is there already is fine
        fact = rendered(await again.diagnose())["dead letters"]
        assert (fact.split()[0], place.dead in fact) == ("1", True)
        await asyncio.to_thread(place.send, [document("f")])
        (delivery,) = await asyncio.wait_for(again.receive(1), SOON_S)
        await delivery.ack()
        await again.close()
        assert place.left() == 0

    run(story)


def test_a_queue_with_other_arguments_is_refused(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)
    place.declare(**{"x-delivery-limit": 7})

    async def story() -> None:
        assert "declare" in await refused(place.source(declare=True))

    run(story)


def test_a_wrong_password_or_vhost_is_reported_at_once(place: Place) -> None:
    parts = urlsplit(place.broker.url)
    wrong = parts._replace(netloc=f"nobody:test-password-2@{parts.hostname}:{parts.port}").geturl()

    async def story() -> None:
        assert "password" in await refused(place.source(url=wrong))
        assert "vhost" in await refused(place.source(url=parts._replace(path="/elsewhere").geturl()))

    run(story)


def test_another_receive_may_try_again_and_a_stop_ends_an_opening(new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)

    async def story() -> None:
        source = place.source()
        with pytest.raises(ConfigError):
            await source.receive(1)
        await asyncio.to_thread(place.declare)
        await asyncio.to_thread(place.send, [document("e")])
        (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
        await delivery.ack()
        await source.close()
        nowhere = place.source(url="amqp://a:b@127.0.0.1:1/")
        waiting = asyncio.ensure_future(nowhere.receive(1))
        await asyncio.sleep(0.1)
        nowhere.stop()
        assert list(await asyncio.wait_for(waiting, SOON_S)) == []
        await nowhere.close()

    run(story)


def test_doctor_shows_the_type_of_the_queue(new_place: Callable[..., Place]) -> None:
    place, classic = new_place(), new_place(declared=False)

    async def declare() -> None:
        channel = await classic.client.channel()
        await channel.queue_declare(classic.queue, durable=False)
        await channel.close()

    classic.client.run(declare())
    place.send([document("e")])

    async def story() -> None:
        good = rendered(await place.source(forwarded=True).diagnose())
        assert (good["queue"], good["waiting"]) == (place.queue, "1")
        assert (good["dead letters"].split()[0], place.dead in good["dead letters"]) == ("0", True)
        assert not [value for value in good.values() if value.startswith(("error", "warning"))]
        bad = rendered(await classic.source().diagnose())
        assert bad["kind"].startswith("warning: ")
        assert "durable" in bad["kind"]
        assert bad["dead letters"].startswith("error: ")
        nowhere = await classic.source(url="amqp://a:b@127.0.0.1:1/").diagnose()
        assert nowhere[-1].level == "error"
        assert all("test-password" not in value for facts in (good, bad) for value in facts.values())

    run(story)


# ------------------------------------------------------------------------------------------------------------- TLS


@asynccontextmanager
async def behind_tls(url: str, folder: Path) -> AsyncIterator[str]:
    """The broker, behind a certificate of our own. Yields its amqps URL."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "broker")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    secret = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(key.private_bytes(serialization.Encoding.PEM, *secret))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(folder / "ca.pem", folder / "key.pem")
    parts = urlsplit(url)
    under_way: set[asyncio.Task[None]] = set()

    async def copy(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65_536):
                to.write(data)
                await to.drain()
        except OSError:
            pass
        finally:
            to.close()

    async def serve(from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        from_broker, to_broker = await asyncio.open_connection(parts.hostname, parts.port or 5672)
        for work in (copy(from_client, to_broker), copy(from_broker, client)):
            task = asyncio.ensure_future(work)
            under_way.add(task)
            task.add_done_callback(under_way.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    try:
        yield parts._replace(scheme="amqps", netloc=f"{parts.username}:{parts.password}@127.0.0.1:{port}").geturl()
    finally:
        server.close()
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


def test_a_broker_behind_tls_is_verified(place: Place, tmp_path: Path) -> None:
    async def story() -> None:
        place.send([document("e")])
        async with behind_tls(place.broker.url, tmp_path) as url:
            source = place.source(url=f"{url}?cafile={tmp_path}/ca.pem")
            (delivery,) = await asyncio.wait_for(source.receive(1), SOON_S)
            await delivery.ack()
            await source.close()
            assert "certificate" in await refused(place.source(url=url)), "a stranger's is not trusted"
            with pytest.raises(ConfigError, match=r"nowhere\.pem"):
                place.source(url=f"{url}?cafile={tmp_path}/nowhere.pem")
        assert place.left() == 0

    run(story)


# ----------------------------------------------------------------------------------------------------- permissions


def test_the_permissions_that_the_manual_names_are_enough_and_not_too_many(place: Place) -> None:
    if not place.broker.is_ours:
        pytest.skip("a given broker's users are somebody else's")
    granted = re.findall(r"^\| (configure|write|read) \| `(\S+)` \|", MANUAL.read_text("utf-8"), re.MULTILINE)
    patterns = {name: text.replace("\\|", "|").replace("events", place.queue) for name, text in granted}
    user = f"user-{place.queue}"
    in_erlang = ", ".join('<<"' + pattern.replace("\\", "\\\\") + '">>' for pattern in patterns.values())
    place.broker.evaluate(
        f'rabbit_auth_backend_internal:add_user(<<"{user}">>, <<"test-password">>, <<"test">>), '
        f'rabbit_auth_backend_internal:set_permissions(<<"{user}">>, <<"/">>, {in_erlang}, <<"test">>)'
    )
    parts = urlsplit(place.broker.url)
    url = parts._replace(netloc=f"{user}:test-password@{parts.hostname}:{parts.port}").geturl()

    async def story() -> None:
        place.send([document("later"), b"{", document("done")])
        source = place.source(url=url)
        for delivery in await received(source, 3):
            match delivery.body:
                case b"{":
                    await delivery.reject("no event")
                case body if body == document("later"):
                    await delivery.retry(2.5)  # in a queue that is not there yet
                case _:
                    await delivery.ack()
        (again,) = await asyncio.wait_for(source.receive(1), SOON_S)
        await again.ack()
        await source.close()
        assert (source.counts.waited_in_memory, source.counts.waited, source.counts.dead_letters) == (0, 1, 1)
        assert "access" in (await refused(place.source(url=url, declare=True))).lower()

    run(story)
    assert place.left() == 0
    place.broker.evaluate(f'rabbit_auth_backend_internal:delete_user(<<"{user}">>, <<"test">>)')
