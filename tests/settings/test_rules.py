"""Settings that are of the right type each, and do not go together."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.settings.writing import ROUTE, loaded, told

from semel import wiring
from semel.service.building import build, doors
from semel.settings.rules import NOT_FORWARDED, VERIFY
from semel.settings.schema import Verify

CRM = '[destinations.crm]\nurl = "https://crm.example/events"\n'
FORWARD = '[[routes]]\nname = "to-crm"\ntopics = ["**"]\nforward = "crm"\n'
DIGEST = f'digest = "sha256:{"0" * 64}"\n'
INLINE = '[[endpoints]]\nmode = "inline"\n'


def endpoint(verify: str) -> str:
    return f"[[endpoints]]\n[endpoints.verify]\n{verify}"


def to(url: str) -> str:
    return FORWARD.replace('"crm"', f'"{url}"')


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        # twice
        (ROUTE + ROUTE, 6, 'another of [[routes]] has the name "all" already'),
        ("[[endpoints]]\n[[endpoints]]", 2, 'another of [[endpoints]] has the path "/events" already'),
        (
            f'[[tokens]]\nname = "a"\nscopes = ["keys"]\n{DIGEST}[[tokens]]\nname = "b"\nscopes = ["keys"]\n{DIGEST}',
            8,
            "another of [[tokens]] has the digest already",
        ),
        # the ledger
        ('ledger = "sqlit:///x.db"', 1, 'did you mean "sqlite"?'),
        ('ledger = "semel.db"', 1, "ledger: expected one of sqlite:///file.db"),
        # where a route leads
        (CRM + FORWARD.replace('"crm"', '"crmm"'), 6, 'there is no destination "crmm"; did you mean "crm"?'),
        (FORWARD, 4, 'there is no destination "crm"; add [destinations.crm], or write a URL'),
        (CRM + FORWARD + "console = true", 6, "a route has forward or console, not both"),
        ('[[routes]]\nname = "x"\ntopics = ["**"]', 1, "say where events go"),
        (to("ftp://x/y"), 4, "forward: expected a URL that begins with https:// or http://"),
        (to("https://"), 4, "forward: its host is no name or address"),
        (to("https://u:p@x/y"), 4, "forward: a URL is shown in logs, so it holds no password"),
        (to("https://x:99999/"), 4, "forward: this is no URL"),
        (to("https://x:0/"), 4, "it has the port 0"),
        (to("https://[::1/"), 4, "forward: this is no URL"),
        (to("https://x/ y"), 4, "forward: a URL has no spaces"),
        (to("https://x\\\\@y/"), 4, "no backslashes"),
        (to("https://0x7f.1/"), 4, "its host 0x7f.1 is 127.0.0.1 in disguise"),
        (to("https://x/#y"), 4, "the part after # is never sent"),
        (
            to("http://127.0.0.1:9/k3y"),
            4,
            "forward: 127.0.0.1 is loopback, and is not called unless a destination allows it: "
            'write [destinations.NAME] with url = "http://127.0.0.1:9/…" and allow = ["127.0.0.1"], '
            'and in the route forward = "NAME"',
        ),
        (to("http://localhost/"), 4, "forward: localhost is loopback, and is not called"),
        (to("http://10.1.2.3/"), 4, "forward: 10.1.2.3 is private, and is not called"),
        (to("http://[::1]:9/"), 4, 'with url = "http://[::1]:9/…" and allow = ["::1"]'),
        (CRM.replace("https:", "htps:"), 2, "url: expected a URL that begins with"),
        # routes
        (ROUTE.replace('"**"', '"a.**.b"'), 3, "`**` stands for the rest, so it comes last"),
        (ROUTE.replace('"**"', '"a.b*"'), 3, "`*` stands for a whole segment"),
        (ROUTE + 'key = "evnt"', 5, 'or a list of paths, got "evnt"; did you mean "event"?'),
        (ROUTE + 'key = "detail.id"', 5, 'for a path write a list: key = ["detail.id"]'),
        (ROUTE + "key = []", 5, "key: the list is empty"),
        (CRM + FORWARD + 'effect = "transaction"', 7, "no transaction of the ledger can hold what a route does"),
        (CRM + FORWARD + 'effect = "fenced"', 7, "nothing there checks ctx.token"),
        (
            CRM + FORWARD + 'effect = "keyd"',
            7,
            'effect: expected one of "keyed", "retry", "park", got the text "keyd"; did you mean "keyed"?',
        ),
        (CRM + FORWARD + 'allow = ["::1"]', 7, 'in [destinations.NAME], to which a route has forward = "NAME"'),
        (ROUTE + "window = 60", 5, 'only effect = "keyed" has one'),
        (ROUTE + "fail_open = true", 5, 'only at an endpoint with mode = "inline", and there is none'),
        (INLINE + ROUTE + 'effect = "park"\nfail_open = true', 8, "nobody can promise"),
        # endpoints
        ('[[endpoints]]\ntype_path = "kind"', 2, "type_path is only read together with id_path"),
        *(
            (f'[[endpoints]]\npath = "{path}"', 2, "is Semel's own")
            for path in ("/healthz", "/readyz", "/metrics", "/v1", "/v1/claims", "/openapi.json", "/metrics/x")
        ),
        *(
            (f'[[endpoints]]\npath = "{path}"', 2, "has an empty part or a dot for a name")
            for path in ("/", "/events/", "//events", "/a/../v1", "/./events")
        ),
        # verification
        (endpoint('scheme = "genesys"'), 2, 'scheme "genesys" needs secrets = ["env:NAME"]'),
        (endpoint('scheme = "basic"\nsecrets = ["env:S"]'), 2, 'scheme "basic" needs username'),
        (endpoint('scheme = "sns"'), 2, 'scheme "sns" needs topics'),
        (endpoint('scheme = "sns"\ntopics = ["x"]'), 4, "topics[0]: expected the ARN of a topic"),
        (endpoint('scheme = "none"\nsecrets = ["env:S"]'), 4, 'scheme "none" has no secrets: leave it out'),
        (endpoint('scheme = "genesys"\nsecrets = ["env:S"]\nheader = "x"'), 5, 'scheme "genesys" has no header'),
        (endpoint('scheme = "hmac-hex"\nsecrets = ["env:S"]\nheader = "x y"'), 5, "expected the name of a header"),
        (endpoint('scheme = "basic"\nsecrets = ["env:S"]\nusername = "a:b"'), 5, "has no colon"),
        (endpoint('scheme = "genesys"\nsecrets = ["env:PADDED"]'), 4, "secrets[0]: env:PADDED has white space"),
        (endpoint('scheme = "standard-webhooks"\nsecrets = ["env:S"]'), 4, "env:S is no secret of Standard Webhooks"),
        # headers
        (CRM + 'headers = { "x y" = "z" }', 3, 'expected the name of a header, such as "x-api-key", got "x y"'),
        (CRM + 'headers = { x = "a\\r\\nb: c" }', 3, "headers.x: the value has a control character"),
        (CRM + 'headers = { x = "env:LINES" }', 3, "headers.x: the value of env:LINES has a control character"),
        (CRM + 'headers = { A = "1", a = "2" }', 3, "headers.a is there twice"),
        (CRM + 'headers = { Idempotency-Key = "1" }', 3, "headers.Idempotency-Key is set by Semel"),
        (CRM + 'allow = ["10.0.0.0/8", "10.0.0.0/99"]', 3, "allow[1]: expected a host or a range"),
        (CRM + 'allow = ["*.internal"]', 3, "allow[0]: expected a host or a range"),
    ],
)
def test_a_broken_rule_is_told_at_its_line(tmp_path: Path, text: str, line: int, said: str) -> None:
    (only,) = told(tmp_path, text, S="some secret", LINES="a\nb", PADDED=" secret ")
    assert only.startswith(f"semel.toml:{line}: ")
    assert said in only


def test_a_duplicate_name_of_a_token_is_told(tmp_path: Path) -> None:
    token = f'[[tokens]]\nname = "a"\nscopes = ["keys"]\n{DIGEST}'
    lines = told(tmp_path, token + token.replace("0" * 64, "1" * 64))
    assert lines == ['semel.toml:6: [[tokens]] "a": another of [[tokens]] has the name "a" already']


@pytest.mark.parametrize(
    "text",
    [
        CRM + FORWARD + 'effect = "keyed"\nwindow = 60',
        CRM + FORWARD + 'effect = "park"',
        INLINE + ROUTE + "fail_open = true",
        INLINE + 'id_path = "order.id"\ntype_path = "order.kind"',
        CRM + 'allow = ["10.0.0.0/8", "::1", "fd00::/8", "crm.internal", "127.0.0.1"]',
        CRM + 'headers = { Content-Type = "text/plain", X-Source = "Zürich" }',
        ROUTE + 'key = ["detail.eventBody.conversationId", "detail.items.0.id"]',
        to("https://crm.example:8443/a/b?c=d") + 'select = "detail.eventBody"',
        to("http://[2620:fe::fe]/x"),
        endpoint('scheme = "genesys"\nsecrets = ["env:S", "env:T"]'),
        endpoint('scheme = "standard-webhooks"\nsecrets = ["env:WHSEC"]'),
        endpoint('scheme = "hmac-hex"\nsecrets = ["env:S"]\nheader = "X-Signature"'),
        endpoint('scheme = "header"\nsecrets = ["env:S"]'),
        endpoint('scheme = "basic"\nsecrets = ["env:S"]\nusername = "semel"'),
        endpoint('scheme = "sns"\ntopics = ["arn:aws:sns:eu-central-1:123456789012:events.fifo"]'),
        endpoint('scheme = "none"'),
    ],
)
def test_what_is_loaded_can_be_built(tmp_path: Path, text: str) -> None:
    """The parts that are made of the settings have opinions of their own: none may come after loading."""
    environ = {"S": "some secret", "T": "another", "WHSEC": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    settings = loaded(tmp_path, 'ledger = "memory://"\n' + text, **environ)
    assert build(settings).settings is settings
    assert len(doors(settings)) == len(settings.endpoints)


def test_nothing_is_offered_that_a_route_refuses(tmp_path: Path) -> None:
    for effect in NOT_FORWARDED:
        (only,) = told(tmp_path, CRM + FORWARD + f'effect = "{effect[:-1]}"')
        assert f'"{effect}"' not in only


def test_a_list_that_is_empty_on_purpose_takes_no_events(tmp_path: Path) -> None:
    assert loaded(tmp_path, "endpoints = []").endpoints == []
    assert loaded(tmp_path, "", SEMEL_ENDPOINTS="[]").endpoints == []
    assert [endpoint.path for endpoint in loaded(tmp_path, "").endpoints] == ["/events"]


def test_there_is_a_rule_for_every_scheme() -> None:
    field = next(field for field in msgspec.structs.fields(Verify) if field.name == "scheme")
    (scheme_type,) = [msgspec.inspect.type_info(field.type)]
    assert isinstance(scheme_type, msgspec.inspect.LiteralType)
    assert set(scheme_type.values) == set(VERIFY)


def test_every_known_ledger_is_let_through(tmp_path: Path) -> None:
    for example in wiring.SCHEMES:
        assert loaded(tmp_path, f'ledger = "{example}"').ledger.reveal() == example
