"""`semel storm` against small services: a correct one, and ones that lose, double, refuse and restart."""

from __future__ import annotations

import itertools
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args
from urllib.request import Request, urlopen

import pytest
from tests.cli.command import MAIN, Ended, a_sink, get, running, semel, started
from tests.cli.scripted import answering, scripted
from tests.cli.service_process import EVERY
from tests.wording import lacks

from semel.cli import storm_check
from semel.cli.storm import SchemeName, ShapeName
from semel.cli.storm_load import Scheme
from semel.settings.loading import load
from semel.testing.shapes import SHAPES

EVENTS = 400
LOST = EVENTS // EVERY
LANDED_S = 60


@contextmanager
def a_service(sink: str, folder: Path, fault: str = "none", port: int = 0) -> Iterator[tuple[Any, str]]:
    with running("tests.cli.service_process", str(port), sink, str(folder / "journal"), fault) as service:
        yield service


def storm(url: str, sink: str, *options: str, settle: str = "30") -> Ended:
    return semel("storm", url, "--check", sink, "--events", str(EVENTS), "--settle", settle, "--json", *options)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm_check, "QUIET_S", 0.2)


def test_a_correct_service_passes_with_every_shape(tmp_path: Path) -> None:
    with a_sink() as sink, a_service(sink, tmp_path) as (_, url):
        for seed, shape in enumerate(SHAPES):
            ended = storm(url, sink, "--shape", shape, "--burst", "--seed", str(seed))
            urlopen(f"{sink}/reset", data=b"", timeout=10).close()
            assert ended.code == 0, ended.out
            each_had_its_effect_once(ended.json, shape)


def each_had_its_effect_once(report: Any, shape: str) -> None:
    assert report["holds"] is True
    assert report["shape"] == shape
    assert (report["sent"], report["unique"]) == (1.3 * EVENTS, EVENTS)
    assert report["redeliveries"] + report["producer_retries"] == 0.3 * EVENTS
    assert report["statuses"]["processed"] == EVENTS
    assert report["statuses"]["duplicate"] == 0.3 * EVENTS
    assert report["answers"]["200"] == 1.3 * EVENTS
    assert report["check"]["effects"] == report["check"]["distinct"] == EVENTS
    assert 0 < report["p50_ms"] <= report["p99_ms"] <= report["max_ms"]


@pytest.mark.long
def test_lost_effects_are_detected(tmp_path: Path) -> None:
    with a_sink() as sink, a_service(sink, tmp_path, "lose") as (_, url):
        ended = storm(url, sink, settle="1")
        people = semel("storm", url, "--check", sink, "--events", "100", "--settle", "1")
    check = ended.json["check"]
    assert ended.code == 1
    assert ended.json["holds"] is False
    assert (check["lost"], check["doubled"]) == (LOST, 0)
    assert len(check["lost_ids"]) == 10
    assert check["lost_ids"][0].startswith("v2.detail.events.conversation.")
    assert people.code == 1
    assert lacks(people.out, "5 lost 0 doubled") == []
    assert people.out.count("lost: v2.detail.events.conversation.") == 5


@pytest.mark.long
def test_doubled_effects_are_detected(tmp_path: Path) -> None:
    with a_sink() as sink, a_service(sink, tmp_path, "double") as (_, url):
        ended = storm(url, sink)
    check = ended.json["check"]
    assert ended.code == 1
    assert (check["lost"], check["doubled"], check["effects"]) == (0, LOST, EVENTS + LOST)
    assert all("(2 times)" in name for name in check["doubled_ids"])


@pytest.mark.long
def test_a_storm_continues_over_a_restart_of_the_service(tmp_path: Path) -> None:
    with a_sink() as sink:
        with a_service(sink, tmp_path) as (service, url):
            options = ("--events", "3000", "--check", sink, "--json", "--settle", "60")
            sender = started("storm", url, *options, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            try:
                wait_for(lambda: get(f"{sink}/counts")["effects"] > 300)
                service.send_signal(signal.SIGKILL)
                service.wait()
                assert sender.poll() is None, "inconclusive: the storm was over before the kill"
                port = int(url.split(":")[2].split("/")[0])
                with a_service(sink, tmp_path, port=port):
                    out, _ = sender.communicate(timeout=100)
            finally:
                if sender.poll() is None:
                    sender.kill()
                    sender.communicate()
    report = Ended(sender.returncode, out, "").json
    assert sum(report["no_answer"].values()) > 0, "inconclusive: no request failed"
    assert report["retries"] > 0
    assert (sender.returncode, report["holds"], report["gave_up"]) == (0, True, 0)
    assert (report["check"]["lost"], report["check"]["doubled"]) == (0, 0)


@contextmanager
def a_slow_service(sink: str, gap_s: float, late_s: float | None = None) -> Iterator[str]:
    """Accepts everything immediately, forwards an event every `gap_s`, and the last one again after `late_s`."""
    waiting: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(body: bytes, key: str) -> None:
        urlopen(Request(sink, body, {"Idempotency-Key": key}), timeout=30).close()

    def forward() -> None:
        for key in itertools.count():
            body = waiting.get()
            if body is None:
                return
            time.sleep(gap_s)
            send(body, str(key))
            if late_s is not None and waiting.empty():
                time.sleep(late_s)
                send(body, "late")

    def take(number: int, body: bytes) -> bytes:
        waiting.put(body)
        return b"HTTP/1.1 202 Later\r\nContent-Length: 0\r\n\r\n"

    forwarder = threading.Thread(target=forward, daemon=True)
    forwarder.start()
    with scripted(take) as url:
        yield url
    waiting.put(None)
    forwarder.join(60)


def test_a_slow_service_gets_time_as_long_as_events_arrive() -> None:
    with a_sink() as sink, a_slow_service(sink, gap_s=0.15) as url:
        options = ("--events", "18", "--duplicates", "0", "--settle", "2", "--json")
        ended = semel("storm", url, "--check", sink, *options)
    assert ended.code == 0, ended.out
    assert ended.json["check"]["waited_s"] > 2


def test_a_late_second_effect_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm_check, "QUIET_S", 2.0)
    with a_sink() as sink, a_slow_service(sink, gap_s=0.1, late_s=0.7) as url:
        ended = semel("storm", url, "--check", sink, "--events", "5", "--duplicates", "0", "--json")
    assert ended.code == 1
    assert ended.json["check"]["doubled"] == 1


