"""Two services by their settings: one receives and hands on, the other handles."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tests.service.running import Running, service
from tests.sources.places import Queue

APP = "tests.service.handlers_app:app"

RECEIVING = """
[[endpoints]]
path = "/events"
accept = "sqs"
tenant = "acme"

[[endpoints]]
path = "/orders"
accept = "sqs"
origin = "shop"
id_path = "order.number"
type_path = "kind"

[brokers.sqs]
queue = "{queue}"
endpoint = "{endpoint}"
region = "{region}"
"""

HANDLING = """
endpoints = []

[[sources]]
kind = "sqs"
queue = "{queue}"
dead_letters = "{dead}"
endpoint = "{endpoint}"
region = "{region}"
forwarded = true
wait = 1
"""


def settings(text: str, queue: Queue) -> str:
    place = {"endpoint": queue.server.endpoint, "region": queue.server.region}
    return text.format(queue=queue.url, dead=queue.dead_url, **place)


def runs(running: Running) -> Counter[str]:
    path = running.folder / "runs.txt"
    return Counter(line.split()[0] for line in path.read_text().splitlines()) if path.exists() else Counter()


def test_a_service_that_receives_and_one_that_handles_share_a_queue(queue: Queue, tmp_path: Path) -> None:
    for name in ("receiving", "handling"):
        (tmp_path / name).mkdir()
    bodies = [("/events", {"id": f"e-{number % 20}", "type": "ok", "data": {}}) for number in range(30)]
    bodies += [("/orders", {"order": {"number": f"o-{number % 5}"}, "kind": "ok"}) for number in range(8)]
    with service(tmp_path / "receiving", settings(RECEIVING, queue), "--workers", "2") as receiving:
        for path, body in bodies:
            receiving.until(lambda path=path, body=body: receiving.post(path, body).status == 200, "not taken")
        assert receiving.post("/events", b"{").status == 400
        assert receiving.post("/orders", {"id": "no order"}).status == 400
        receiving.terminate()
        assert receiving.wait() == 0
    assert queue.left() >= 38, "the receiver is gone, and what it took is there"
    with service(tmp_path / "handling", settings(HANDLING, queue), APP, env={"LEASE": "2"}) as handling:
        handling.until(lambda: queue.left() == 0, "the queue is not empty", 120)
        handling.terminate()
        assert handling.wait() == 0
        ran = runs(handling)
    assert ran == dict.fromkeys([f"e-{number}" for number in range(20)] + [f"o-{number}" for number in range(5)], 1)
    assert queue.dead_letters() == []
