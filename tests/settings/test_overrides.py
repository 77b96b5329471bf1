"""`SEMEL_…` variables over a settings file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.settings.writing import ROUTE, loaded, told
from tests.wording import lacks

from semel.settings.errors import SettingsError
from semel.settings.loading import load
from semel.settings.schema import Settings

CRM = '[destinations.crm]\nurl = "https://crm.example/events"\nheaders = { X-Api-Key = "plain" }\n'


def test_a_variable_overrides_the_file(tmp_path: Path) -> None:
    text = 'ledger = "sqlite:///file.db"\n[server]\nport = 1\nworkers = 2\n'
    settings = loaded(tmp_path, text, SEMEL_LEDGER="memory://", SEMEL_SERVER__PORT="9000")
    assert (settings.ledger.reveal(), settings.server.port, settings.server.workers) == ("memory://", 9000, 2)


def test_a_variable_needs_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"SEMEL_SERVER__PORT": "9000", "SEMEL_DESTINATIONS__CRM__URL": "https://x/"}
    settings = load(None, environ)
    assert settings.server.port == 9000
    assert settings.destinations["crm"].url == "https://x/"


@pytest.mark.parametrize("name", ["SEMEL_SERVER__PORT", "semel_server__port", "Semel_Server__Port"])
def test_a_name_may_be_in_any_case(tmp_path: Path, name: str) -> None:
    assert loaded(tmp_path, "", **{name: "9000"}).server.port == 9000


@pytest.mark.parametrize(
    ("name", "value", "path", "expected"),
    [
        ("SEMEL_TENANT", "acme", "tenant", "acme"),
        ("SEMEL_TENANT", '"acme"', "tenant", "acme"),
        ("SEMEL_TENANT", "42", "tenant", "42"),
        ("SEMEL_TENANT", "true", "tenant", "true"),
        ("SEMEL_TENANT", "", "tenant", ""),
        ("SEMEL_TENANT", "[x]", "tenant", "[x]"),
        ("SEMEL_REDELIVERY", "0.5", "redelivery", 0.5),
        ("SEMEL_REDELIVERY", "86_400", "redelivery", 86_400.0),
        ("SEMEL_SERVER__LOG", "json", "server.log", "json"),
        ("SEMEL_SERVER__MAX_IN_FLIGHT", "7", "server.max_in_flight", 7),
    ],
)
def test_a_variable_gets_the_type_of_its_setting(
    tmp_path: Path, name: str, value: str, path: str, expected: object
) -> None:
    found: object = loaded(tmp_path, "", **{name: value})
    for part in path.split("."):
        found = getattr(found, part)
    assert found == expected


def test_a_list_is_a_toml_array_and_replaces_the_whole_list(tmp_path: Path) -> None:
    one = '[{name = "env", topics = ["a", "b.*"], console = true}]'
    settings = loaded(tmp_path, ROUTE, SEMEL_ROUTES=one)
    assert [route.name for route in settings.routes] == ["env"]
    assert settings.routes[0].topics == ["a", "b.*"]
    (line,) = told(tmp_path, ROUTE, SEMEL_ROUTES=one.replace('"b.*"', "5"))
    assert line.startswith('SEMEL_ROUTES: [[routes]] "env": ')
    assert lacks(line, "topics[1] 5") == []


def test_a_destination_and_its_headers_are_found_by_their_names(tmp_path: Path) -> None:
    text = CRM.replace("destinations.crm", 'destinations."My-Crm.eu"')
    environ = {
        "SEMEL_DESTINATIONS__MY_CRM_EU__URL": "https://other.example/",
        "SEMEL_DESTINATIONS__MY_CRM_EU__HEADERS__X_API_KEY": "env:KEY",
        "SEMEL_DESTINATIONS__MY_CRM_EU__HEADERS__X_MORE": "1",
        "SEMEL_DESTINATIONS__MY_CRM_EU__ALLOW": '["10.0.0.0/8"]',
        "KEY": "k3y",
    }
    settings = loaded(tmp_path, text, **environ)
    assert list(settings.destinations) == ["My-Crm.eu"]
    crm = settings.destinations["My-Crm.eu"]
    assert (crm.url, crm.allow) == ("https://other.example/", ["10.0.0.0/8"])
    assert {name: value.reveal() for name, value in crm.headers.items()} == {"X-Api-Key": "k3y", "x-more": "1"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("SEMEL_LEGDER", '"SEMEL_LEDGER"'),
        ("SEMEL_SERVER_PORT", '"SEMEL_SERVER__PORT"'),
        ("SEMEL_SERVER__PROT", '"SEMEL_SERVER__PORT"'),
        ("SEMEL_DESTINATIONS__CRM__ULR", '"SEMEL_DESTINATIONS__CRM__URL"'),
        ("SEMEL_PORT", '"SEMEL_SERVER__PORT"'),
        ("SEMEL_URL", '"SEMEL_DESTINATIONS__CRM__URL"'),
        ("SEMEL_XYZZY", "setting"),
        ("SEMEL_", "setting"),
        ("SEMEL___", "setting"),
        ("SEMEL_LEDGER__X", "setting"),
        ("SEMEL_SERVER", "table SEMEL_SERVER__"),
        ("SEMEL_DESTINATIONS", "table SEMEL_DESTINATIONS__"),
        ("SEMEL_DESTINATIONS__CRM", "table SEMEL_DESTINATIONS__CRM__"),
        ("SEMEL_DESTINATIONS____URL", "setting"),
        ("SEMEL_ROUTES__0__NAME", "SEMEL_ROUTES TOML"),
    ],
)
def test_a_name_that_sets_nothing_is_an_error_with_a_suggestion(tmp_path: Path, name: str, words: str) -> None:
    (line,) = told(tmp_path, CRM, **{name: "hunter2"})
    assert line.startswith(f"{name}: ")
    assert lacks(line.removeprefix(name), words) == []
    assert "hunter2" not in line


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("SEMEL_SERVER__PORT", "80a", '[server] port 65535 "80a"'),
        ("SEMEL_SERVER__PORT", "70000", "[server] port 65535 70000"),
        ("SEMEL_SERVER__PORT", "", '[server] port 65535 ""'),
        ("SEMEL_SERVER__PORT", "1\nhost = 2", "[server] port 65535"),
        ("SEMEL_SERVER__LOG", "jsn", '[server] log "json"'),
        ("SEMEL_ROUTES", "none", "routes [[routes]]"),
        ("SEMEL_DESTINATIONS__CRM__URL", "ftp://x", "[destinations.crm] url https://"),
        ("SEMEL_DESTINATIONS__CRM__HEADERS__X", "env:NOPE", "[destinations.crm] headers.x env:NOPE"),
        ("SEMEL_DESTINATIONS__NEW__TIMEOUT", "5", '[destinations.new] "url" missing'),
        ("SEMEL_TENANT", "\udcff", "UTF-8"),
        ("SEMEL_LEDGER", "semel.db", "ledger sqlite:///"),
    ],
)
def test_an_error_of_a_variable_names_the_variable(tmp_path: Path, name: str, value: str, words: str) -> None:
    (line,) = told(tmp_path, CRM, **{name: value})
    assert line.startswith(f"{name}: ")
    assert lacks(line.removeprefix(name), words) == []


def test_two_variables_for_one_setting_are_reported(tmp_path: Path) -> None:
    (line,) = told(tmp_path, "", SEMEL_TENANT="a", semel_tenant="b")
    assert line.startswith("semel_tenant: ")
    assert "SEMEL_TENANT" in line


def test_an_ambiguous_variable_name_is_reported(tmp_path: Path) -> None:
    text = CRM + CRM.replace("destinations.crm", "destinations.CRM")
    (line,) = told(tmp_path, text, SEMEL_DESTINATIONS__CRM__TIMEOUT="5")
    assert line.startswith("SEMEL_DESTINATIONS__CRM__TIMEOUT: ")
    assert lacks(line, '"crm" "CRM"') == []


def test_a_variable_below_a_value_leaves_the_error_to_the_file(tmp_path: Path) -> None:
    (line,) = told(tmp_path, "server = 5", SEMEL_SERVER__PORT="1")
    assert line.startswith("semel.toml:1: server")


def test_the_line_of_the_file_is_reported_if_no_variable_is_at_fault(tmp_path: Path) -> None:
    (line,) = told(tmp_path, CRM + 'timeout = "x"', SEMEL_DESTINATIONS__CRM__URL="https://x/")
    assert line.startswith("semel.toml:4: [destinations.crm]: ")
    assert "timeout" in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SEMEL_TEST_REDIS", "redis://x"),  # servers for tests
        ("SEMELX", "1"),
        # what Kubernetes tells about a Service that is named semel, or semel-api
        ("SEMEL_SERVICE_HOST", "10.0.0.1"),
        ("SEMEL_SERVICE_PORT", "8080"),
        ("SEMEL_SERVICE_PORT_HTTP", "8080"),
        ("SEMEL_PORT", "tcp://10.0.0.1:8080"),
        ("SEMEL_PORT_8080_TCP", "tcp://10.0.0.1:8080"),
        ("SEMEL_PORT_8080_TCP_PROTO", "tcp"),
        ("SEMEL_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ("SEMEL_API_SERVICE_HOST", "10.0.0.1"),
        ("SEMEL_API_PORT", "tcp://10.0.0.1:8080"),
    ],
)
def test_other_variables_are_ignored(tmp_path: Path, name: str, value: str) -> None:
    assert loaded(tmp_path, "", **{name: value}) == Settings()


def test_a_variable_with_a_secret_may_start_with_semel(tmp_path: Path) -> None:
    text = CRM.replace('"plain"', '"Bearer env:SEMEL_CRM_TOKEN"')
    settings = loaded(tmp_path, text, SEMEL_CRM_TOKEN="t0ken")
    assert settings.destinations["crm"].headers["X-Api-Key"].reveal() == "Bearer t0ken"
    with pytest.raises(SettingsError, match=r"^SEMEL_CRM_TOKEN: "):
        loaded(tmp_path, CRM, SEMEL_CRM_TOKEN="t0ken")


def test_a_reference_in_a_variable_may_name_one_of_ours_too(tmp_path: Path) -> None:
    environ = {"SEMEL_DESTINATIONS__CRM__HEADERS__X_API_KEY": "env:SEMEL_KEY", "SEMEL_KEY": "k3y"}
    settings = loaded(tmp_path, CRM, **environ)
    assert settings.destinations["crm"].headers["X-Api-Key"].reveal() == "k3y"
