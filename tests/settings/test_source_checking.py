"""Findings of doctor about sources: times, unused brokers, passwords in the file."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace
from tests.wording import lacks

from semel.ports import Traits
from semel.settings.checks import Finding, RouteFacts, StoreFacts, check
from semel.settings.schema import (
    Brokers,
    EndpointSettings,
    KafkaBroker,
    KafkaSourceSettings,
    RabbitBroker,
    RabbitSourceSettings,
    Settings,
    SqsBroker,
    SqsSourceSettings,
)
from semel.values.secret import Secret

SQLITE = StoreFacts(Traits("SQLite", durable=True, transactional=True))
NO_INBOX = StoreFacts(Traits("DynamoDB", durable=True, transactional=True), inbox=False, dead_letter_store=True)
FACTS = RouteFacts("a", "retry", timeout_s=20.0, lease_s=25.0, retention_s=38 * 86_400, window_s=900.0)
URL = "https://sqs.eu-central-1.amazonaws.com/1/events"
SQS = SqsSourceSettings(queue=URL)
RABBIT = RabbitSourceSettings(url=Secret("amqp://h/"), queue="events", dead_letters="dead")


def found(settings: Settings, *routes: RouteFacts, store: StoreFacts = SQLITE) -> list[Finding]:
    return [one for one in check(settings, routes or [FACTS], store) if one.level != "ok"]


def of(*sources: Any, **changes: Any) -> Settings:
    return Settings(sources=list(sources), endpoints=[], **changes)


@pytest.mark.parametrize(("lease_s", "bad"), [(29.9, False), (30.0, True), (60.0, True)])
def test_a_lease_is_under_the_visibility_of_every_queue(lease_s: float, bad: bool) -> None:
    findings = found(of(SQS), replace(FACTS, lease_s=lease_s))
    assert [(one.level, one.check) for one in findings] == [("error", "sources")] * bad
    if bad:
        assert lacks(findings[0].what, "visibility sqs-events 30 s") == []
        assert "visibility" in findings[0].change
    assert found(of(replace(SQS, visibility=61)), replace(FACTS, lease_s=60.0)) == []


@pytest.mark.parametrize(("timeout_s", "level"), [(19.0, ""), (20.0, "error"), (None, "warning")])
def test_a_run_is_over_before_rabbitmq_takes_its_delivery_back(timeout_s: float | None, level: str) -> None:
    findings = found(of(replace(RABBIT, consumer_timeout=20.0)), replace(FACTS, timeout_s=timeout_s))
    assert [one.level for one in findings if one.check == "sources"] == [level] * bool(level)


def test_a_source_without_routes_is_an_error() -> None:
    (finding,) = [one for one in check(of(SQS), [], SQLITE) if one.level != "ok"]
    assert (finding.level, finding.check) == ("error", "sources")
    assert finding.change


@pytest.mark.parametrize(
    ("source", "broker"),
    [
        (SQS, Brokers(sqs=SqsBroker(queue=URL))),
        (RABBIT, Brokers(rabbitmq=RabbitBroker(url=Secret("amqp://h/"), queue="events"))),
        (
            KafkaSourceSettings(servers="a", topics=["x", "events"], group="g", dead_letters="d"),
            Brokers(kafka=KafkaBroker(servers="a", topic="events")),
        ),
    ],
)
def test_a_source_of_forwarded_events_should_trust_their_metadata(source: Any, broker: Brokers) -> None:
    handing = [EndpointSettings(accept=source.kind)]
    settings = Settings(sources=[source], brokers=broker, endpoints=handing)
    (finding,) = found(settings)
    assert (finding.level, finding.check) == ("warning", "sources")
    assert "forwarded = true" in finding.change
    assert found(replace(settings, sources=[replace(source, forwarded=True)])) == []


def test_an_unused_broker_is_a_warning() -> None:
    (finding,) = found(Settings(brokers=Brokers(sqs=SqsBroker(queue=URL))))
    assert (finding.level, finding.check) == ("warning", "sources")
    assert lacks(finding.what, "broker sqs") == []


def test_endpoints_that_forward_need_no_inbox() -> None:
    settings = Settings(brokers=Brokers(sqs=SqsBroker(queue=URL)), endpoints=[EndpointSettings(accept="sqs")])
    assert found(settings, store=NO_INBOX) == []
    (finding,) = [one for one in check(settings, [FACTS], NO_INBOX) if one.check == "inbox"]
    assert finding.level == "ok"
    assert "broker" in finding.what
    both = replace(settings, endpoints=[*settings.endpoints, EndpointSettings(path="/here")])
    assert [one.check for one in found(both, store=NO_INBOX)] == ["inbox"]


def test_a_password_of_a_source_in_the_file_is_a_warning() -> None:
    rabbit = replace(RABBIT, url=Secret("amqp://u:hunter2@h/"))
    kafka = KafkaSourceSettings(
        servers="a", topics=["x"], group="g", dead_letters="d", options={"sasl.password": Secret("hunter2")}
    )
    findings = found(of(rabbit, kafka))
    assert [(one.level, one.check) for one in findings] == [("warning", "secrets")] * 2
    assert "hunter2" not in repr(findings)
    hidden = Secret("hunter2", "env:PW")
    referred = [
        replace(rabbit, url=Secret("amqp://u:hunter2@h/", "env:URL")),
        replace(kafka, options={"sasl.password": hidden, "security.protocol": Secret("SASL_SSL")}),
    ]
    assert found(of(*referred)) == []
