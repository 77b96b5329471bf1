"""What is refused before anything is taken, and what people are told."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.facts import rendered
from tests.sources.kafka.test_kafka_groups import opened, received, run, until
from tests.sources.kafka.topics import SOON_S, Topics
from tests.support.servers.process import free_port

from semel.sources.kafka_topic import KafkaPublisher, KafkaSource
from semel.sources.kafka_topic.options import REFUSED
from semel.values.errors import ConfigError

GOOD: dict[str, Any] = {"servers": "127.0.0.1:9092", "topics": ["t"], "group": "g", "dead_letters": "t-dead"}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dead_letters": ""}, "name a topic"),
        ({"dead_letters": "t"}, "cannot keep its own"),
        ({"dead_letters": "no such name"}, "topic"),
        ({"servers": ""}, "servers"),
        ({"topics": []}, "topic"),
        ({"topics": "t"}, "topics"),
        ({"topics": ["^t.*"]}, "topic"),
        ({"topics": ["t", "t"]}, "'t'"),
        ({"group": ""}, "group"),
        ({"max_in_flight": 0}, "max_in_flight"),
        ({"max_in_flight": True}, "max_in_flight"),
        ({"max_in_flight": 100, "max_behind": 99}, "max_behind.*100"),
        ({"options": {"auto.offset.reset": "latest"}}, r"auto\.offset\.reset"),
        ({"options": {"sasl.password": b"hunter2"}}, r"sasl\.password"),
    ],
)
def test_a_wrong_option_is_refused_by_name(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as refused:
        KafkaSource(**{**GOOD, **changes})
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("name", REFUSED)
def test_an_option_that_would_break_our_promises_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=name):
        KafkaSource(**GOOD, options={name: "true"})
    with pytest.raises(ConfigError, match=name):
        KafkaPublisher("127.0.0.1:9092", "t", options={name: "true"})


def test_an_unknown_librdkafka_option_is_an_error_that_shows_no_secret() -> None:
    async def story() -> None:
        source = KafkaSource(**GOOD, options={"sasl.password": "hunter2", "security.protocol": "hunter2"})
        with pytest.raises(ConfigError, match=r"security\.protocol") as refused:
            await source.receive(1)
        assert "hunter2" not in str(refused.value)
        assert "hunter2" not in repr(source._driver_options)
        await source.close()

    run(story)


def test_a_topic_that_is_missing_is_an_error_that_names_it(topics: Topics) -> None:
    async def story() -> None:
        for topic, dead_letters in ((topics.topic, "semel-not-here"), ("semel-not-here", topics.dead)):
            source = KafkaSource(topics.server.servers, [topic], group=topics.group, dead_letters=dead_letters)
            with pytest.raises(ConfigError, match="'semel-not-here'"):
                await asyncio.wait_for(source.receive(1), SOON_S)
            await source.close()

    run(story)


def test_a_cluster_out_of_reach_is_waited_for_until_the_source_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        source = KafkaSource(**{**GOOD, "servers": f"127.0.0.1:{free_port()}"})
        waiting = asyncio.ensure_future(source.receive(1))
        await until(lambda: bool(caplog.records), "the outage to be told")
        assert not waiting.done()
        source.stop()
        assert list(await asyncio.wait_for(waiting, SOON_S)) == []
        await source.close()

    run(story)
    assert "127.0.0.1" in caplog.text


def test_a_source_that_was_never_opened_closes() -> None:
    async def story() -> None:
        source = KafkaSource(**GOOD)
        source.stop()
        assert list(await source.receive(1)) == []
        await source.close()
        await source.close()

    run(story)


def test_diagnose_shows_the_waiting_messages(topics: Topics) -> None:
    async def story() -> None:
        topics.send([b"a", b"b", b"c"])
        async with opened(topics.source()) as source:
            first, second, _ = await received(source, 3)
            await first.ack()
            await second.reject("no")
        facts = rendered(await topics.source().diagnose())
        assert re.findall(r"\d+", facts[f"topic {topics.topic}"]) == ["1", "1"], "partitions and messages"
        assert re.findall(r"\d+", facts["dead letters"]) == ["1", "1"]
        assert facts["group"] == topics.group
        nowhere = KafkaSource(**{**GOOD, "servers": f"127.0.0.1:{free_port()}"})
        assert rendered(await nowhere.diagnose())["topic t"].startswith("error: ")

    monkey = pytest.MonkeyPatch()
    monkey.setattr("semel.sources.kafka_topic.doctor.ASK_S", 1.0)
    try:
        run(story)
    finally:
        monkey.undo()
