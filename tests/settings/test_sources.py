"""[[sources]] and [brokers]: what may be written, what is refused with its line, and what adapters are given."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import NODEFAULT
from tests.settings.writing import ROUTE, loaded, told

from semel import sources, wiring
from semel.service.building import build, doors
from semel.settings.options import broker_options, brokers_in, source_options
from semel.settings.schema import Endpoint, KafkaSource, RabbitSource, Settings, SqsSource
from semel.values.errors import ConfigError
from semel.values.reading import Reading

URL = "https://sqs.eu-central-1.amazonaws.com/123456789012/events"
SQS = f'[[sources]]\nkind = "sqs"\nqueue = "{URL}"\n'
KAFKA = '[[sources]]\nkind = "kafka"\nservers = "a:9092"\ntopics = ["events"]\ngroup = "semel"\ndead_letters = "dead"\n'
RABBIT = '[[sources]]\nkind = "rabbitmq"\nurl = "amqp://u:env:PW@host/"\nqueue = "events"\ndead_letters = "dead"\n'
BROKER = f'[brokers.sqs]\nqueue = "{URL}"\n'


# ---------------------------------------------------------------------------------------------------- what is written


def test_what_is_not_said_of_a_source_has_a_default(tmp_path: Path) -> None:
    (source,) = loaded(tmp_path, SQS).sources
    assert source == SqsSource(queue=URL)
    assert (source.kind, source.label, source.workers, source.unmatched) == ("sqs", "sqs-events", 4, "ack")


def test_all_kinds_can_stand_beside_each_other(tmp_path: Path) -> None:
    sqs, kafka, rabbit = loaded(tmp_path, SQS + KAFKA + RABBIT, PW="pa55word").sources
    assert isinstance(sqs, SqsSource)
    assert isinstance(kafka, KafkaSource)
    assert isinstance(rabbit, RabbitSource)
    assert [one.label for one in (sqs, kafka, rabbit)] == ["sqs-events", "kafka-events", "rabbitmq-events"]
    assert rabbit.url.reveal() == "amqp://u:pa55word@host/"
    assert "pa55word" not in repr(rabbit)


def test_with_sources_no_path_is_opened_that_nobody_wrote(tmp_path: Path) -> None:
    assert loaded(tmp_path, SQS).endpoints == []
    assert loaded(tmp_path, SQS + "[[endpoints]]\n").endpoints == [Endpoint()]
    assert loaded(tmp_path, SQS, SEMEL_ENDPOINTS='[{path = "/x"}]').endpoints == [Endpoint(path="/x")]
    assert loaded(tmp_path, "sources = []").endpoints == [Endpoint()]


def test_a_variable_sets_all_sources(tmp_path: Path) -> None:
    (source,) = loaded(tmp_path, "", SEMEL_SOURCES=f'[{{kind = "sqs", queue = "{URL}"}}]').sources
    assert source == SqsSource(queue=URL)
    assert loaded(tmp_path, BROKER, SEMEL_BROKERS__SQS__TIMEOUT="1").brokers.sqs is not None


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("[[sources]]\nqueue = 'x'", 1, '"kind" is missing: one of "sqs", "kafka", "rabbitmq"'),
        ('[[sources]]\nkind = "sq"', 2, 'got the text "sq"; did you mean "sqs"?'),
        ("[[sources]]\nkind = 1", 2, 'kind: expected one of "sqs", "kafka", "rabbitmq", got 1'),
        ("[[sources]]\nkind = []", 2, 'kind: expected one of "sqs", "kafka", "rabbitmq", got a list'),
        ("sources = 1", 1, "expected a list of tables: write [[sources]], got a number"),
        ("[sources]\nkind = 'sqs'", 1, "expected a list of tables: write [[sources]], got a table"),
        ('[[sources]]\nkind = "sqs"', 1, '"queue" is missing'),
        (SQS + "poller = 3", 4, 'unknown key "poller"; did you mean "pollers"?'),
        (SQS + 'group = "x"', 4, 'unknown key "group"; it belongs in [[sources]] with kind = "kafka"'),
        (SQS + "workers = 0", 4, "workers: expected a whole number from 1 to 100, got 0"),
        (SQS + "visibility = 43201", 4, "visibility: expected a whole number from 1 to 43200, got 43201"),
        (SQS + "wait = 0", 4, "wait: expected a whole number from 1 to 20, got 0"),
        (SQS + 'unmatched = "drop"', 4, 'unmatched: expected one of "ack", "reject", got the text "drop"'),
        (SQS + 'name = "a b"', 4, "name: expected a name of letters, digits and - . _"),
        (SQS + 'type_path = "a.b"', 4, "type_path is only read together with id_path"),
        (SQS + f'dead_letters = "{URL}"', 4, "dead_letters: what is rejected would come again"),
        (SQS.replace(URL, "events"), 3, 'queue: expected a URL such as "https://sqs.'),
        (SQS + SQS, 6, "another of [[sources]] takes from the same place already"),
        (SQS + SQS.replace("123456789012", "210987654321"), 4, '[[sources]] is called "sqs-events" already'),
        (KAFKA + KAFKA + 'name = "x"', 10, "another of [[sources]] takes from the same place already"),
        (KAFKA.replace('["events"]', "[]"), 4, "topics: expected at least 1 in the list, got none"),
        (KAFKA.replace('"dead"', '"events"'), 6, "dead_letters: what is rejected would come again"),
        (KAFKA.replace('dead_letters = "dead"\n', ""), 1, "dead_letters: name a topic for what nobody can act on"),
        (KAFKA + "[sources.options]\nlinger = 5", 8, 'options.linger: expected a text, "env:NAME" or "file:path"'),
        (KAFKA + '[sources.options]\n"x.y" = "env:NOT"', 8, "env:NOT: there is no variable NOT"),
        (RABBIT.replace("env:PW", "env:NOT"), 3, "env:NOT: there is no variable NOT"),
        (RABBIT.replace("amqp://u:env:PW@host/", "http://host"), 3, "url: expected a URL that begins with amqp://"),
        (RABBIT.replace("amqp://u:env:PW@host/", "env:PW"), 3, "url: env:PW is no URL of RabbitMQ"),
        (RABBIT.replace('dead_letters = "dead"\n', ""), 1, "dead_letters: name a queue for what nobody can act on"),
        (RABBIT + "prefetch = 0", 6, "prefetch: expected a whole number from 1 to 10000, got 0"),
        # brokers
        ('[[endpoints]]\naccept = "sqs"', 2, "accept: there is no [brokers.sqs], which says where events go"),
        ('[[endpoints]]\naccept = "sq"', 2, 'did you mean "sqs"?'),
        (BROKER + '[[endpoints]]\nmode = "inline"\naccept = "sqs"', 5, '"sqs" hands events on, and mode = "inline"'),
        ("[brokers.sqs]\n", 1, '[brokers.sqs]: "queue" is missing'),
        ("[brokers.sqss]\n", 1, 'unknown key "sqss"; did you mean "sqs"?'),
        (BROKER + "timeout = 0", 3, "[brokers.sqs]: timeout: expected a number of seconds"),
        (BROKER + "timeout = 3600", 3, "[brokers.sqs]: timeout=3600"),
        ('[brokers.rabbitmq]\nurl = "x"\nqueue = "q"', 2, "url: expected a URL that begins with amqp:// or amqps://"),
    ],
)
def test_what_cannot_be_is_told_with_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    (problem,) = told(tmp_path, text, PW="pa55word")
    assert problem.startswith(f"semel.toml:{line}: ")
    assert said in problem
    assert "pa55word" not in problem


def test_a_password_that_breaks_its_url_is_not_repeated(tmp_path: Path) -> None:
    broken = RABBIT.replace("amqp://u:env:PW@host/", "amqp://u:hun/ter2@host/")
    (problem,) = told(tmp_path, broken)
    assert "hun" not in problem.replace("host", "")
    assert "'/' as %2F" in problem


def test_what_else_is_wrong_is_told_too(tmp_path: Path) -> None:
    lines = told(tmp_path, '[[sources]]\nkind = "sq"\n' + SQS + "workers = 0\n" + ROUTE + "nmae = 1")
    assert [line.partition(": ")[0] for line in lines] == ["semel.toml:2", "semel.toml:6", "semel.toml:11"]


# ------------------------------------------------------------------------------------------- what adapters are given


def test_a_source_reads_like_its_settings_say(tmp_path: Path) -> None:
    more = 'tenant = "t"\nid_path = "a.b"\nhanded_on = true\nregion = "eu-west-1"\n'
    settings = loaded(tmp_path, 'origin = "o"\n' + SQS + more)
    options = source_options(settings.sources[0], settings)
    assert options["reading"] == Reading("o", "a.b")
    assert (options["tenant"], options["handed_on"], options["region"]) == ("t", True, "eu-west-1")
    plain = Settings(sources=[SqsSource(queue=URL)])
    assert source_options(plain.sources[0], plain)["reading"] is None, "the app's own, which may come from Python"


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


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("semel.wiring.find_spec", lambda name: None)
    for kind, extra in (("sqs", "aws"), ("kafka", "kafka"), ("rabbitmq", "rabbitmq")):
        with pytest.raises(ConfigError, match=rf"pip install 'semel\[{extra}\]'"):
            wiring.source(kind, {})
        with pytest.raises(ConfigError, match=rf"pip install 'semel\[{extra}\]'"):
            wiring.publisher(kind, {})
    with pytest.raises(ConfigError, match="expected sqs, kafka or rabbitmq"):
        wiring.source("nats", {})
    with pytest.raises(ConfigError, match="expected sqs, kafka or rabbitmq"):
        wiring.publisher("nats", {})


def test_an_endpoint_hands_on_by_the_publisher_of_its_broker(tmp_path: Path) -> None:
    paths = '[[endpoints]]\naccept = "sqs"\n[[endpoints]]\npath = "/here"\n'
    kafka = '[brokers.kafka]\nservers = "a:9092"\ntopic = "t"\n'
    built = build(loaded(tmp_path, 'ledger = "memory://"\n' + BROKER + kafka + paths + ROUTE))
    assert list(built.publishers) == ["sqs"], "a broker that nobody hands on to is not opened"
    handing, here = doors(built.settings, built.publishers)
    assert handing.publisher is built.publishers["sqs"]
    assert here.publisher is None


def test_a_source_is_made_anew_each_time(tmp_path: Path) -> None:
    built = build(loaded(tmp_path, 'ledger = "memory://"\n' + SQS + 'unmatched = "reject"\nworkers = 2\n' + ROUTE))
    (supply,) = built.supplies
    assert (supply.name, supply.workers, supply.unmatched) == ("sqs-events", 2, "reject")
    assert supply.make() is not supply.make()


@pytest.mark.parametrize(
    ("make", "said"), [(sources.sqs, SqsSource), (sources.kafka, KafkaSource), (sources.rabbitmq, RabbitSource)]
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
    assert (made.queue, made.tenant, made.reading) == (URL, "t", Reading("", "a.b"))
    plain: Any = sources.sqs(URL)
    assert plain.reading is None
    with pytest.raises(ConfigError, match="queue='x'"):
        sources.sqs("x")
    assert sources.kafka("a:9092", ["t"], group="g", dead_letters="d") is not None
    assert sources.rabbitmq("amqp://h/", "q", dead_letters="d") is not None


def test_what_the_page_shows_can_be_used(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "sources.md").read_text("utf-8")
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 3
    for text in shown:
        settings = loaded(tmp_path, text, PGPASSWORD="x", GENESYS_SECRET="a secret of some length")
        assert settings.sources or settings.brokers.sqs
