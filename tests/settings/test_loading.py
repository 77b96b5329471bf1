"""Valid settings files, and the errors of invalid ones."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest
from tests.settings.writing import ROUTE, loaded, problems, told, write
from tests.wording import lacks

from semel.settings.errors import SettingsError, SettingsProblem
from semel.settings.loading import FILE_MAX_BYTES, load
from semel.settings.schema import EndpointSettings, Settings
from semel.values.errors import ConfigError
from semel.values.secret import Secret


def test_without_a_file_there_are_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load(None, {}) == Settings()
    assert Settings().endpoints == [EndpointSettings()]


def test_the_file_in_the_working_directory_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, 'tenant = "acme"')
    assert load(None, {}).tenant == "acme"


def test_a_variable_names_the_file_and_the_command_line_is_stronger(tmp_path: Path) -> None:
    one, other = tmp_path / "one.toml", tmp_path / "other.toml"
    one.write_text('tenant = "one"')
    other.write_text('tenant = "other"')
    assert load(None, {"SEMEL_CONFIG": str(one)}).tenant == "one"
    assert load(other, {"SEMEL_CONFIG": str(one)}).tenant == "other"


def test_every_setting_of_a_file_is_loaded(tmp_path: Path) -> None:
    text = """
        ledger = "memory://"
        [server]
        port = 0
        drain = 5
        [[endpoints]]
        path = "/genesys"
        mode = "inline"
        verify = { scheme = "genesys", secrets = ["env:ONE", "env:TWO"] }
        [destinations.crm]
        url = "https://crm.example/x"
        headers = { Authorization = "Bearer env:TOKEN", X-Source = "semel" }
        [[routes]]
        name = "to-crm"
        topics = ["v2.detail.events.conversation.{id}.acw", "a.**"]
        forward = "crm"
        effect = "keyed"
        window = 86400
        key = ["detail.eventBody.conversationId"]
        fail_open = true
        [[routes]]
        name = "direct"
        topics = ["*"]
        forward = "http://hooks.example:9000/x?y=z"
    """
    settings = loaded(tmp_path, text, ONE="first", TWO="second", TOKEN="t0ken")
    assert settings.ledger == Secret("memory://")
    assert (settings.server.port, settings.server.drain, settings.server.host) == (0, 5.0, "127.0.0.1")
    verify = settings.endpoints[0].verify
    assert verify is not None
    assert [secret.reveal() for secret in verify.secrets] == ["first", "second"]
    headers = settings.destinations["crm"].headers
    assert {name: value.reveal() for name, value in headers.items()} == {
        "Authorization": "Bearer t0ken",
        "X-Source": "semel",
    }
    assert settings.routes[0].window == 86_400
    assert settings.routes[1].forward == "http://hooks.example:9000/x?y=z"


# --------------------------------------------------------------------------------------------------- the file itself


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml: .*`semel init`"):
        load(tmp_path / "nowhere.toml", {})


def test_a_dangling_link_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount that failed must not mean the defaults."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "semel.toml").symlink_to("nowhere.toml")
    with pytest.raises(SettingsError) as raised:
        load(None, {})
    assert lacks(str(raised.value), "semel.toml semel init") == []


def test_no_error_contains_control_characters(tmp_path: Path) -> None:
    escape = "\\u001b[31m"
    text = f"""
        "{escape}" = 1
        [destinations."{escape}"]
        headers = {{ "{escape}" = 5 }}
        url = "{escape}"
        [[routes]]
        name = "{escape}"
        topics = ["a..{escape}"]
        forward = "{escape}"
        key = "{escape}"
        [[endpoints]]
        path = "{escape}"
    """
    lines = told(tmp_path, text)
    assert len(lines) >= 8
    assert all(line.isprintable() for line in lines), lines


def test_a_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as raised:
        load(tmp_path, {})
    assert lacks(str(raised.value), f"{tmp_path} file") == []


def test_an_invalid_path_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path / ("x" * 300), Path("a\0b"), write(tmp_path, "") / "below.toml"):
        with pytest.raises(SettingsError) as raised:
            load(path, {})
        (problem,) = raised.value.problems
        assert (problem.line, problem.where) == (0, ""), "the file itself, not a setting in it"


def test_a_file_that_is_too_large_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, "#" * FILE_MAX_BYTES)
    assert load(path, {}) == Settings()
    path.write_bytes(b"#" * (FILE_MAX_BYTES + 1))
    with pytest.raises(SettingsError, match=f"{FILE_MAX_BYTES:,}"):
        load(path, {})


def test_a_file_that_is_not_utf_8_is_reported_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_bytes(b'tenant = "a"\norigin = "\xff"\n')
    with pytest.raises(SettingsError, match=r"semel\.toml:2: .*UTF-8"):
        load(path, {})


def test_a_byte_order_mark_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "semel.toml"
    path.write_bytes(b'\xef\xbb\xbftenant = "a"\r\norigin = "b"\r\n')
    assert load(path, {}).origin == "b"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a = 1\nb 2\n", 2, "'='"),
        ('a = "x', 1, "string"),
        ("a = [1,\n\n", 1, ""),
        ("[server]\nport = 1\nport = 2\n", 3, "overwrite"),
        ("[server]\n[server]\n", 2, "declare"),
        (f"a = {'9' * 5000}\n", 0, "limit"),
        (f"a = {'[' * 50_000}", 0, "nested"),
    ],
)
def test_invalid_toml_is_reported_with_its_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    """The words are those of tomllib, except for the last."""
    (problem,) = problems(tmp_path, text)
    assert (problem.line, problem.where) == (line, "")
    assert lacks(problem.what, f"TOML {words}") == []


def test_deep_nesting_is_an_error_like_others(tmp_path: Path) -> None:
    for depth in (50, 200, 250, 300, 400):  # some of them are too deep for tomllib
        (line,) = told(tmp_path, f"tenant = {'[' * depth}{']' * depth}")
        assert "tenant" in line or "nested" in line


# ------------------------------------------------------------------------------------------------- wrong settings


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        # names
        ('ledgr = "x"', 1, '"ledgr" "ledger"'),
        ("port = 1", 1, '"port" [server]'),
        ("[server]\nprot = 1", 2, '[server] "prot" "port"'),
        (
            '[[routes]]\nname = "a"\ntopic = "x"\nforward = "https://a.example"',
            3,
            '[[routes]] "a" "topic" "topics"',
        ),
        ("[server]\nPORT = 1", 2, '[server] "PORT" "port"'),
        ('[server]\nledger = "memory://"', 2, '[server] "ledger" top [table]'),
        ("[server]\nfrobnicate = 1", 2, '[server] "frobnicate"'),
        ("[sever]\nport = 1", 1, '"sever" "server"'),
        ('"a\\nb" = 1', 1, '"a\\nb"'),
        ("[destinations.crm]", 1, '[destinations.crm] "url" missing'),
        ('[destinations."c r"]\nurl = "https://x"', 1, "[destinations.c r] letters"),
        ('[[routes]]\nname = "a"\nconsole = true', 1, '[[routes]] "a" "topics" missing'),
        ('[[tokens]]\nname = "a"\nscopes = ["keys"]', 1, '[[tokens]] "a" "digest" missing'),
        # types
        ("tenant = 5", 1, "tenant 255"),
        ('tenant = "a\\nb"', 1, 'tenant 255 "a\\nb"'),
        ("ledger = 1979-05-27", 1, "ledger env:NAME file:path"),
        ('[server]\nport = "80"', 2, '[server] port 65535 "80"'),
        ("[server]\nport = 65536", 2, "[server] port 65535 65536"),
        ("[server]\nport = 8080.0", 2, "[server] port 65535 8080.0"),
        ("[server]\nport = true", 2, "[server] port 65535 true"),
        (f"[server]\nport = 0x{'f' * 9000}", 2, "[server] port 65535"),
        ("[server]\ndrain = 0", 2, "[server] drain 0.001"),
        ("[server]\ndrain = nan", 2, "[server] drain 0.001 nan"),
        ("[server]\ndrain = inf", 2, "[server] drain 0.001 inf"),
        ('[server]\ndrain = "10s"', 2, '[server] drain 0.001 "10s"'),
        ('[server]\nlog = "jsno"', 2, '[server] log "auto" "console" "json" "jsno"'),
        ("[[endpoints]]\nbusy_status = 200", 2, "[[endpoints]] 1 busy_status 409 503 200"),
        ("server = 5", 1, "server table"),
        ("[[server]]\nport = 1", 1, "server [server]"),
        ('[routes]\nname = "a"', 1, "routes [[routes]]"),
        ("routes = [5]", 1, "[[routes]] routes[0] table"),
        ("destinations = 5", 1, "destinations [destinations.NAME]"),
        ('[destinations.crm]\nurl = "https://x"\nheaders = 5', 3, "[destinations.crm] headers"),
        (ROUTE.replace('["**"]', '"**"'), 3, '[[routes]] "all" topics ["**"]'),
        (ROUTE.replace('"**"', '"a",\n5'), 4, '[[routes]] "all" topics[1] 5'),
        (ROUTE.replace('"**"', ""), 3, '[[routes]] "all" topics 1'),
        (ROUTE + 'fail_open = "yes"', 5, '[[routes]] "all" fail_open true false "yes"'),
        (ROUTE + "key = 5", 5, '[[routes]] "all" key "event" "delivery" "content"'),
        (ROUTE + "lease = 0.01", 5, '[[routes]] "all" lease 0.1 0.01'),
        (ROUTE + 'select = "a..b"', 5, '[[routes]] "all" select path'),
        ('[[endpoints]]\nid_path = ""', 2, "[[endpoints]] 1 id_path"),
        ('[[endpoints]]\npath = "events"', 2, '[[endpoints]] "events" path "/events"'),
        ('[[endpoints]]\npath = "/e\\n"', 2, '[[endpoints]] "/e\\n" path "/events"'),
    ],
)
def test_a_wrong_setting_is_reported_with_line_and_suggestion(tmp_path: Path, text: str, line: int, words: str) -> None:
    lines = told(tmp_path, text)
    assert len(lines) == 1, lines
    assert lines[0].startswith(f"semel.toml:{line}: ")
    assert lacks(lines[0], words) == [], lines
    assert len(lines[0]) < 300, "a value is shortened"


def test_all_problems_are_reported_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = """\
ledgr = "x"
[server]
port = "80"
[[routes]]
name = "a"
topics = ["x..y"]
fowrard = "crm"
[[routes]]
name = "a"
topics = ["**"]
forward = "nowhere"
effect = "fenced"
[[endpoints]]
path = "/v1/x"
"""
    lines = told(tmp_path, text, SEMEL_SERVER__WORKERS="none", SEMEL_SEVER__PORT="1")
    assert [line.split(": ")[0] for line in lines] == [
        "semel.toml:1",
        "semel.toml:3",
        "semel.toml:6",
        "semel.toml:7",
        "semel.toml:9",
        "semel.toml:11",
        "semel.toml:12",
        "semel.toml:14",
        "SEMEL_SEVER__PORT",
        "SEMEL_SERVER__WORKERS",
    ]


def test_consequences_of_a_fault_are_not_reported(tmp_path: Path) -> None:
    text = '[[routes]]\nnmae = "a"\ntopics = ["**"]\nconsole = "yes"\n[[endpoints]]\nverify = "x"\n'
    assert len(told(tmp_path, text)) == 3  # the name is not missing, the target is not, the scheme is not


def test_the_error_prints_all_of_them_and_is_one_of_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        loaded(tmp_path, "a = 1\nb = 2\n")
    text = str(raised.value)
    assert "2" in text.splitlines()[0]
    assert len(text.splitlines()) == 3
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.problems) == (text, raised.value.problems)  # type: ignore[attr-defined]


def test_a_problem_has_its_parts(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "[server]\nport = -1")
    assert problem == SettingsProblem(str(tmp_path / "semel.toml"), 2, "[server]", problem.what)
    assert lacks(problem.what, "port 0 65535 -1") == []


def test_any_bytes_are_settings_or_a_settings_error(tmp_path: Path) -> None:
    """A file that was cut, or in which a few bytes are others."""
    whole = ('ledger = "memory://"\n[server]\nport = 1\n' + ROUTE).encode()
    choice = random.Random(5)
    refused = 0
    for at in range(len(whole)):
        changed = bytearray(whole if at % 2 else whole[:at])
        for _ in range(choice.randint(0, 3)):
            changed[choice.randrange(len(changed) or 1) : at] = bytes([choice.randrange(256)])
        path = tmp_path / "semel.toml"
        path.write_bytes(changed)
        try:
            load(path, {})
        except SettingsError:
            refused += 1
    assert refused > len(whole) / 4
