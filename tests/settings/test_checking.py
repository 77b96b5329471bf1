"""The checks of doctor: one ok finding for each, or a problem with its remedy."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.wording import lacks

from semel import Semel
from semel.ports import DataLoss, Traits
from semel.settings.checks import Finding, RouteFacts, StoreFacts, check, errors, facts_of, refuse, span
from semel.settings.rules import misspelt
from semel.settings.schema import DestinationSettings, EndpointSettings, Route, ServerSettings, Settings, Token, Verify
from semel.values.errors import ConfigError
from semel.values.secret import Secret

SQLITE = StoreFacts(Traits("SQLite", durable=True, transactional=True))
MEMORY = StoreFacts(Traits("memory", durable=False, transactional=False), inbox=False)
LOSES = DataLoss(power_loss="the last second", failover="what was not copied yet")
REDIS = StoreFacts(Traits("Redis", durable=True, transactional=False, loses=LOSES), inbox=False)
DAY = 86_400.0
FACTS = RouteFacts("a", "retry", timeout_s=20.0, lease_s=25.0, retention_s=38 * DAY, window_s=900.0)
QUICK = replace(FACTS, timeout_s=5.0)
TOKEN = Token(name="t", digest="sha256:" + "0" * 64, scopes=["keys"])
LONG = Secret("a secret of some length", "env:LONG")
VERIFIED = Verify(scheme="genesys", secrets=[LONG])
CHECKS = ["routes", "timeout", "retention", "window", "destination", "drain", "inline", "inbox", "sources"]
CHECKS += ["providers", "credentials", "durability", "dead_letters", "access", "secrets", "fail-open"]


def found(settings: Settings, *routes: RouteFacts, store: StoreFacts = SQLITE) -> list[Finding]:
    """What is not well."""
    return [one for one in check(settings, routes or [FACTS], store) if one.level != "ok"]


def only(settings: Settings, *routes: RouteFacts, store: StoreFacts = SQLITE) -> Finding:
    (finding,) = found(settings, *routes, store=store)
    assert finding.change
    return finding


def test_every_check_has_an_ok_finding() -> None:
    findings = check(Settings(), [FACTS], SQLITE)
    assert [finding.check for finding in findings] == CHECKS
    assert {finding.level for finding in findings} == {"ok"}
    refuse(findings)


@pytest.mark.parametrize(("timeout_s", "bad"), [(24.9, False), (25.0, True), (60.0, True), (None, False)])
def test_a_timeout_is_under_its_lease(timeout_s: float | None, bad: bool) -> None:
    findings = found(Settings(server=ServerSettings(drain=100)), replace(FACTS, timeout_s=timeout_s))
    assert [one.level for one in findings if one.check == "timeout"] == ["error"] * bad


def test_a_timeout_over_its_lease_has_a_remedy() -> None:
    finding = only(Settings(server=ServerSettings(drain=60)), replace(FACTS, timeout_s=60.0))
    assert (finding.level, finding.check) == ("error", "timeout")
    assert lacks(finding.what, "route a 1 min lease 25 s") == []
    assert lacks(finding.change, "timeout 25 s lease") == []


@pytest.mark.parametrize(("retention_s", "bad"), [(38 * DAY, False), (38 * DAY - 1, True), (60.0, True)])
def test_retention_outlives_two_redelivery_windows(retention_s: float, bad: bool) -> None:
    findings = found(Settings(), replace(FACTS, retention_s=retention_s))
    assert [(one.level, one.check) for one in findings] == [("error", "retention")] * bad
    if bad:
        assert lacks(findings[0].change, "retention 3283200 38 d") == []


def test_a_shorter_redelivery_allows_a_shorter_retention() -> None:
    assert found(Settings(redelivery=DAY), replace(FACTS, retention_s=2 * DAY)) == []


def test_a_key_window_that_no_crash_survives_is_an_error() -> None:
    finding = only(Settings(), replace(FACTS, effect="keyed", window_s=30.0))
    assert (finding.level, finding.check) == ("error", "window")
    assert found(Settings(), replace(FACTS, effect="retry", window_s=30.0)) == []


def test_a_key_window_that_the_retries_outlast_is_a_warning() -> None:
    keyed = replace(FACTS, effect="keyed")
    assert found(Settings(), keyed) == []
    finding = only(Settings(), replace(keyed, max_attempts=20))
    assert (finding.level, finding.check) == ("warning", "window")
    assert only(Settings(), replace(keyed, max_attempts=2**40)) is not None  # nobody counts to it


@pytest.mark.parametrize(("timeout", "level"), [(10.0, []), (19.9, []), (20.0, ["error"]), (30.0, ["error"])])
def test_a_destination_is_given_up_before_its_route(timeout: float, level: list[str]) -> None:
    crm = {"crm": DestinationSettings(url="https://crm.example/", timeout=timeout)}
    settings = Settings(destinations=crm, routes=[Route(name="a", topics=["**"], forward="crm")])
    assert [one.level for one in found(settings)] == level


def test_a_url_of_a_route_is_a_destination_too_and_only_its_host_is_shown() -> None:
    route = Route(name="a", topics=["**"], forward="https://crm.example/hook/k3y?token=k3y")
    finding = only(Settings(routes=[route]), replace(FACTS, timeout_s=5.0))
    assert (finding.level, finding.check) == ("error", "destination")
    assert lacks(finding.what, "https://crm.example 10 s") == []
    assert "k3y" not in finding.what + finding.change


def test_an_unused_destination_is_a_warning() -> None:
    finding = only(Settings(destinations={"crm": DestinationSettings(url="https://crm.example/")}))
    assert (finding.level, finding.check) == ("warning", "destination")
    assert lacks(finding.what, "destination crm") == []


def test_a_drain_that_cuts_a_handler_is_a_warning() -> None:
    finding = only(Settings(server=ServerSettings(drain=10)))
    assert (finding.level, finding.check) == ("warning", "drain")
    endless = only(Settings(), replace(FACTS, timeout_s=None))
    assert (endless.level, endless.check) == ("warning", "drain")
    assert "route a" in endless.what


@pytest.mark.parametrize(("scheme", "waits"), [("genesys", 10), ("header", 5), ("hmac-hex", 5), ("none", 5), ("", 5)])
def test_an_inline_handler_that_outlasts_its_sender_is_a_warning(scheme: str, waits: int) -> None:
    verify = Verify(scheme=scheme, secrets=[LONG]) if scheme else None  # type: ignore[arg-type]
    inline = Settings(endpoints=[EndpointSettings(mode="inline", verify=verify)])
    finding = only(inline, replace(FACTS, timeout_s=waits + 0.5))
    assert (finding.level, finding.check) == ("warning", "inline")
    assert lacks(finding.what, f"route a {waits}.5 s inline /events {waits} s") == []
    assert f"{waits} s" in finding.what
    assert f"{waits} s" in finding.change
    assert lacks(finding.change, 'mode = "inbox" timeout') == []
    assert found(Settings(endpoints=[EndpointSettings(mode="inbox", verify=verify)])) == []
    assert found(inline, replace(FACTS, timeout_s=waits)) == []


def test_every_route_that_is_too_slow_for_an_inline_answer_is_named() -> None:
    settings = Settings(
        server=ServerSettings(drain=60), endpoints=[EndpointSettings(mode="inline"), EndpointSettings(path="/later")]
    )
    routes = [replace(FACTS, name="quick", timeout_s=5.0), FACTS, replace(FACTS, name="b", timeout_s=24.0)]
    of_a, of_b = found(settings, *routes)
    assert (of_a.check, of_b.check) == ("inline", "inline")
    assert ("route a" in of_a.what, "20 s" in of_a.what) == (True, True)
    assert ("route b" in of_b.what, "24 s" in of_b.what) == (True, True)
    (endless,) = [one for one in found(settings, replace(FACTS, timeout_s=None)) if one.check == "inline"]
    assert "route a" in endless.what


@pytest.mark.parametrize("store", [MEMORY, REDIS, replace(REDIS, dead_letter_store=True)])
def test_an_inbox_needs_a_store_that_keeps_one(store: StoreFacts) -> None:
    endpoints = [EndpointSettings(path="/a"), EndpointSettings(path="/b", mode="inline"), EndpointSettings(path="/c")]
    refused = errors(found(Settings(endpoints=endpoints), QUICK, store=store))
    assert [one.check for one in refused] == ["inbox", "inbox"]
    for finding, path in zip(refused, ("/a", "/c"), strict=True):
        assert lacks(finding.what, f"endpoint {path} inbox {store.traits.name}") == []
        assert lacks(finding.change, 'mode = "inline" timeout sqlite:/// postgresql://') == []
    inline = Settings(endpoints=[EndpointSettings(mode="inline")])
    assert errors(found(inline, QUICK, store=store)) == []


@pytest.mark.parametrize("store", [MEMORY, REDIS])
def test_what_is_advised_for_a_slow_inline_answer_is_possible(store: StoreFacts) -> None:
    """A store without an inbox would refuse mode = "inbox", and say mode = "inline" again."""
    slow = Settings(endpoints=[EndpointSettings(mode="inline")])
    (change,) = [one.change for one in found(slow, store=store) if one.check == "inline"]
    assert 'mode = "inbox"' not in change
    assert lacks(change, "timeout 5 s ledger sqlite:///") == []
    assert found(slow, QUICK, store=replace(REDIS, dead_letter_store=True)) == []


def test_a_caveat_names_its_documentation() -> None:
    caveat = StoreFacts(replace(SQLITE.traits, caveat="may forget"))
    assert "docs/guarantees.md" in only(Settings(), store=caveat).change


def test_a_volatile_store_is_a_warning() -> None:
    inline = Settings(endpoints=[EndpointSettings(mode="inline")])
    assert [(one.level, one.check) for one in found(inline, QUICK, store=MEMORY)] == [
        ("warning", "durability"),
        ("warning", "dead_letters"),
    ]


def test_dead_letters_in_a_store_that_may_lose_them_are_a_warning() -> None:
    inline = Settings(endpoints=[EndpointSettings(mode="inline")])
    finding = only(inline, QUICK, store=REDIS)
    assert (finding.level, finding.check) == ("warning", "dead_letters")
    for words in ("Redis", "power loss", "the last second", "failover", "what was not copied yet"):
        assert words in finding.what
    both = replace(REDIS.traits, loses=DataLoss(store_killed="everything", power_loss="everything"))
    together = only(inline, QUICK, store=StoreFacts(both, inbox=False)).what
    assert lacks(together, "kill power loss") == []
    assert together.count("everything") == 1, "the same loss is named once"
    assert "dead_letters" in finding.change
    assert found(inline, QUICK, store=replace(REDIS, dead_letter_store=True)) == []


def test_workers_need_a_store_that_they_share() -> None:
    settings = Settings(server=ServerSettings(workers=2), endpoints=[EndpointSettings(mode="inline")])
    assert [one.level for one in found(settings, QUICK, store=MEMORY) if one.check == "durability"] == [
        "warning",
        "error",
    ]


def test_a_weaker_store_configuration_is_a_warning() -> None:
    weaker = replace(SQLITE.traits, caveat="synchronous=normal may forget on power loss")
    finding = only(Settings(), store=StoreFacts(weaker))
    assert (finding.level, finding.check) == ("warning", "durability")
    assert lacks(finding.what, "SQLite synchronous=normal") == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "::ffff:10.0.0.1"])
def test_a_reachable_service_needs_tokens_and_verification(host: str) -> None:
    server = ServerSettings(host=host)
    assert [one.level for one in found(Settings(server=server))] == ["error", "error"]
    assert [one.level for one in found(Settings(server=server, tokens=[TOKEN]))] == ["error"]
    closed = Settings(server=server, tokens=[TOKEN], endpoints=[EndpointSettings(verify=VERIFIED)])
    assert found(closed) == []


def test_a_name_may_lead_to_other_machines() -> None:
    settings = Settings(server=ServerSettings(host="semel.internal"))
    access = [one for one in check(settings, [FACTS], SQLITE, leads=lambda host: True) if one.check == "access"]
    assert [one.level for one in access] == ["error", "error"]


@pytest.mark.parametrize("host", ["localhostt", "semel.invalid", "a..b", "x" * 70])
def test_a_host_without_an_address_is_the_only_access_finding(host: str) -> None:
    finding = only(Settings(server=ServerSettings(host=host)))
    assert (finding.level, finding.check) == ("error", "access")
    assert lacks(finding.what, f"host {host} address") == []
    assert ('"localhost"' in finding.change) == (host == "localhostt")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1"])
def test_a_loopback_service_needs_no_tokens(host: str) -> None:
    assert found(Settings(server=ServerSettings(host=host))) == []


def test_an_endpoint_may_be_unverified_on_purpose() -> None:
    settings = Settings(
        server=ServerSettings(host="0.0.0.0"),
        tokens=[TOKEN],
        endpoints=[EndpointSettings(verify=Verify(scheme="none"))],
    )
    finding = only(settings)
    assert (finding.level, finding.check) == ("warning", "access")


@pytest.mark.parametrize(
    ("url", "header", "reference", "warned"),
    [
        ("http://crm.example/", "X-Token", "env:T", True),
        ("HTTP://crm.example/", "authorization", "", True),
        ("http://crm.example/", "X-Source", "", False),
        ("https://crm.example/", "X-Token", "env:T", False),
        ("http://127.0.0.1:9/", "X-Token", "env:T", False),
    ],
)
def test_a_secret_in_the_clear_is_a_warning(url: str, header: str, reference: str, warned: bool) -> None:
    crm = DestinationSettings(url=url, headers={header: Secret("t0ken-t0ken-t0ken", reference)})
    settings = Settings(destinations={"crm": crm}, routes=[Route(name="a", topics=["**"], forward="crm")])
    findings = found(settings)
    assert [(one.level, one.check) for one in findings] == [("warning", "secrets")] * warned
    assert "t0ken" not in str(findings)


def test_a_short_secret_is_a_warning_that_does_not_show_it() -> None:
    verify = Verify(scheme="genesys", secrets=[LONG, Secret("hunter2", "file:pw")])
    finding = only(Settings(endpoints=[EndpointSettings(verify=verify)]))
    assert (finding.level, finding.check) == ("warning", "secrets")
    assert lacks(finding.what, "/events file:pw 16") == []
    assert "hunter2" not in str(finding)


def test_fail_open_is_a_warning_about_a_second_run() -> None:
    route = Route(name="a", topics=["**"], console=True, fail_open=True)
    finding = only(Settings(routes=[route], endpoints=[EndpointSettings(mode="inline")]), QUICK)
    assert (finding.level, finding.check) == ("warning", "fail-open")
    assert "twice" in finding.what


def test_no_routes_is_a_warning() -> None:
    (finding,) = [one for one in check(Settings(), [], SQLITE) if one.level != "ok"]
    assert (finding.level, finding.check) == ("warning", "routes")
    assert "endpoints = []" in finding.change


def test_the_http_api_alone_needs_only_tokens() -> None:
    alone = Settings(server=ServerSettings(host="0.0.0.0"), endpoints=[], tokens=[TOKEN])
    findings = check(alone, [], SQLITE)
    assert {finding.level for finding in findings} == {"ok"}
    assert findings[0].check == "routes"
    (open_endpoint,) = errors(check(replace(alone, endpoints=[EndpointSettings()]), [], SQLITE))
    assert "endpoints = []" in open_endpoint.change


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("v2.detail.event.conversation.*.acw", "v2.detail.events.conversation.*.acw"),
        ("v2.details.events.conversation.**", "v2.detail.events.conversation.**"),
        ("v2.user.*.presence", "v2.users.*.presence"),
        ("V2.users.*.presence", "v2.users.*.presence"),
        ("v2.detail.events.conversation.*.customer.end", ""),
        ("v2.routing.queues.*.users", ""),
        ("v2.something.else", ""),
        ("interaction.created", ""),
        ("**", ""),
        ("v2.**", ""),
        ("v2.*.events.conversation.x", ""),
        ("json", ""),
    ],
)
def test_a_misspelt_topic_is_a_warning(pattern: str, meant: str) -> None:
    assert misspelt(pattern) == meant
    findings = found(Settings(), replace(FACTS, patterns=(pattern,)))
    assert [f'"{meant}"' in finding.change for finding in findings] == [True] * bool(meant)


def test_an_error_is_refused_with_what_to_change() -> None:
    findings = check(Settings(server=ServerSettings(host="0.0.0.0")), [FACTS], SQLITE)
    assert len(errors(findings)) == 2
    with pytest.raises(ConfigError) as raised:
        refuse(findings)
    for finding in errors(findings):
        assert finding.what in str(raised.value)
        assert finding.change in str(raised.value)


def test_an_error_without_a_remedy_has_no_colon_at_its_end() -> None:
    with pytest.raises(ConfigError, match=r"(?m)the disk is broken$"):
        refuse([Finding("error", "the disk is broken"), Finding("error", "another", "put it right")])


@pytest.mark.parametrize("name", ["ledger", "dead_letters"])
@pytest.mark.parametrize(
    ("url", "reference", "warned"),
    [
        ("redis://semel:p4ssw0rd-of-it@host", "", True),
        ("redis+sentinel://host/name?sentinel_password=p4ssw0rd-of-it", "", True),
        ("redis://semel:p4ssw0rd-of-it@host", "redis://semel:env:NAME@host", False),
        ("redis://semel:p4ssw0rd-of-it@host", "env:SEMEL_LEDGER", False),
        ("redis://semel@host", "", False),
        ("postgresql://semel@host/app?passfile=/run/secrets/pg&sslkey=/run/secrets/key.pem", "", False),
        ("sqlite:////var/a:b@c/semel.db", "", False),
    ],
)
def test_a_password_in_the_settings_file_is_a_warning(name: str, url: str, reference: str, warned: bool) -> None:
    findings = found(replace(Settings(), **{name: Secret(url, reference)}))
    assert [(one.level, one.check) for one in findings] == [("warning", "secrets")] * warned
    assert all("env:NAME" in one.change and "p4ssw0rd" not in str(one) for one in findings)


def test_facts_are_read_from_all_handlers() -> None:
    app = Semel("memory://")

    @app.on("a.*", "b", effect="keyed", window=60, timeout=None, lease=5, retention=7, max_attempts=3, name="x")
    async def handle(event: object, ctx: object) -> None: ...

    assert facts_of(app.handlers) == [RouteFacts("x", "keyed", None, 5.0, 7.0, 60.0, 3, ("a.*", "b"))]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.05, "0.05 s"), (25.0, "25 s"), (90.0, "90 s"), (900.0, "15 min"), (7200, "2 h"), (DAY, "1 d")],
)
def test_times_are_written_for_people(seconds: float, text: str) -> None:
    assert span(seconds) == text
