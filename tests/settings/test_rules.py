"""Settings with valid types that contradict each other."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.settings.writing import ROUTE, loaded, told
from tests.wording import lacks

from semel import wiring
from semel.service.assembly import build, served_endpoints
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
    ("text", "line", "words"),
    [
        # twice
        (ROUTE + ROUTE, 6, '[[routes]] name "all"'),
        ("[[endpoints]]\n[[endpoints]]", 2, '[[endpoints]] path "/events"'),
        (
            f'[[tokens]]\nname = "a"\nscopes = ["keys"]\n{DIGEST}[[tokens]]\nname = "b"\nscopes = ["keys"]\n{DIGEST}',
            8,
            "[[tokens]] digest",
        ),
        # the ledger
        ('ledger = "sqlit:///x.db"', 1, '"sqlite"'),
        ('ledger = "semel.db"', 1, "ledger sqlite:///file.db"),
        # where a route leads
        (CRM + FORWARD.replace('"crm"', '"crmm"'), 6, 'destination "crmm" "crm"'),
        (FORWARD, 4, 'destination "crm" [destinations.crm] URL'),
        (CRM + FORWARD + "console = true", 6, "forward console"),
        ('[[routes]]\nname = "x"\ntopics = ["**"]', 1, "forward console"),
        (to("ftp://x/y"), 4, "forward https:// http://"),
        (to("https://"), 4, "forward host"),
        (to("https://u:p@x/y"), 4, "forward password"),
        (to("https://x:99999/"), 4, "forward URL"),
        (to("https://x:0/"), 4, "forward port 0"),
        (to("https://[::1/"), 4, "forward URL"),
        (to("https://x/ y"), 4, "forward space"),
        (to("https://x\\\\@y/"), 4, "forward backslash"),
        (to("https://0x7f.1/"), 4, "forward 0x7f.1 127.0.0.1"),
        (to("https://x/#y"), 4, "forward #"),
        (
            to("http://127.0.0.1:9/k3y"),
            4,
            'forward loopback [destinations.NAME] url = "http://127.0.0.1:9/…" allow = ["127.0.0.1"] forward = "NAME"',
        ),
        (to("http://localhost/"), 4, "forward localhost loopback allow"),
        (to("http://10.1.2.3/"), 4, "forward 10.1.2.3 private allow"),
        (to("http://[::1]:9/"), 4, 'url = "http://[::1]:9/…" allow = ["::1"]'),
        (CRM.replace("https:", "htps:"), 2, "url https://"),
        # routes
        (ROUTE.replace('"**"', '"a.**.b"'), 3, "`**` last"),
        (ROUTE.replace('"**"', '"a.b*"'), 3, "`*` segment"),
        (ROUTE + 'key = "evnt"', 5, 'key "evnt" "event"'),
        (ROUTE + 'key = "detail.id"', 5, 'key = ["detail.id"]'),
        (ROUTE + "key = []", 5, "key empty"),
        (CRM + FORWARD + 'effect = "transaction"', 7, "effect transaction"),
        (CRM + FORWARD + 'effect = "fenced"', 7, "effect ctx.token"),
        (
            CRM + FORWARD + 'effect = "keyd"',
            7,
            'effect "keyed" "retry" "park" "keyd"',
        ),
        (CRM + FORWARD + 'allow = ["::1"]', 7, '[destinations.NAME] forward = "NAME"'),
        (ROUTE + "window = 60", 5, 'window effect = "keyed"'),
        (ROUTE + "fail_open = true", 5, 'fail_open mode = "inline"'),
        (INLINE + ROUTE + 'effect = "park"\nfail_open = true', 8, "fail_open park"),
        # endpoints
        ('[[endpoints]]\ntype_path = "kind"', 2, "type_path id_path"),
        *(
            (f'[[endpoints]]\npath = "{path}"', 2, f'path "{path}" Semel')
            for path in ("/healthz", "/readyz", "/metrics", "/v1", "/v1/claims", "/openapi.json", "/metrics/x")
        ),
        *(
            (f'[[endpoints]]\npath = "{path}"', 2, f'path "{path}" empty dot')
            for path in ("/", "/events/", "//events", "/a/../v1", "/./events")
        ),
        # verification
        (endpoint('scheme = "genesys"'), 2, 'scheme "genesys" secrets = ["env:NAME"]'),
        (endpoint('scheme = "basic"\nsecrets = ["env:S"]'), 2, 'scheme "basic" username'),
        (endpoint('scheme = "sns"'), 2, 'scheme "sns" topics'),
        (endpoint('scheme = "sns"\ntopics = ["x"]'), 4, "topics[0] ARN"),
        (endpoint('scheme = "none"\nsecrets = ["env:S"]'), 4, 'scheme "none" secrets'),
        (endpoint('scheme = "genesys"\nsecrets = ["env:S"]\nheader = "x"'), 5, 'scheme "genesys" header'),
        (endpoint('scheme = "hmac-hex"\nsecrets = ["env:S"]\nheader = "x y"'), 5, "header name"),
        (endpoint('scheme = "basic"\nsecrets = ["env:S"]\nusername = "a:b"'), 5, "username colon"),
        (endpoint('scheme = "genesys"\nsecrets = ["env:PADDED"]'), 4, "secrets[0] env:PADDED space"),
        (endpoint('scheme = "standard-webhooks"\nsecrets = ["env:S"]'), 4, "env:S Standard Webhooks"),
        # headers
        (CRM + 'headers = { "x y" = "z" }', 3, 'headers name "x y"'),
        (CRM + 'headers = { x = "a\\r\\nb: c" }', 3, "headers.x control"),
        (CRM + 'headers = { x = "env:LINES" }', 3, "headers.x env:LINES control"),
        (CRM + 'headers = { A = "1", a = "2" }', 3, "headers.a"),
        (CRM + 'headers = { Idempotency-Key = "1" }', 3, "headers.Idempotency-Key Semel"),
        (CRM + 'allow = ["10.0.0.0/8", "10.0.0.0/99"]', 3, "allow[1] host range"),
        (CRM + 'allow = ["*.internal"]', 3, "allow[0] host range"),
    ],
)
def test_a_broken_rule_is_reported_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    (only,) = told(tmp_path, text, S="some secret", LINES="a\nb", PADDED=" secret ")
    assert only.startswith(f"semel.toml:{line}: ")
    assert lacks(only, words) == [], only


def test_a_duplicate_name_of_a_token_is_reported(tmp_path: Path) -> None:
    token = f'[[tokens]]\nname = "a"\nscopes = ["keys"]\n{DIGEST}'
    (line,) = told(tmp_path, token + token.replace("0" * 64, "1" * 64))
    assert line.startswith('semel.toml:6: [[tokens]] "a": ')
    assert "name" in line


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
def test_loaded_settings_can_be_assembled(tmp_path: Path, text: str) -> None:
    """The parts that are made of the settings have opinions of their own: none may come after loading."""
    environ = {"S": "some secret", "T": "another", "WHSEC": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
    settings = loaded(tmp_path, 'ledger = "memory://"\n' + text, **environ)
    assert build(settings).settings is settings
    assert len(served_endpoints(settings)) == len(settings.endpoints)


def test_errors_offer_only_effects_that_a_route_accepts(tmp_path: Path) -> None:
    for effect in NOT_FORWARDED:
        (only,) = told(tmp_path, CRM + FORWARD + f'effect = "{effect[:-1]}"')
        assert f'"{effect}"' not in only


def test_an_empty_list_of_endpoints_takes_no_events(tmp_path: Path) -> None:
    assert loaded(tmp_path, "endpoints = []").endpoints == []
    assert loaded(tmp_path, "", SEMEL_ENDPOINTS="[]").endpoints == []
    assert [endpoint.path for endpoint in loaded(tmp_path, "").endpoints] == ["/events"]


def test_there_is_a_rule_for_every_scheme() -> None:
    field = next(field for field in msgspec.structs.fields(Verify) if field.name == "scheme")
    (scheme_type,) = [msgspec.inspect.type_info(field.type)]
    assert isinstance(scheme_type, msgspec.inspect.LiteralType)
    assert set(scheme_type.values) == set(VERIFY)


def test_every_known_ledger_is_accepted(tmp_path: Path) -> None:
    for example in wiring.SCHEMES:
        assert loaded(tmp_path, f'ledger = "{example}"').ledger.reveal() == example