def test_earlier_events_at_the_sink_are_reported_and_do_not_count(tmp_path: Path) -> None:
    with a_sink() as sink, a_service(sink, tmp_path) as (_, url):
        assert storm(url, sink, "--seed", "1").code == 0
        other = storm(url, sink, "--seed", "2")
        again = storm(url, sink, "--seed", "1")
    assert (other.code, again.code) == (0, 0)
    assert (other.json["check"]["before"], other.json["check"]["unexpected"]) == (EVENTS, EVENTS)
    assert other.json["check"]["effects"] == other.json["check"]["distinct"] == EVENTS
    assert again.json["statuses"] == {"duplicate": 1.3 * EVENTS}


def test_a_sink_that_receives_nothing_is_reported_early_with_the_missing_route(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the sink has as many events from an earlier storm."""
    monkeypatch.setattr(storm_check, "SILENT_S", 0.3)
    elsewhere = answering(b"HTTP/1.1 204 Fine\r\n\r\n")
    with a_sink() as sink, a_service(sink, tmp_path) as (_, service), scripted(elsewhere) as url:
        assert storm(service, sink).code == 0
        options = ("--events", "50", "--settle", "1.5", "--check", f"{sink}/counts")
        people, ended = semel("storm", url, *options), semel("storm", url, *options, "--json")
    for result in (people, ended):
        assert result.code == 1
        assert result.err.count(f'url = "{sink}"') == 1
    check = ended.json["check"]
    assert (check["effects"], check["distinct"], check["lost"], check["before"]) == (0, 0, 50, EVENTS)
    assert check["waited_s"] >= 1.5
    assert lacks(people.out, "50 lost 0 doubled sink") == []


def test_the_suggested_route_is_valid(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text(storm_check.needed_route("http://127.0.0.1:8095/counts"))
    settings = load(file, {})
    assert settings.destinations["sink"].url == "http://127.0.0.1:8095"
    assert (settings.destinations["sink"].allow, settings.routes[0].forward) == (["127.0.0.1"], "sink")


def test_no_route_is_suggested_if_the_sink_is_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storm_check, "SILENT_S", 0.0)
    with a_sink() as sink, a_service(sink, tmp_path, "lose") as (_, url):
        lossy = storm(url, sink, "--seed", "1", settle="1")
        again = storm(url, sink, "--seed", "1", settle="1")
    assert lossy.json["check"]["lost"] == again.json["check"]["lost"] == LOST
    assert "[[routes]]" not in lossy.err
    assert "[[routes]]" not in again.err, "its events had reached the sink before"


def test_a_refused_delivery_is_not_retried_and_fails_the_storm() -> None:
    with scripted(answering(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\r\nno\x1b[m")) as url:
        ended = semel("storm", url, "--events", "20", "--connections", "4", "--json")
        people = semel("storm", url, "--events", "20", "--connections", "4")
    assert ended.code == people.code == 1
    assert (ended.json["refused"], ended.json["retries"], ended.json["not_taken"]) == (26, 0, 20)
    assert ended.json["problem"] == "401 no\\x1b[m"
    assert all(count in people.out for count in ("20 events", "26 deliveries"))


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 503])
def test_a_retryable_status_is_retried_up_to_the_limit(status: int) -> None:
    answer = f"HTTP/1.1 {status} Later\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n".encode()
    with scripted(answering(answer)) as url:
        ended = semel("storm", url, "--events", "10", "--duplicates", "0", "--attempts", "3", "--json")
    report = ended.json
    assert ended.code == 1
    assert (report["answers"], report["retries"], report["gave_up"]) == ({str(status): 30}, 20, 10)


def test_retry_after_is_honoured_while_other_deliveries_continue() -> None:
    """One delivery has to wait; the only connection sends the others first."""
    later = b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"
    taken = b'HTTP/1.1 200 OK\r\nContent-Length: 15\r\n\r\n{"status":"ok"}'
    heard: list[tuple[float, bytes]] = []

    def answer(number: int, body: bytes) -> bytes:
        heard.append((time.monotonic(), body))
        return later if len(heard) == 1 else taken

    with scripted(answer) as url:
        ended = semel("storm", url, "--events", "5", "--duplicates", "0", "--connections", "1", "--json")
    assert ended.code == 0
    assert ended.json["statuses"] == {"ok": 5}
    assert [body for _, body in heard].index(heard[0][1], 1) == 5, "the first is retried after all others"
    assert heard[5][0] - heard[0][0] >= 1.0


def test_the_rate_is_kept_and_a_burst_is_sent_together() -> None:
    with scripted(answering(b"HTTP/1.1 204 Fine\r\n\r\n")) as url:
        begun = time.monotonic()
        assert semel("storm", url, "--events", "100", "--duplicates", "0", "--rate", "100", "--json").code == 0
        assert time.monotonic() - begun >= 0.95
        report = semel("storm", url, "--events", "100", "--duplicates", "0", "--rate", "100", "--burst", "--json").json
    assert report["seconds"] >= 0.45, "the second burst of 50 waits for its time"
    assert report["statuses"] == {"(none)": 100}


def test_a_service_that_never_answers_ends_the_storm_in_bounded_time() -> None:
    with scripted(lambda number, body: None) as url:
        ended = semel(
            "storm", url, "--events", "5", "--duplicates", "0", "--attempts", "2", "--timeout", "0.2", "--json"
        )
    assert ended.code == 1
    assert ended.json["no_answer"] == {"timeout": 10}
    assert ended.json["not_taken"] == 5


def test_a_sink_that_ends_during_the_storm_is_reported_with_the_counts(tmp_path: Path) -> None:
    with running(MAIN, "sink") as (sink, at):

        def answer(number: int, body: bytes) -> bytes:
            sink.kill()
            sink.wait()
            return b"HTTP/1.1 204 Fine\r\n\r\n"

        with scripted(answer) as url:
            ended = semel("storm", url, "--events", "6", "--duplicates", "0", "--check", at, "--json")
    assert ended.code == 1
    assert at in ended.json["check_failed"]
    assert ended.json["answers"] == {"204": 6}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("http://192.0.2.7/events",), "192.0.2.7 --i-own-this-target"),
        (("http://127.0.0.1:9", "--check", "http://192.0.2.7/"), "192.0.2.7 --i-own-this-target"),
        (("ftp://127.0.0.1/",), "URL http://"),
        (("http://user:word@127.0.0.1/",), "URL http://"),
        (("http://127.0.0.1:99999/",), "99999"),
        (("http://127.0.0.1/a b",), "space"),
        (("http://127.0.0.1/", "--events", "0"), "--events"),
        (("http://127.0.0.1/", "--duplicates", "11"), "--duplicates"),
        (("http://127.0.0.1/", "--shape", "round"), "--shape"),
        (("http://127.0.0.1/", "--scheme", "genesys"), "--secret"),
        (("http://127.0.0.1/", "--secret", "x"), "--scheme"),
        (("http://127.0.0.1:9/", "--check", "http://127.0.0.1:9"), "http://127.0.0.1:9 sink"),
    ],
)
def test_invalid_options_are_refused_before_the_storm(arguments: tuple[str, ...], words: str) -> None:
    ended = semel("storm", *arguments)
    assert ended.code == 2
    assert lacks(ended.err, words) == []
    assert ended.out == "", "there is no report of a storm"


def test_an_owned_target_may_be_another_machine() -> None:
    """No server listens there; the request is attempted."""
    options = ("--events", "1", "--duplicates", "0", "--attempts", "1", "--timeout", "0.2", "--json")
    ended = semel("storm", "http://192.0.2.7/", "--i-own-this-target", *options)
    assert ended.code == 1
    assert ended.json["no_answer"] == {"not connected": 1}


def test_deliveries_are_signed() -> None:
    heads: list[bytes] = []
    with scripted(answering(b"HTTP/1.1 204 Fine\r\n\r\n"), heads) as url:
        options = ("--events", "3", "--duplicates", "0", "--scheme", "genesys")
        assert semel("storm", url, *options, env={"SEMEL_STORM_SECRET": "shh"}).code == 0
    assert len(heads) == 3
    assert all(b"\r\nX-Hub-Signature-256: sha256=" in head for head in heads)


def test_the_choices_of_the_command_are_those_of_the_code() -> None:
    assert tuple(ShapeName) == SHAPES
    assert tuple(SchemeName) == get_args(Scheme)


def wait_for(happened: Any) -> None:
    deadline = time.monotonic() + LANDED_S
    while not happened():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)
