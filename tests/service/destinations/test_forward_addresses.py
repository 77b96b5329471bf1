"""Destinations that lead into our own network are refused before a connection is made, in every spelling."""

from __future__ import annotations

import asyncio
import re
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Any, TypeVar

import pytest
from tests.service.destinations.servers import EVENT, Ctx, Raw, opened, outcome_of, raw, run, saying, until

from semel.destinations import Forward
from semel.http_client.client import Answered, Client, Unsent
from semel.http_client.resolver import ServerAddress, server_address
from semel.values.errors import ConfigError
from semel.values.outcome import Retry

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"


def run_on_uvloop(story: Coroutine[Any, Any, T]) -> T:
    uvloop = pytest.importorskip("uvloop")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story)


both_loops = pytest.mark.parametrize("run_it", [run, run_on_uvloop], ids=["asyncio", "uvloop"])

LEADS_TO_LOOPBACK = [
    *("127.0.0.1", "127.0.0.2", "0.0.0.0", "localhost", "LOCALHOST", "localhost."),
    *("2130706433", "0177.0.0.1", "0177.1", "0x7f.1", "0x7f.0.0.1", "0x7f000001", "127.1", "127.0.1", "017700000001"),
    *("0", "127.0.0.1.", "127.0.0.1..", "00000177.0.0.1", "127.000.000.001"),
    *("[::1]", "[0:0:0:0:0:0:0:1]", "[::1%lo]", "[::1%25lo]", "[::]"),
    *("[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[0:0:0:0:0:ffff:127.0.0.1]", "[::127.0.0.1]", "[::ffff:0:127.0.0.1]"),
    *("[64:ff9b::127.0.0.1]", "[64:ff9b:1::127.0.0.1]", "[2002:7f00:1::]", "[2001:0:7f00:1::]"),
    *("１２７.0.0.1", "127。0。0。1", "①②⑦.0.0.1", "ⓛocalhost", "loc\u00adalhost", "localhost\u3002"),
    *("127.0.0.1\t", "127.0.0.1%00", "%31%32%37.0.0.1", "a@127.0.0.1", "127.0.0.1\\", "example.com\\@127.0.0.1"),
    *("127.0.0.1#@example.com", "127.0.0.1?@example.com", "[::1]\u3000", "127.0.0.1:80@localhost"),
]


@pytest.mark.parametrize("host", LEADS_TO_LOOPBACK)
def test_no_spelling_of_loopback_gets_a_connection(host: str) -> None:
    async def story() -> tuple[str, int]:
        async with raw(saying(OK)) as server:
            try:
                async with opened(f"http://{host}:{server.port}/", allow=[], timeout_s=5) as crm:
                    came_to = await outcome_of(Forward(crm))
                    assert isinstance(came_to, Retry), came_to
                    return came_to.reason, server.connections
            except ConfigError as error:
                return str(error), server.connections

    reason, connections = run(story())
    assert connections == 0
    assert "crm" in reason


@pytest.mark.parametrize("host", LEADS_TO_LOOPBACK)
def test_the_resolver_and_the_socket_refuse_an_address_on_their_own(host: str) -> None:
    """Without `server_address`: the resolver and the socket stand alone."""

    async def story() -> tuple[Any, int]:
        async with raw(saying(OK)) as server:
            url = f"http://{host}:{server.port}/"
            client = Client(ServerAddress(host.strip("[]"), server.port, False), allow=[], timeout_s=5)
            try:
                answer: Any = await client.ask(url, b"{}", {})
            finally:
                await client.close()
            return answer, server.connections

    answer, connections = run(story())
    assert connections == 0
    assert isinstance(answer, Unsent)


@both_loops
@pytest.mark.parametrize(
    ("host", "allow"),
    [
        ("127.0.0.1", ["127.0.0.1"]),
        ("127.0.0.1", ["127.0.0.0/8"]),
        ("localhost", ["localhost"]),
        ("localhost", ["127.0.0.0/8"]),
        ("LocalHost", ["LOCALHOST."]),
        ("[::ffff:127.0.0.1]", ["127.0.0.1"]),
    ],
)
def test_an_allowed_private_address_is_called(run_it: Callable[..., Any], host: str, allow: list[str]) -> None:
    """The control: the same listener, and the same way to it."""

    async def story() -> tuple[Any, int]:
        async with (
            raw(saying(OK)) as server,
            opened(f"http://{host}:{server.port}/", allow=allow) as crm,
        ):
            return await outcome_of(Forward(crm)), server.connections

    assert run_it(story()) == ({"status": 200}, 1)


