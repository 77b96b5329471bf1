"""`semel run` with Kafka and RabbitMQ by its settings: consumed, watched, and ended gently, as with SQS."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from aiormq.exceptions import DeliveryError
from tests.service.consuming.settings_of import APP, SLOW
from tests.service.consuming.test_running import SETTLED_S, counted, message, runs
from tests.service.running import Running, service
from tests.sources.kafka.topics import Topics
from tests.sources.rabbitmq.places import Place, reason_of

BODIES = [message(1), message(2), message(1), b"no event", message(3, "nobody.wants.this")]


def consumed(running: Running, folder: Path, left: Callable[[], int]) -> None:
    running.until(lambda: left() == 0, "not everything was handled", SETTLED_S)
    assert sorted(runs(folder)) == ["e-1", "e-2"]

    def became(what: str) -> float:
        return counted(running, "semel_source_deliveries_total", source="events", became=what)

    running.until(
        lambda: became("acked") + became("rejected") + became("retried") == became("received"), "the counts", SETTLED_S
    )
    assert (became("rejected"), became("unmatched")) == (1, 1)
    assert running.get("/readyz").json.get("sources") is None
    running.terminate()
    assert running.wait() == 0, running.text


def test_topics_of_kafka_are_consumed(tmp_path: Path, topics: Topics) -> None:
    options = ", ".join(f'"{name}" = "{value}"' for name, value in topics.options().items())
    text = (
        f'[[sources]]\nkind = "kafka"\nname = "events"\nservers = "{topics.server.servers}"\n'
        f'topics = ["{topics.topic}"]\ngroup = "{topics.group}"\ndead_letters = "{topics.dead}"\n'
        f"options = {{ {options} }}\n"
    )
    topics.send(BODIES)
    with service(tmp_path, text, APP, env=SLOW) as running:
        assert any(re.search(rf"\bevents\b.*\bkafka\b.*{topics.topic}", line) for line in running.log), running.text
        consumed(running, tmp_path, topics.left)
    (dead_letter,) = topics.dead_letters()
    assert dead_letter.value == b"no event"
    assert "JSON" in dead_letter.reason


def test_a_queue_of_rabbitmq_is_consumed(tmp_path: Path, place: Place) -> None:
    text = (
        f'[[sources]]\nkind = "rabbitmq"\nname = "events"\nurl = "env:RABBIT_URL"\n'
        f'queue = "{place.queue}"\ndead_letters = "{place.dead}"\n'
    )
    place.send(BODIES)
    with service(tmp_path, text, APP, env={**SLOW, "RABBIT_URL": place.broker.url}) as running:
        assert any(re.search(rf"\bevents\b.*\brabbitmq\b.*{place.queue}", line) for line in running.log), running.text
        consumed(running, tmp_path, place.left)
        assert place.broker.url not in "\n".join(running.log)
    (dead_letter,) = place.dead_letters()
    assert dead_letter.body == b"no event"
    assert "JSON" in reason_of(dead_letter)


def test_queues_of_rabbitmq_are_created_if_configured(tmp_path: Path, new_place: Callable[..., Place]) -> None:
    place = new_place(declared=False)
    text = (
        f'[[sources]]\nkind = "rabbitmq"\nname = "events"\nurl = "env:RABBIT_URL"\ndeclare = true\n'
        f'queue = "{place.queue}"\ndead_letters = "{place.dead}"\n'
    )
    with service(tmp_path, text, APP, env={**SLOW, "RABBIT_URL": place.broker.url}) as running:
        running.until(lambda: sent(place, message(1)), "the queue was not made", SETTLED_S)
        running.until(lambda: runs(tmp_path) == ["e-1"], "it is not consumed", SETTLED_S)


def sent(place: Place, body: bytes) -> bool:
    try:
        place.send([body])
    except DeliveryError:  # there is no such queue, or it is being made
        return False
    return True
