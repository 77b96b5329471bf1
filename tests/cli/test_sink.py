"""The counting sink, over real sockets and in its own process."""

from __future__ import annotations

import http.client
import json
import signal
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import pytest
from tests.cli.command import MAIN, a_sink, get, running, semel

from semel.cli.sink import PAGE_LINES, Effects, identity, mark
from semel.testing.traffic import Traffic

traffic = Traffic(1)


class Sender:
    """Sends each request over its own connection, because the sink may close it."""

    def __init__(self, url: str) -> None:
        self._at = urlsplit(url).netloc

    def post(self, body: bytes, key: str | None = None, path: str = "/") -> tuple[int, str]:
        headers = {} if key is None else {"Idempotency-Key": key}
        with closing(http.client.HTTPConnection(self._at, timeout=30)) as connection:
            try:
                connection.request("POST", path, body, headers)
                answer = connection.getresponse()
                return answer.status, json.loads(answer.read())["status"]
            except (http.client.RemoteDisconnected, ConnectionError):
                return 0, "closed"


@pytest.fixture(scope="module")
def keyed() -> Iterator[str]:
    with a_sink() as url:
        yield url


@pytest.fixture(scope="module")
def plain() -> Iterator[str]:
    with a_sink("--plain") as url:
        yield url


def test_a_repeated_key_has_no_second_effect(keyed: str) -> None:
    sender = Sender(keyed)
    sender.post(b"", path="/reset")
    responses = [sender.post(traffic.body(at), key=f"k{at}", path="/hook") for at in (0, 1, 0, 0)]
    assert responses == [(200, "taken"), (200, "taken"), (200, "repeated"), (200, "repeated")]
    counts = get(f"{keyed}/counts")
    assert (counts["effects"], counts["distinct"], counts["repeats"], counts["doubled"]) == (2, 2, 2, [])


def test_another_key_is_another_effect_and_the_doubled_event_is_listed(keyed: str) -> None:
    sender = Sender(keyed)
    sender.post(b"", path="/reset")
    for key in ("a", "b", "c"):
        sender.post(traffic.body(0), key=key)
    counts = get(f"{keyed}/counts")
    assert (counts["effects"], counts["distinct"], counts["doubled_events"]) == (3, 1, 1)
    assert counts["doubled"] == [traffic.identity(0)]


def test_a_key_that_comes_with_another_event_is_refused_and_counted(keyed: str) -> None:
    sender = Sender(keyed)
    sender.post(b"", path="/reset")
    assert sender.post(traffic.body(0), key="a")[0] == 200
    assert sender.post(traffic.body(1), key="a")[0] == 422
    assert get(f"{keyed}/counts")["conflicts"] == 1


@pytest.mark.parametrize(("body", "key"), [(b"{}", None), (b"not JSON", "k"), (b"", "k"), (b"\xff", "k")])
def test_a_request_without_a_key_or_a_json_object_is_refused(keyed: str, body: bytes, key: str | None) -> None:
    sender = Sender(keyed)
    sender.post(b"", path="/reset")
    assert sender.post(body, key)[0] == 400
    counts = get(f"{keyed}/counts")
    assert (counts["effects"], counts["refused"]) == (0, 1)


def test_in_plain_mode_each_post_is_an_effect(plain: str) -> None:
    sender = Sender(plain)
    sender.post(b"", path="/reset")
    assert [sender.post(traffic.body(0), key="k") for _ in range(3)] == [(200, "taken")] * 3
    assert sender.post(traffic.body(1)) == (200, "taken")
    counts = get(f"{plain}/counts")
    assert (counts["effects"], counts["distinct"], counts["doubled_events"]) == (4, 2, 1)