@both_loops
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
def test_both_limits_hold_on_both_loops(run_it: Callable[..., Any], host: str) -> None:
    async def story() -> tuple[Any, int]:
        async with (
            raw(saying(OK)) as server,
            opened(f"http://{host}:{server.port}/", allow=["10.0.0.0/8", "elsewhere"]) as crm,
        ):
            return await outcome_of(Forward(crm)), server.connections

    came_to, connections = run_it(story())
    assert isinstance(came_to, Retry)
    assert "loopback" in came_to.reason
    assert f'allow = ["{host.strip("[]")}"]' in came_to.reason
    assert connections == 0


@pytest.mark.parametrize("host", ["2130706433", "0177.0.0.1", "0x7f.1", "127.1"])
def test_an_odd_spelling_of_an_address_is_refused_with_the_usual_one(host: str) -> None:
    assert socket.getaddrinfo(host, 80)[0][4][0] == "127.0.0.1", "this C library reads it differently: no test"
    with pytest.raises(ConfigError, match=rf"{re.escape(host)}.*127\.0\.0\.1"):
        server_address("crm", f"http://{host}/")


@pytest.mark.parametrize(
    ("url", "named"),
    [
        ("ftp://example.com/", "https://"),
        ("example.com/in", "https://"),
        ("", "https://"),
        ("https://", "host"),
        ("https:///in", "host"),
        ("https://münchen.example/", "xn--"),
        ("https://user:hunter2@example.com/", "password"),
        ("https://user@example.com/hunter2", "password"),
        ("https://example.com:99999/hunter2", "port"),
        ("https://example.com:0/hunter2", "port 0"),
        ("https://[::1/hunter2", "brackets"),
        ("https://exa mple.com/hunter2", "space"),
        ("https://example.com\n/hunter2", "print"),
        ("https://example.com\\hunter2", "backslash"),
    ],
)
def test_a_url_that_cannot_be_called_is_a_configuration_error_that_does_not_show_it(url: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        server_address("crm", url)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("https://api.example.com/in", ServerAddress("api.example.com", 443, True)),
        ("http://API.example.com:8080", ServerAddress("api.example.com", 8080, False)),
        ("https://[2606:4700::1]:8443/", ServerAddress("2606:4700::1", 8443, True)),
        ("https://xn--mnchen-3ya.example/", ServerAddress("xn--mnchen-3ya.example", 443, True)),
        ("https://8.8.8.8/ü?q=%2F", ServerAddress("8.8.8.8", 443, True)),
    ],
)
def test_an_ordinary_url_has_its_place(url: str, place: ServerAddress) -> None:
    assert server_address("crm", url) == place


# --------------------------------------------------------------------------------------------- answers of DNS


