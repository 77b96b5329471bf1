"""`semel run` with a queue to consume: a real process, a real queue by HTTP, real signals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from tests.service.consuming.settings_of import APP, ENV, SLOW, source_of
from tests.service.running import Running, service
from tests.sources.places import Queue, reason_of

SETTLED_S = 60.0  # the machine may be busy


def message(number: int | str, kind: str = "ok", **data: object) -> bytes:
    return json.dumps({"id": f"e-{number}", "type": kind, "data": {"id": f"c-{number}", **data}}).encode()


def runs(folder: Path) -> list[str]:
    path = folder / "runs.txt"
    return [line.split()[0] for line in path.read_text().splitlines()] if path.exists() else []


def counted(running: Running, metric: str, **labels: str) -> float:
    page = running.get("/metrics").body.decode()
    total = 0.0
    for line in page.splitlines():
        found = re.fullmatch(rf"{metric}(?:\{{(.*)\}})? (\S+)", line)
        if found and all(f'{name}="{value}"' in (found[1] or "") for name, value in labels.items()):
            total += float(found[2])
    return total


def test_a_queue_is_consumed_once_and_events_that_cannot_run_are_kept(tmp_path: Path, queue: Queue) -> None:
    with service(tmp_path, source_of(queue, visibility=60), APP, env=SLOW) as running:
        assert any(re.search(r"\bevents\b.*\bsqs\b.*\b4\b", line) for line in running.log), running.text
        assert running.post("/events", {"id": "1", "type": "ok"}).status == 404, "no path is opened that nobody wrote"
        queue.send([message(1), message(2), message(1), b"no event", message(3, "nobody.wants.this")])
        running.until(lambda: queue.left() == 0, "the queue was not emptied", SETTLED_S)
        assert sorted(runs(tmp_path)) == ["e-1", "e-2"]
        (dead_letter,) = queue.dead_letters()
        assert dead_letter["Body"] == "no event"
        assert "JSON" in reason_of(dead_letter)

        def became(what: str) -> float:
            return counted(running, "semel_source_deliveries_total", source="events", became=what)

        running.until(
            lambda: became("acked") + became("rejected") + became("retried") == became("received"),
            "the counts",
            SETTLED_S,
        )
        assert became("received") - became("retried") == 5  # a copy may have been Busy, and came again
        assert (became("rejected"), became("unmatched")) == (1, 1)
        assert counted(running, "semel_source_in_flight") == 0
        assert counted(running, "semel_source_broken") == 0
        assert any("event_unmatched" in line and "nobody.wants.this" in line for line in running.log), running.text
        assert running.get("/readyz").json.get("sources") is None


def test_sigterm_finishes_deliveries_in_flight_and_returns_the_rest(tmp_path: Path, queue: Queue) -> None:
    with service(tmp_path, source_of(queue, workers=1, visibility=60), APP, env=SLOW) as running:
        queue.send([message("first", "gated")])
        running.until(lambda: runs(tmp_path) == ["e-first"], "the handler did not begin", SETTLED_S)
        queue.send([message(number) for number in range(3)])
        running.until(lambda: queue.visible() == 0, "nothing more was received", SETTLED_S)
        assert runs(tmp_path) == ["e-first"]
        running.terminate()
        running.until(lambda: queue.visible() == 3, "what waited in hand was not given back at once", SETTLED_S)
        (tmp_path / "open").touch()
        assert running.wait() == 0, running.text
    assert runs(tmp_path) == ["e-first", "e-first-ended"]
    assert queue.left() == queue.visible() == 3


def test_deliveries_in_flight_are_returned_when_the_drain_ends(tmp_path: Path, queue: Queue) -> None:
    settings = source_of(queue, visibility=60) + "[server]\ndrain = 3\n"
    with service(tmp_path, settings, APP, env=SLOW) as running:
        queue.send([message("first", "gated")])
        running.until(lambda: runs(tmp_path) == ["e-first"], "the handler did not begin", SETTLED_S)
        running.terminate()
        assert running.wait() == 0, running.text
    assert runs(tmp_path) == ["e-first"]
    assert queue.visible() == 1, "not hidden for the rest of its visibility"


@pytest.mark.long
def test_sigkill_loses_nothing(tmp_path: Path, queue: Queue) -> None:
    with service(tmp_path, source_of(queue), APP, env=ENV) as running:
        queue.send([message("first", "gated"), *[message(number) for number in range(20)]])
        running.until(lambda: "e-first" in runs(tmp_path), "the handler did not begin", SETTLED_S)
        running.kill()
        assert queue.left() > 0
        (tmp_path / "open").touch()
        running.start()
        running.until(lambda: queue.left() == 0, "the queue was not emptied", SETTLED_S)
    assert {f"e-{number}" for number in range(20)} | {"e-first", "e-first-ended"} == set(runs(tmp_path))


def test_every_process_consumes(tmp_path: Path, queue: Queue) -> None:
    with service(tmp_path, source_of(queue, visibility=60), APP, "--workers", "2", env=SLOW) as running:
        sent = 0

        def both() -> bool:
            nonlocal sent
            queue.send([message(f"{sent}-{number}") for number in range(10)])
            sent += 10
            path = tmp_path / "runs.txt"
            return path.exists() and len({line.split()[1] for line in path.read_text().splitlines()}) == 2

        running.until(both, "only one process took messages", SETTLED_S)
        running.until(lambda: queue.left() == 0, "the queue was not emptied", SETTLED_S)
        assert len(set(runs(tmp_path))) == len(runs(tmp_path)) == sent
        running.until(
            lambda: counted(running, "semel_source_deliveries_total", became="acked") >= sent, "the counts", SETTLED_S
        )
        running.terminate()
        assert running.wait() == 0, running.text
