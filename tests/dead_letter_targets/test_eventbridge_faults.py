"""A bus that refuses single entries, throttles, breaks, or is not there: what is not known to be on it is not kept."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import pytest
from tests.cli.scripted import scripted
from tests.dead_letter_targets.bus import AwsServer, Bus
from tests.dead_letter_targets.given_up import given_up
from tests.facts import rendered
from tests.support.servers.emulator import CREDENTIALS
from tests.support.servers.process import free_port

from semel import aws
from semel.dead_letter_targets import EventBridgeTarget
from semel.dead_letter_targets import eventbridge as dead_letters
from semel.testing.proxy import FaultProxy
from semel.values.claim import Settlement
from semel.values.errors import LedgerUnavailable

Say: TypeAlias = Callable[[int, list[dict[str, Any]]], bytes | None]
FOUND = {"Name": "letters", "Arn": "arn"}


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)


def reply(document: Any, status: str = "200 OK", kind: str = "application/x-amz-json-1.1") -> bytes:
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def error(code: str, status: str = "400 Bad Request") -> bytes:
    return reply({"__type": code, "message": f"{code}, as the test wants it"}, status)


def taken(put: list[dict[str, Any]], refused: dict[int, str] | None = None) -> bytes:
    """The answer to a call; `refused` has codes by position."""
    refused = refused or {}
    entries = [
        {"ErrorCode": refused[at], "ErrorMessage": "not this one"} if at in refused else {"EventId": f"event {at}"}
        for at in range(len(put))
    ]
    return reply({"FailedEntryCount": len(refused), "Entries": entries})


class Service:
    """Says what a test wants to each call, over real sockets; `calls` has the ids of the letters in each."""

    def __init__(
        self, say: Callable[[int, list[dict[str, Any]]], bytes | None], about_bus: bytes | None = None
    ) -> None:
        self._say = say
        self._about_bus = about_bus or reply(FOUND)
        self.looks = 0
        self.calls: list[list[str]] = []

    def answer(self, number: int, body: bytes) -> bytes | None:
        asked = json.loads(body)
        if "Entries" not in asked:
            self.looks += 1
            return self._about_bus
        put = asked["Entries"]
        self.calls.append([json.loads(entry["Detail"])["id"] for entry in put])
        return self._say(len(self.calls), put)


@contextmanager
def a_bus(service: Service) -> Iterator[EventBridgeTarget]:
    with scripted(service.answer) as endpoint:
        yield EventBridgeTarget(f"eventbridge://letters?region=eu-central-1&endpoint={endpoint}")


def keep(bus: EventBridgeTarget, *times: list[Settlement]) -> None:
    """In one loop, one after the other."""

    async def whole() -> None:
        try:
            for settlements in times:
                await bus.keep(settlements)
        finally:
            await bus.close()

    asyncio.run(whole())


def several(count: int) -> tuple[list[Settlement], list[str]]:
    settlements = [given_up(f"letter {number}") for number in range(count)]
    return settlements, [f"{s.lease.claim.digest.hex()}-1" for s in settlements]


def test_only_refused_entries_are_put_again() -> None:
    refusals: dict[int, dict[int, str]] = {
        1: {1: "ThrottlingException", 3: "InternalFailure"},
        2: {1: "InternalFailure"},
    }
    service = Service(lambda call, put: taken(put, refusals.get(call)))
    settlements, ids = several(5)
    with a_bus(service) as bus:
        keep(bus, settlements)
    assert service.calls == [ids, [ids[1], ids[3]], [ids[3]]]


def test_a_definite_refusal_raises_at_once() -> None:
    service = Service(lambda call, put: taken(put, {1: "NotAuthorizedForSourceException"}))
    settlements, _ = several(3)
    with a_bus(service) as bus, pytest.raises(LedgerUnavailable, match="NotAuthorizedForSourceException"):
        keep(bus, settlements)
    assert len(service.calls) == 1


def test_a_settle_that_is_retried_puts_nothing_twice() -> None:
    """The engine repeats a failed settle many times a second: the bus must not be flooded with what it has."""
    service = Service(lambda call, put: taken(put, {len(put) - 1: "InvalidArgument"} if call < 4 else None))
    settlements, ids = several(3)

    async def whole() -> None:
        for _ in range(3):
            with pytest.raises(LedgerUnavailable):
                await bus.keep(settlements)
        await bus.keep(settlements)
        await bus.keep(settlements)
        await bus.close()

    with a_bus(service) as bus:
        asyncio.run(whole())
    assert service.calls == [ids, [ids[2]], [ids[2]], [ids[2]]]


@pytest.mark.parametrize(
    "trouble",
    [
        error("ThrottlingException"),
        error("InternalException", "500 Internal Server Error"),
        reply(b"<html>bad gateway</html>", "502 Bad Gateway", "text/html"),
        reply(b"<html>log in first</html>", "200 OK", "text/html"),
        reply({"FailedEntryCount": 0, "Entries": []}),
        reply({"FailedEntryCount": 0, "Entries": [{}]}),
        reply({}),
    ],
    ids=["throttled", "fault", "gateway", "captive portal", "no entries", "no id", "nothing"],
)
def test_a_request_with_an_unknown_result_is_retried(trouble: bytes) -> None:
    service = Service(lambda call, put: trouble if call < 3 else taken(put))
    with a_bus(service) as bus:
        keep(bus, [given_up()])
    assert len(service.calls) == 3


def test_a_bus_that_always_throttles_raises_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DEADLINE_S", 0.5)
    service = Service(lambda call, put: error("ThrottlingException"))
    begun = time.monotonic()
    with a_bus(service) as bus, pytest.raises(LedgerUnavailable, match="ThrottlingException"):
        keep(bus, [given_up()])
    assert time.monotonic() - begun < 10, "it does not go on for long after its deadline of 0.5 s"
    assert len(service.calls) > 1


@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_a_missing_permission_to_put_is_reported(code: str) -> None:
    service = Service(lambda call, put: error(code))
    with a_bus(service) as bus, pytest.raises(LedgerUnavailable, match=f"{code}.*events:PutEvents"):
        keep(bus, [given_up()])
    assert len(service.calls) == 1


def test_a_bus_that_does_not_exist_is_refused() -> None:
    """EventBridge itself says yes to letters for a bus that is not there, and drops them."""
    service = Service(lambda call, put: taken(put), error("ResourceNotFoundException"))
    with a_bus(service) as bus, pytest.raises(LedgerUnavailable, match=re.escape(dead_letters.NO_BUS)):
        keep(bus, [given_up()])
    assert service.looks == 1
    assert service.calls == []


def test_without_permission_to_describe_the_bus_entries_are_put(caplog: pytest.LogCaptureFixture) -> None:
    service = Service(lambda call, put: taken(put), error("AccessDeniedException"))
    with a_bus(service) as bus:
        keep(bus, [given_up("one")], [given_up("two")])
    assert (service.looks, len(service.calls)) == (1, 2)
    assert caplog.text.count("event_bus_unchecked") == 1


def test_a_bus_check_that_failed_is_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "BUS_RECHECK_S", 0.0)
    service = Service(lambda call, put: taken(put), error("ThrottlingException"))
    with a_bus(service) as bus:
        keep(bus, [given_up("one")], [given_up("two")])
    assert (service.looks, len(service.calls)) == (2, 2)


def test_a_response_of_another_server_is_not_a_bus() -> None:
    """Of a proxy, say: doctor must not call it well."""
    service = Service(lambda call, put: taken(put), reply(b"<html>log in first</html>", kind="text/html"))

    async def facts() -> dict[str, str]:
        try:
            return rendered(await bus.diagnose())
        finally:
            await bus.close()

    with a_bus(service) as bus:
        readable = asyncio.run(facts())["readable"]
    assert readable.startswith("error:")
    assert "text/html" in readable
    assert service.looks == 1


def test_an_unreachable_endpoint_raises_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "DEADLINE_S", 0.5)
    bus = EventBridgeTarget(f"eventbridge://letters?region=eu-central-1&endpoint=http://127.0.0.1:{free_port()}")
    with pytest.raises(LedgerUnavailable, match=r"127\.0\.0\.1"):
        keep(bus, [given_up()])


def test_without_credentials_nothing_is_put_and_the_error_names_the_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path_factory.mktemp("none") / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path_factory.mktemp("none") / "config"))
    service = Service(lambda call, put: taken(put))
    with a_bus(service) as bus, pytest.raises(LedgerUnavailable, match="NoCredentialsError"):
        keep(bus, [given_up()])
    assert service.calls == []


def test_after_a_lost_reply_the_entry_is_put_again_with_the_same_id(server: AwsServer, bus: Bus) -> None:
    """At least once: the reply is lost on the way, and what the bus has then comes twice."""
    with FaultProxy("127.0.0.1", server.port) as proxy:
        dead_letter_store = EventBridgeTarget(bus.url(f"http://127.0.0.1:{proxy.port}"))

        async def whole() -> None:
            await dead_letter_store.keep([given_up("before")])
            proxy.lose("reply")
            await dead_letter_store.keep([given_up("lost")])
            await dead_letter_store.close()

        asyncio.run(whole())
        assert proxy.seen.lost_replies == 1, "inconclusive: no reply was lost"
    first, *copies = [dead_letter["id"] for dead_letter in bus.arrived(3)]
    assert first != copies[0]
    assert len(set(copies)) == 1


def test_clients_that_found_no_credentials_are_closed_and_not_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of whoever gives credentials may last for days, and a client is made every few seconds."""
    monkeypatch.setattr(aws, "REOPEN_S", 0.0)
    for name in CREDENTIALS:
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, "/nowhere")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")

    async def story() -> None:
        client = EventBridgeTarget("eventbridge://letters?region=eu-central-1")._client
        for _ in range(4):
            with pytest.raises(aws.AwsError, match="NoCredentials"):
                await client.ask("describe_event_bus", Name="letters")
        assert len(client._stack._exit_callbacks) <= 1, "all of them are still open"  # type: ignore[attr-defined]
        await client.close()

    asyncio.run(story())
