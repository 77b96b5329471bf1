"""[providers], [channels] and [outbox]: valid settings, errors with their lines, findings of doctor."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from tests.settings.writing import loaded, told
from tests.wording import lacks

from semel import Semel, providers
from semel.ports import Traits
from semel.service.assembly import build
from semel.settings.checks import Finding, StoreFacts, check, promise
from semel.settings.schema import Settings
from semel.values.delivery_state import Contract, Key
from semel.values.errors import ConfigError

SQLITE = StoreFacts(Traits("SQLite", durable=True, transactional=True))
SMS = '[providers.sms]\nkind = "twilio"\naccount = "AC1"\ntoken = "env:TW"\nsender = "+491"\n'
VONAGE = '[providers.other]\nkind = "vonage"\napi_key = "k"\napi_secret = "env:TW"\nsender = "x"\n'
HTTP = (
    '[providers.hook]\nkind = "http"\nurl = "https://x.example/"\nchannels = ["event"]\n'
    'headers = { x-api-key = "env:TW", accept = "a/b" }\n'
)
BOTH = '[channels]\nsms = ["sms", "other"]\n'
CALLBACKS = '[providers.sms.callbacks]\npath = "/callbacks/sms"\n'


def found(settings: Settings, check_name: str) -> list[Finding]:
    return [one for one in check(settings, [], SQLITE, lambda host: True) if one.check == check_name]


# ---------------------------------------------------------------------------------------------------- what is written


def test_options_of_a_provider_are_read_with_secrets(tmp_path: Path) -> None:
    settings = loaded(tmp_path, SMS + HTTP, TW="s3cret-s3cret")
    sms, hook = settings.providers["sms"], settings.providers["hook"]
    assert sms.kind == "twilio"
    assert {name: str(value) for name, value in sms.options.items() if name != "token"} == {
        "account": "AC1",
        "sender": "+491",
    }
    assert sms.options["token"].reveal() == "s3cret-s3cret"
    assert {name: value.reveal() for name, value in hook.options["headers"].items()} == {
        "x-api-key": "s3cret-s3cret",
        "accept": "a/b",
    }
    assert "s3cret" not in repr(settings)


def test_the_only_provider_of_a_channel_sends(tmp_path: Path) -> None:
    built = build(loaded(tmp_path, SMS, TW="x"), Semel(f"sqlite:///{tmp_path}/a.db"))
    assert list(built.providers) == ["sms"]
    assert built.channels == {"sms": ["sms"]}


def test_several_providers_of_a_channel_need_an_order(tmp_path: Path) -> None:
    (line,) = told(tmp_path, SMS + VONAGE, TW="x")
    assert 'sms = ["sms", "other"]' in line
    assert "[channels]" in line
    settings = loaded(tmp_path, BOTH + SMS + VONAGE, TW="x")
    built = build(settings, Semel(f"sqlite:///{tmp_path}/a.db"))
    assert built.channels == {"sms": ["sms", "other"], "message": ["other"]}


def test_a_variable_sets_an_option_and_a_text_stays_one(tmp_path: Path) -> None:
    variables = {"SEMEL_PROVIDERS__SMS__SENDER": "+4912345", "SEMEL_PROVIDERS__SMS__CONCURRENCY": "7"}
    options = loaded(tmp_path, SMS, TW="x", **variables).providers["sms"].options
    assert (options["sender"], options["concurrency"]) == ("+4912345", 7)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (SMS.replace("twilio", "twillio"), "[providers.sms] kind 'twillio'"),
        (SMS + 'sendr = "x"\n', "[providers.sms] 'sendr' 'sender'"),
        (SMS.replace('account = "AC1"\n', ""), "[providers.sms] account missing"),
        (SMS.replace('"env:TW"', '"tok3n"'), "[providers.sms] token env:"),
        (SMS.replace('"env:TW"', '"env:NONE"'), "[providers.sms] token env:NONE"),
        (SMS + "concurrency = 0\n", "[providers.sms] concurrency 0"),
        (BOTH + SMS, 'sms provider "other"'),
        ('[channels]\nemail = ["sms"]\n' + SMS, 'email provider "sms"'),
        ('[channels]\nsms = ["sms", "sms"]\n' + SMS, 'sms "sms"'),
        (SMS + CALLBACKS.replace("/callbacks/sms", "/v1/x"), '"/v1/x" Semel'),
        (SMS + CALLBACKS.replace("/callbacks/sms", "/events"), '"/events"'),
        (SMS + CALLBACKS + '[providers.sms.callbacks.verify]\nscheme = "header"\n', 'scheme "header" secrets'),
        (
            VONAGE.replace("vonage", "smtp") + CALLBACKS.replace("sms", "other", 1),
            "smtp [providers.other.callbacks]",
        ),
        (
            SMS
            + 'callback = "https://x.example/callbacks/sms"\n'
            + CALLBACKS
            + '[providers.sms.callbacks.verify]\nscheme = "genesys"\nsecrets = ["env:TW"]\n',
            'twilio, header, basic, none "twilio"',
        ),
        (
            SMS + 'url = "https://u:tok3n@sms.example"\n',
            ":6: [providers.sms] url password",
        ),
        (
            SMS + 'callback = "callbacks/sms"\n',
            ":6: [providers.sms] callback https://",
        ),
        (SMS + 'url = "ftp://sms.example"\n', "[providers.sms] url https://"),
        ("[outbox]\nretension = 3\n", '[outbox] "retension" "retention"'),
        ('providers = ["x"]\n', "[providers.NAME]"),
        ('[providers]\nsms = "twilio"\n', "sms table"),
    ],
)
def test_an_invalid_provider_is_reported_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    lines = told(tmp_path, text, TW="x")
    assert all(line.startswith("semel.toml:") for line in lines)
    assert any(not lacks(line, words) for line in lines), lines
    assert all("tok3n" not in one for one in lines)


def test_a_ledger_without_an_outbox_has_no_providers(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"memory.*outbox.*sqlite"):
        build(loaded(tmp_path, SMS, TW="x"), Semel("memory://"))


# --------------------------------------------------------------------------------------------------------- doctor


def test_every_provider_has_a_line_of_promise(tmp_path: Path) -> None:
    lines = [one.what for one in found(loaded(tmp_path, BOTH + SMS + VONAGE, TW="x"), "providers")]
    assert lacks(lines[0], "sms twilio at most once") == []
    assert lacks(lines[1], "other vonage at most once") == []
    assert promise(Contract(name="a", channels=("sms",), looks_up=True, settle_s=7.0)).count("7 s") == 1


def test_the_promise_mentions_callbacks_that_arrive(tmp_path: Path) -> None:
    grid = '[providers.sms]\nkind = "sendgrid"\napi_key = "env:TW"\n'
    for text, heard in ((grid, False), (grid + CALLBACKS, True)):
        (line,) = [one.what for one in found(loaded(tmp_path, text, TW="x"), "providers")]
        assert lacks(line, "sms sendgrid at most once") == []
        assert ("callback" in line) == heard


def test_vonage_sends_no_callbacks_without_an_application(tmp_path: Path) -> None:
    text = VONAGE.replace("other", "sms") + CALLBACKS
    promised, warned = found(loaded(tmp_path, text, TW="x"), "providers")
    assert "callback" not in promised.what
    assert warned.level == "warning"
    assert "Vonage" in warned.what


def test_the_promise_of_a_provider_without_callbacks_mentions_none(tmp_path: Path) -> None:
    genesys = '[providers.g]\nkind = "genesys"\nregion = "mypurecloud.de"\nclient_id = "c"\nclient_secret = "env:TW"\n'
    (line,) = [one.what for one in found(loaded(tmp_path, genesys, TW="x"), "providers")]
    assert lacks(line, "g genesys at most once") == []
    assert "callback" not in line


def test_a_promise_is_made_of_the_contract() -> None:
    keyed = Contract(name="a", channels=("sms",), key=Key(header="Idempotency-Key", window_s=1000.0))
    assert lacks(promise(keyed), "effectively once key 800 s") == []
    again = Contract(name="a", channels=("sms",), policy="resend", policy_after_s=60.0)
    assert lacks(promise(again), "1 min twice") == []


def test_resend_and_a_short_drain_are_warnings(tmp_path: Path) -> None:
    text = "[server]\ndrain = 5\n" + '[channels]\nsms = ["sms"]\n' + SMS + 'policy = "resend"\n' + VONAGE
    settings = loaded(tmp_path, text, TW="x")
    warned = [one.what for one in found(settings, "providers") if one.level == "warning"]
    assert any('policy = "resend"' in one for one in warned)
    assert any(not lacks(one, "drain 5 s") for one in warned)


def test_an_identity_shorter_than_retention_is_an_error(tmp_path: Path) -> None:
    settings = loaded(tmp_path, "[outbox]\nidentity = 10\n")
    assert [one.level for one in found(settings, "providers")] == ["error", "error"]


@pytest.mark.parametrize(
    ("verify", "level"),
    [
        ("", "error"),
        ('[providers.sms.callbacks.verify]\nscheme = "none"\n', "warning"),
        ('[providers.sms.callbacks.verify]\nscheme = "header"\nsecrets = ["env:TW"]\n', "ok"),
    ],
)
def test_unverified_callbacks_on_a_public_host_are_found(tmp_path: Path, verify: str, level: str) -> None:
    token = f'[[tokens]]\nname = "a"\ndigest = "sha256:{"0" * 64}"\nscopes = ["claims"]\n'
    text = f'endpoints = []\n[server]\nhost = "0.0.0.0"\n{token}{SMS}{CALLBACKS}{verify}'
    findings = found(loaded(tmp_path, text, TW="x" * 20), "access")
    assert [one.level for one in findings] == [level]
    if level != "ok":
        assert "/callbacks/sms" in findings[0].what


def test_unverified_callbacks_behind_a_proxy_are_found(tmp_path: Path) -> None:
    callback = 'callback = "https://semel.example.com/callbacks/sms"\n'
    findings = found(loaded(tmp_path, f"endpoints = []\n{SMS}{callback}{CALLBACKS}", TW="x"), "access")
    assert [one.level for one in findings] == ["error"]
    assert lacks(findings[0].what, "semel.example.com /callbacks/sms") == []
    here = callback.replace("https://semel.example.com", "http://127.0.0.1:8080")
    for on_loopback in (f"{SMS}{here}{CALLBACKS}", f"{SMS}{CALLBACKS}"):
        (finding,) = found(loaded(tmp_path, on_loopback, TW="x"), "access")
        assert finding.level == "warning"
        assert "/callbacks/sms" in finding.what
    verified = '[providers.sms.callbacks.verify]\nscheme = "header"\nsecrets = ["env:TW"]\n'
    settings = loaded(tmp_path, f"{SMS}{CALLBACKS}{verified}", TW="x" * 20)
    assert [one.level for one in found(settings, "access")] == ["ok"]


def test_a_short_secret_of_callbacks_is_a_warning(tmp_path: Path) -> None:
    verify = '[providers.sms.callbacks.verify]\nscheme = "header"\nsecrets = ["env:TW"]\n'
    findings = found(loaded(tmp_path, SMS + CALLBACKS + verify, TW="x"), "secrets")
    assert [lacks(one.what, "provider sms env:TW 16") for one in findings] == [[]]


def test_unencrypted_secrets_of_providers_are_warnings(tmp_path: Path) -> None:
    settings = loaded(tmp_path, SMS + 'url = "http://sms.example/key/tok3n"\n', TW="x")
    (finding,) = found(settings, "secrets")
    assert finding.level == "warning"
    assert "http://sms.example" in finding.what
    assert "tok3n" not in finding.what
    settings = loaded(tmp_path, '[providers.mail]\nkind = "smtp"\nhost = "mx.example"\ntls = "off"\n')
    (finding,) = found(settings, "secrets")
    assert finding.level == "warning"
    assert lacks(finding.what, "provider mail mx.example") == []
    gateway = '[providers.gw]\nkind = "http"\nurl = "https://gw.example"\nheaders = { authorization = "Bearer %s" }\n'
    (finding,) = found(loaded(tmp_path, gateway % "tok3n"), "secrets")
    assert "authorization" in finding.what
    assert "tok3n" not in finding.what
    assert [one.level for one in found(loaded(tmp_path, gateway % "env:TW", TW="x"), "secrets")] == ["ok"]
    for here in (SMS + 'url = "http://127.0.0.1:9"\n', SMS + 'url = "https://sms.example"\n'):
        assert [one.level for one in found(loaded(tmp_path, here, TW="x"), "secrets")] == ["ok"]


@pytest.mark.parametrize(
    ("callback", "level"), [("https://x.example/cb#rc=5", "ok"), ("https://y.example/cb", "warning"), (None, "ok")]
)
def test_callbacks_that_always_fail_verification_are_a_warning(
    tmp_path: Path, callback: str | None, level: str
) -> None:
    verify = '[providers.sms.callbacks.verify]\nscheme = "twilio"\nsecrets = ["env:TW"]\nurl = "https://x.example/cb"\n'
    told_to = f'callback = "{callback}"\n' if callback else ""
    findings = found(loaded(tmp_path, SMS + told_to + CALLBACKS + verify, TW="x" * 20), "providers")
    assert findings[-1].level == level
    assert (level == "ok") or "sms" in findings[-1].what


def test_doctor_connects_to_a_provider_and_sends_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        url = f'url = "http://127.0.0.1:{there.getsockname()[1]}"\n'

        def reached(allow: str) -> str | None:
            built = build(loaded(tmp_path, SMS + url + allow, TW="x"), Semel(f"sqlite:///{tmp_path}/a.db"))
            return asyncio.run(built.reaches["provider sms"]())  # type: ignore[arg-type]

        assert reached('allow = ["127.0.0.1"]\n') is None
        there.settimeout(30)
        connection, _ = there.accept()
        with connection:
            connection.settimeout(30)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b"", "a message is no test"
        assert "loopback" in (reached("") or "")
    assert (reached('allow = ["127.0.0.1"]\n') or "loopback").count("loopback") == 0, "closed, but allowed"


# --------------------------------------------------------------------------------------------------------- in Python


def test_in_python_a_secret_is_a_plain_text_and_is_not_shown() -> None:
    sms = providers.provider("twilio", "sms", account="AC1", token="s3cret", sender="+491")
    assert sms.contract.name == "sms"
    with pytest.raises(ConfigError) as raised:
        providers.provider("twilio", "sms", account="AC1", token="s3cret", sender=7)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigError, match=r"os\.environ"):
        providers.provider("twilio", "sms", account="AC1", token="env:TWILIO_TOKEN", sender="+491")


def test_a_relay_in_python_needs_known_providers_and_channels(tmp_path: Path) -> None:
    app = Semel(f"sqlite:///{tmp_path}/a.db")
    sms = providers.provider("twilio", "sms", account="AC1", token="x", sender="+491")
    with pytest.raises(ConfigError, match="provider"):
        app.relay()
    with pytest.raises(ConfigError, match="name"):
        app.relay(sms, sms)
    with pytest.raises(ConfigError, match=r"other.*sms|sms.*other"):
        app.relay(sms, channels={"sms": ["other"]})
    with pytest.raises(ConfigError, match=r"fax.*sms, email|sms, email.*fax"):
        app.relay(sms, channels={"fax": ["sms"]})
    with pytest.raises(ConfigError, match="outbox"):
        Semel("memory://").relay(sms)


def test_doctor_warns_about_an_account_that_several_tenants_may_use(tmp_path: Path) -> None:
    tokens = "".join(
        f'[[tokens]]\nname = "{name}"\ndigest = "sha256:{digit * 64}"\nscopes = ["notify"]\ntenant = "{name}"\n'
        for name, digit in (("acme", "a"), ("globex", "b"))
    )
    shared = loaded(tmp_path, SMS + tokens, TW="x")
    owned = loaded(tmp_path, SMS + 'tenants = ["acme"]\n' + tokens, TW="x")
    assert [one.level for one in found(shared, "providers")].count("warning") == 1
    assert "tenant" in next(one.what for one in found(shared, "providers") if one.level == "warning")
    assert not [one for one in found(owned, "providers") if one.level == "warning"]