def test_every_event_has_a_line(plain: str) -> None:
    sender = Sender(plain)
    sender.post(b"", path="/reset")
    for at in (0, 1, 1):
        sender.post(traffic.body(at))
    connection = http.client.HTTPConnection(urlsplit(plain).netloc, timeout=30)

    def page(query: str) -> tuple[int, list[str]]:
        connection.request("GET", f"/counts/ids{query}")
        answer = connection.getresponse()
        return answer.status, answer.read().decode().splitlines()

    lines = [f"{mark(traffic.identity(at)).hex()} {count}" for at, count in ((0, 1), (1, 2))]
    assert page("") == (200, lines)
    assert page("?from=1") == (200, lines[1:])
    assert page("?from=2") == (200, [])
    assert page("?from=-1")[0] == page("?from=x")[0] == 400
    connection.close()


def test_the_list_of_events_has_pages() -> None:
    effects = Effects(keyed=False)
    for number in range(2 * PAGE_LINES + 5):
        effects.add("", mark(str(number)), str(number))
    pages = [effects.page(first).splitlines() for first in range(0, 4 * PAGE_LINES, PAGE_LINES)]
    assert [len(page) for page in pages] == [PAGE_LINES, PAGE_LINES, 5, 0]
    assert len({line for page in pages for line in page}) == 2 * PAGE_LINES + 5
    assert max(len(effects.page(0)), 1) < 1_000_000


def test_faults_are_injected_at_their_rate_and_counted() -> None:
    with a_sink("--plain", "--fail", "0.3", "--drop", "0.3", "--seed", "5") as url:
        sender = Sender(url)
        responses = [sender.post(traffic.body(at))[0] for at in range(200)]
        counts = get(f"{url}/counts")
    assert 30 < responses.count(500) < 90, "answered 500, without an effect"
    assert 20 < responses.count(0) < 80, "the effect happened, without a response"
    assert counts["effects"] == counts["distinct"] == responses.count(200) + responses.count(0)
    assert counts["faults"] == responses.count(500) + responses.count(0)


def test_the_sink_is_down_once_for_the_given_time() -> None:
    with a_sink("--plain", "--down-after", "3", "--down-for", "0.5") as url:
        sender = Sender(url)
        responses = [sender.post(traffic.body(at))[0] for at in range(5)]
        while sender.post(traffic.body(9))[0] == 0:
            assert get(f"{url}/counts")["effects"] == 3, "counts are available while it is down"
        after = [sender.post(traffic.body(at))[0] for at in range(10, 15)]
    assert responses == [200, 200, 200, 0, 0]
    assert after == [200] * 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_sink_without_output(number: signal.Signals) -> None:
    with running(MAIN, "sink", "--drop", "1") as (process, url):
        assert url.startswith("http://127.0.0.1:")
        assert Sender(url).post(traffic.body(0), key="k") == (0, "closed")
        process.send_signal(number)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out, err) == (0, "", "")


def test_a_port_in_use_is_reported() -> None:
    with a_sink() as url:
        ended = semel("sink", "--port", url.rpartition(":")[2])
    assert ended.code == 2
    assert urlsplit(url).netloc in ended.err


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b'{"id":"a","type":"t"}', "a"),
        (b'{"id":7,"type":"t"}', "7"),
        (b'{"detail":{"eventId":"e"},"id":"transport"}', "e"),
        (b'{"detail":{"id":"d"},"id":"transport"}', "d"),
        (b'{"topicName":"t","eventBody":{"participantId":"p","sessionId":"s","eventTime":1}}', "t|p|s|1"),
        (b'{"detail":{"topicName":"t","eventBody":{"participantId":"p","sessionId":"s","eventTime":1}}}', "t|p|s|1"),
    ],
)
def test_the_identity_of_an_event_is_in_its_body(body: bytes, expected: str) -> None:
    assert identity(body) == expected


def test_an_event_without_an_identity_is_identified_by_its_content() -> None:
    bodies = (b'{"topicName":"t","eventBody":{}}', b'{"x":1}', b'{"x":2}', b"[1]", b'{"detail":"text"}')
    names = {identity(body) for body in bodies}
    assert len(names) == 5
    assert all(name.startswith("content ") for name in names)
