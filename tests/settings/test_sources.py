"""[[sources]] and [brokers]: valid settings, errors with their lines, and the options of adapters."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT
from tests.settings.writing import ROUTE, loaded, told
from tests.wording import lacks

from semel import sources, wiring
from semel.service.assembly import build, served_endpoints
from semel.settings.adapter_options import broker_options, brokers_in, source_options
from semel.settings.schema import (
    EndpointSettings,
    KafkaSourceSettings,
    RabbitSourceSettings,
    Settings,
    SqsSourceSettings,
)
from semel.values.errors import ConfigError
from semel.values.event import DecodeOptions

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"
SQS = f'[[sources]]\nkind = "sqs"\nqueue = "{URL}"\n'
KAFKA = '[[sources]]\nkind = "kafka"\nservers = "a:9092"\ntopics = ["events"]\ngroup = "semel"\ndead_letters = "dead"\n'
RABBIT = '[[sources]]\nkind = "rabbitmq"\nurl = "amqp://u:env:PW@host/"\nqueue = "events"\ndead_letters = "dead"\n'
BROKER = f'[brokers.sqs]\nqueue = "{URL}"\n'


# ---------------------------------------------------------------------------------------------------- what is written


def test_optional_settings_of_a_source_have_defaults(tmp_path: Path) -> None:
    (source,) = loaded(tmp_path, SQS).sources
    assert source == SqsSourceSettings(queue=URL)
    assert (source.kind, source.label, source.workers, source.unmatched) == ("sqs", "sqs-events", 4, "ack")


def test_all_kinds_of_sources_can_be_combined(tmp_path: Path) -> None:
    sqs, kafka, rabbit = loaded(tmp_path, SQS + KAFKA + RABBIT, PW="pa55word").sources
    assert isinstance(sqs, SqsSourceSettings)
    assert isinstance(kafka, KafkaSourceSettings)
    assert isinstance(rabbit, RabbitSourceSettings)
    assert [one.label for one in (sqs, kafka, rabbit)] == ["sqs-events", "kafka-events", "rabbitmq-events"]
    assert rabbit.url.reveal() == "amqp://u:pa55word@host/"
    assert "pa55word" not in repr(rabbit)


def test_sources_disable_the_default_endpoint(tmp_path: Path) -> None:
    assert loaded(tmp_path, SQS).endpoints == []
    assert loaded(tmp_path, SQS + "[[endpoints]]\n").endpoints == [EndpointSettings()]
    assert loaded(tmp_path, SQS, SEMEL_ENDPOINTS='[{path = "/x"}]').endpoints == [EndpointSettings(path="/x")]
    assert loaded(tmp_path, "sources = []").endpoints == [EndpointSettings()]


def test_a_variable_sets_all_sources(tmp_path: Path) -> None:
    (source,) = loaded(tmp_path, "", SEMEL_SOURCES=f'[{{kind = "sqs", queue = "{URL}"}}]').sources
    assert source == SqsSourceSettings(queue=URL)
    assert loaded(tmp_path, BROKER, SEMEL_BROKERS__SQS__TIMEOUT="1").brokers.sqs is not None


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[[sources]]\nqueue = 'x'", 1, '"kind" missing "sqs" "kafka" "rabbitmq"'),
        ('[[sources]]\nkind = "sq"', 2, 'kind "sq" "sqs"'),
        ("[[sources]]\nkind = 1", 2, 'kind "sqs" "kafka" "rabbitmq" 1'),
        ("[[sources]]\nkind = []", 2, 'kind "sqs" "kafka" "rabbitmq"'),
        ("sources = 1", 1, "[[sources]]"),
        ("[sources]\nkind = 'sqs'", 1, "[[sources]]"),
        ('[[sources]]\nkind = "sqs"', 1, '"queue" missing'),
        (SQS + "poller = 3", 4, '"poller" "pollers"'),
        (SQS + 'group = "x"', 4, '"group" [[sources]] kind = "kafka"'),
        (SQS + "workers = 0", 4, "workers 1 100 0"),
        (SQS + "visibility = 43201", 4, "visibility 1 43200 43201"),
        (SQS + "wait = 0", 4, "wait 1 20"),
        (SQS + 'unmatched = "drop"', 4, 'unmatched "ack" "reject" "drop"'),
        (SQS + 'name = "a b"', 4, "name letters digits - . _"),
        (SQS + 'type_path = "a.b"', 4, "type_path id_path"),
        (SQS + f'dead_letters = "{URL}"', 4, "dead_letters"),
        (SQS.replace(URL, "events"), 3, 'queue URL "https://sqs.'),
        (SQS + SQS, 6, "[[sources]]"),
        (SQS + SQS.replace("123456789012", "210987654321"), 4, '[[sources]] "sqs-events"'),
        (KAFKA + KAFKA + 'name = "x"', 10, "[[sources]]"),
        (KAFKA.replace('["events"]', "[]"), 4, "topics 1"),
        (KAFKA.replace('"dead"', '"events"'), 6, "dead_letters"),
        (KAFKA.replace('dead_letters = "dead"\n', ""), 1, "dead_letters topic"),
        (KAFKA + "[sources.options]\nlinger = 5", 8, 'options.linger "env:NAME" "file:path"'),
        (KAFKA + '[sources.options]\n"x.y" = "env:NOT"', 8, "env:NOT variable"),
        (RABBIT.replace("env:PW", "env:NOT"), 3, "env:NOT variable"),
        (RABBIT.replace("amqp://u:env:PW@host/", "http://host"), 3, "url amqp://"),
        (RABBIT.replace("amqp://u:env:PW@host/", "env:PW"), 3, "url env:PW URL RabbitMQ"),
        (RABBIT.replace('dead_letters = "dead"\n', ""), 1, "dead_letters queue"),
        (RABBIT + "prefetch = 0", 6, "prefetch 1 10000 0"),
        # brokers
        ('[[endpoints]]\naccept = "sqs"', 2, "accept [brokers.sqs]"),
        ('[[endpoints]]\naccept = "sq"', 2, 'accept "sq" "sqs"'),
        (BROKER + '[[endpoints]]\nmode = "inline"\naccept = "sqs"', 5, 'accept "sqs" mode = "inline"'),
        ("[brokers.sqs]\n", 1, '[brokers.sqs] "queue" missing'),
        ("[brokers.sqss]\n", 1, '"sqss" "sqs"'),
        (BROKER + "timeout = 0", 3, "[brokers.sqs] timeout seconds"),
        (BROKER + "timeout = 3600", 3, "[brokers.sqs] timeout 3600"),
        ('[brokers.rabbitmq]\nurl = "x"\nqueue = "q"', 2, "url amqp:// amqps://"),
    ],
)
def test_an_invalid_source_is_reported_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    (problem,) = told(tmp_path, text, PW="pa55word")
    assert problem.startswith(f"semel.toml:{line}: ")
    assert lacks(problem, words) == [], problem
    assert "pa55word" not in problem


def test_a_password_that_breaks_its_url_is_not_repeated(tmp_path: Path) -> None:
    broken = RABBIT.replace("amqp://u:env:PW@host/", "amqp://u:hun/ter2@host/")
    (problem,) = told(tmp_path, broken)
    assert "hun" not in problem.replace("host", "")
    assert "%2F" in problem


def test_further_faults_of_sources_are_reported_too(tmp_path: Path) -> None:
    lines = told(tmp_path, '[[sources]]\nkind = "sq"\n' + SQS + "workers = 0\n" + ROUTE + "nmae = 1")
    assert [line.partition(": ")[0] for line in lines] == ["semel.toml:2", "semel.toml:6", "semel.toml:11"]


# ------------------------------------------------------------------------------------------- what adapters are given


def test_a_source_has_the_decode_options_of_its_settings(tmp_path: Path) -> None:
    more = 'tenant = "t"\nid_path = "a.b"\nforwarded = true\nregion = "eu-west-1"\n'
    settings = loaded(tmp_path, 'origin = "o"\n' + SQS + more)
    options = source_options(settings.sources[0], settings)
    assert options["decode_options"] == DecodeOptions("o", "a.b")
    assert (options["tenant"], options["forwarded"], options["region"]) == ("t", True, "eu-west-1")
    plain = Settings(sources=[SqsSourceSettings(queue=URL)])
    assert source_options(plain.sources[0], plain)["decode_options"] is None, (
        "the app's own, which may come from Python"
    )


def test_every_option_of_the_settings_is_one_of_the_adapter(tmp_path: Path) -> None:
    options = '[sources.options]\n"security.protocol" = "SSL"\n"ssl.key.password" = "env:PW"\n'
    brokers = (
        BROKER
        + '[brokers.kafka]\nservers = "a:9092"\ntopic = "t"\n'
        + '[brokers.rabbitmq]\nurl = "amqp://h/"\nqueue = "q"\n'
    )
    settings = loaded(tmp_path, SQS + KAFKA + options + RABBIT + brokers, PW="pa55word")
    for said in settings.sources:
        assert wiring.source(said.kind, source_options(said, settings)) is not None
    for kind, broker in brokers_in(settings).items():
        assert wiring.publisher(kind, broker_options(broker)) is not None
    assert source_options(settings.sources[1], settings)["options"]["ssl.key.password"] == "pa55word"


def test_a_missing_driver_error_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.wiring.find_spec", lambda name: None)
    for kind, extra in (("sqs", "aws"), ("kafka", "kafka"), ("rabbitmq", "rabbitmq")):
        with pytest.raises(ConfigError, match=rf"pip install 'semel\[{extra}\]'"):
            wiring.source(kind, {})
        with pytest.raises(ConfigError, match=rf"pip install 'semel\[{extra}\]'"):
            wiring.publisher(kind, {})
    with pytest.raises(ConfigError, match=r"sqs.*kafka.*rabbitmq"):
        wiring.source("nats", {})
    with pytest.raises(ConfigError, match=r"sqs.*kafka.*rabbitmq"):
        wiring.publisher("nats", {})


def test_an_endpoint_forwards_through_the_publisher_of_its_broker(tmp_path: Path) -> None:
    paths = '[[endpoints]]\naccept = "sqs"\n[[endpoints]]\npath = "/here"\n'
    kafka = '[brokers.kafka]\nservers = "a:9092"\ntopic = "t"\n'
    built = build(loaded(tmp_path, 'ledger = "memory://"\n' + BROKER + kafka + paths + ROUTE))
    assert list(built.publishers) == ["sqs"], "a broker that nobody hands on to is not opened"
    handing, here = served_endpoints(built.settings, built.publishers)
    assert handing.publisher is built.publishers["sqs"]
    assert here.publisher is None


def test_a_source_is_made_anew_each_time(tmp_path: Path) -> None:
    built = build(loaded(tmp_path, 'ledger = "memory://"\n' + SQS + 'unmatched = "reject"\nworkers = 2\n' + ROUTE))
    (supply,) = built.sources
    assert (supply.name, supply.workers, supply.unmatched) == ("sqs-events", 2, "reject")
    assert supply.make() is not supply.make()


@pytest.mark.parametrize(
    ("make", "said"),
    [(sources.sqs, SqsSourceSettings), (sources.kafka, KafkaSourceSettings), (sources.rabbitmq, RabbitSourceSettings)],
)
def test_python_and_settings_have_the_same_options_and_defaults(make: Any, said: type[msgspec.Struct]) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(said)}
    parameters = inspect.signature(make).parameters
    assert set(fields) - {"name", "workers", "unmatched"} == set(parameters), "workers are for app.consume to say"
    for name, parameter in parameters.items():
        default = fields[name].default
        if default is not NODEFAULT and parameter.default is not inspect.Parameter.empty:
            assert parameter.default == default or (name == "dead_letters" and not parameter.default), name


def test_sources_are_made_by_python_as_by_settings() -> None:
    made: Any = sources.sqs(URL, tenant="t", id_path="a.b")
    assert (made.queue, made.options.tenant, made.options.decode_options) == (URL, "t", DecodeOptions("", "a.b"))
    plain: Any = sources.sqs(URL)
    assert plain.options.decode_options is None
    with pytest.raises(ConfigError, match=r"queue.*'x'"):
        sources.sqs("x")
    assert sources.kafka("a:9092", ["t"], group="g", dead_letters="d") is not None
    assert sources.rabbitmq("amqp://h/", "q", dead_letters="d") is not None


def test_the_examples_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text("utf-8")
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 3
    for text in shown:
        settings = loaded(tmp_path, text, PGPASSWORD="x", GENESYS_SECRET="a secret of some length")
        assert settings.sources or settings.brokers.sqs