@contextmanager
def dns(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> Iterator[list[str]]:
    """A name server of our own for *.test: one answer for each time it is asked, the last one for ever. What it was
    asked is handed out."""
    real = socket.getaddrinfo
    asked: list[str] = []

    def getaddrinfo(host: str, port: int, *args: Any, **kwargs: Any) -> Any:
        if not str(host).endswith(".test"):
            return real(host, port, *args, **kwargs)
        asked.append(host)
        addresses = answers[min(len(asked), len(answers)) - 1]
        return [one for address in addresses for one in real(address, port, *args, **kwargs)]

    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", getaddrinfo)
        yield asked


async def post(server: Raw, allow: list[str]) -> Any:
    place = ServerAddress("crm.test", server.port, False)
    client = Client(place, allow, timeout_s=5)
    try:
        return await client.ask(f"http://crm.test:{server.port}/", b"{}", {})
    finally:
        await client.close()


@both_loops
def test_only_the_addresses_that_may_be_called_are_used(
    run_it: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 127.0.0.1 and 127.0.0.2 one is allowed. Were the other not taken out, it would be tried first."""

    async def story() -> tuple[Any, list[str], int]:
        async with raw(saying(OK)) as server:
            with dns(monkeypatch, ["127.0.0.2", "169.254.169.254", "10.0.0.1", "127.0.0.1"]) as asked:
                return await post(server, ["127.0.0.1/32"]), asked, server.connections

    answer, asked, connections = run_it(story())
    assert isinstance(answer, Answered)
    assert (answer.status, answer.body) == (200, b"")
    assert asked == ["crm.test"], "it was resolved again between the check and the connection"
    assert connections == 1


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "::1", "fd00:ec2::254", "0.0.0.0"])
def test_a_name_that_resolves_to_a_private_address_is_refused_with_that_address(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    async def story() -> tuple[Any, int]:
        async with raw(saying(OK)) as server:
            with dns(monkeypatch, [address]) as asked:
                answer = await post(server, ["other.test"])
            assert asked == ["crm.test"], "the fault has not landed"
            return answer, server.connections

    answer, connections = run(story())
    assert isinstance(answer, Unsent)
    assert answer.why.startswith(f"{address} is ")
    assert connections == 0


def test_a_name_that_changes_its_answer_is_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> tuple[list[Any], list[str], int]:
        async with raw(saying(OK)) as server:
            with dns(monkeypatch, ["127.0.0.1"], ["127.0.0.2"]) as asked:
                answers = [await post(server, ["127.0.0.1"]) for _ in range(2)]
            return answers, asked, server.connections

    (first, second), asked, connections = run(story())
    assert isinstance(first, Answered)
    assert (first.status, first.body) == (200, b"")
    assert isinstance(second, Unsent)
    assert all(part in second.why for part in ("127.0.0.2", "loopback"))
    assert (len(asked), connections) == (2, 1)


def test_a_name_without_addresses_or_with_impossible_labels_is_not_called() -> None:
    async def story(host: str) -> Any:
        async with opened(f"http://{host}/", timeout_s=5) as crm:
            return await Forward(crm)(EVENT, Ctx())

    for host in ("a" * 64 + ".example", "a..example", "-.", "."):
        with pytest.raises((Retry, ConfigError)):
            run(story(host))


def test_a_name_server_that_hangs_holds_up_its_own_destinations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many of them as any pool of threads would have threads."""
    hanging, go_on = threading.Semaphore(0), threading.Event()
    real = socket.getaddrinfo

    def getaddrinfo(host: str, *args: Any, **kwargs: Any) -> Any:
        if host.startswith("hangs"):
            hanging.release()
            go_on.wait(30)
        return real("127.0.0.1" if host.endswith(".test") else host, *args, **kwargs)

    async def story() -> Any:
        async with raw(saying(OK)) as server, AsyncExitStack() as stack:
            dead = [
                await stack.enter_async_context(opened(f"http://hangs-{n}.test:{server.port}/", timeout_s=60))
                for n in range(40)
            ]
            alive = await stack.enter_async_context(opened(f"http://works.test:{server.port}/", allow=["works.test"]))
            waiting = [asyncio.create_task(outcome_of(Forward(one))) for one in dead * 3]
            for _ in dead:
                await until(lambda: hanging.acquire(blocking=False))
            came_to = await outcome_of(Forward(alive))
            assert not any(task.done() for task in waiting)
            assert not hanging.acquire(blocking=False), "a host was asked for more than once at a time"
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
            return came_to

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    try:
        assert run(story()) == {"status": 200}
    finally:
        go_on.set()


def test_a_name_that_leads_to_the_metadata_service_is_refused_though_it_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """DNS answers with another address than the person had in mind."""
    metadata = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("169.254.169.254", 80))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: metadata)

    async def story() -> object:
        client = Client(server_address("crm", "http://crm.internal/"), ["crm.internal"], 2.0)
        try:
            return await client.ask("http://crm.internal/", b"{}", {})
        finally:
            await client.close()

    answer = run(story())
    assert isinstance(answer, Unsent)
    assert "169.254.169.254" in answer.why
