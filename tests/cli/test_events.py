"""`semel events list|show` and `semel dead list|show`: filters, short and whole keys, and texts of strangers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import semel
from tests.cli.ledgers import fill
from tests.wording import lacks

from semel.cli import find


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Looked at by all tests here, changed by none."""
    folder = tmp_path_factory.mktemp("events")
    fill(folder, dead=3, uncertain=1, done=2)
    return "--ledger", fill(folder, dead=2, uncertain=0, done=0, tenant="acme")


def listed(*arguments: str) -> list[dict[str, Any]]:
    ended = semel(*arguments, "--json")
    assert ended.code == 0, ended.err
    found: list[dict[str, Any]] = ended.json
    return found


def test_events_are_listed_the_newest_first(ledger: tuple[str, str]) -> None:
    found = listed("events", "list", *ledger)
    assert len(found) == 8
    assert [entry["at_ms"] for entry in found] == sorted((entry["at_ms"] for entry in found), reverse=True)
    assert all(len(entry["key"]) == 32 for entry in found)


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        (("--state", "dead"), 5),
        (("--state", "uncertain"), 1),
        (("--state", "done"), 2),
        (("--state", "leased"), 0),
        (("--handler", "to-crm"), 5),
        (("--handler", "nobody"), 0),
        (("--tenant", "acme"), 2),
        (("--tenant", ""), 6),
        (("--reason", "UNKNOWN customer"), 5),
        (("--reason", "broke"), 1),
        (("--matching", "broke"), 1),
        (("--since", "1h"), 8),
        (("--since", "2126-01-01"), 0),
        (("--until", "1h"), 0),
        (("--until", "2126-01-01T00:00Z"), 8),
        (("--limit", "3"), 3),
        (("--state", "dead", "--tenant", "acme", "--limit", "1"), 1),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_events_are_filtered(filters: tuple[str, ...], count: int, ledger: tuple[str, str]) -> None:
    assert len(listed("events", "list", *filters, *ledger)) == count


def test_time_filters_include_and_exclude_their_edges(ledger: tuple[str, str]) -> None:
    oldest = listed("events", "list", *ledger)[-1]
    assert oldest["key"] in [entry["key"] for entry in listed("events", "list", "--since", oldest["at"], *ledger)]
    assert oldest["key"] not in [entry["key"] for entry in listed("events", "list", "--until", oldest["at"], *ledger)]


def test_dead_letters_are_dead_and_uncertain_events(ledger: tuple[str, str]) -> None:
    assert {entry["state"] for entry in listed("dead", "list", *ledger)} == {"dead", "uncertain"}
    assert len(listed("dead", "list", *ledger)) == 6
    assert len(listed("dead", "list", "--state", "uncertain", *ledger)) == 1
    assert len(listed("dead", "list", "--limit", "4", *ledger)) == 4
    assert lacks(semel("dead", "list", "--limit", "4", *ledger).out.splitlines()[-1], "4 6") == []
    assert "6" in semel("dead", "list", "--handler", "x", *ledger).out


def test_tables_shorten_keys_and_wide_ones_do_not(ledger: tuple[str, str]) -> None:
    key = listed("dead", "list", *ledger)[0]["key"]
    narrow, wide = semel("dead", "list", *ledger).out, semel("dead", "list", "--wide", *ledger).out
    assert key not in narrow
    assert f"{key[:12]}…" in narrow
    assert "second" in narrow or "minute" in narrow
    assert key in wide
    assert " UTC" in wide
    assert "acme" in wide
    assert all(len(line) < 400 for line in wide.splitlines())
    assert lacks(semel("events", "list", "--limit", "3", *ledger).out.splitlines()[-1], "3 --limit") == []


@pytest.mark.parametrize("command", [("dead", "list"), ("dead", "list", "--wide"), ("events", "list")], ids=" ".join)
def test_external_texts_cannot_control_the_terminal(command: tuple[str, ...], ledger: tuple[str, str]) -> None:
    out = semel(*command, *ledger).out
    assert "\\x1b[31m" in out, "the trap is in the list"
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_everything_stored_about_a_dead_event_is_shown(ledger: tuple[str, str]) -> None:
    entry = listed("dead", "list", "--state", "dead", *ledger)[0]
    for command in ("events", "dead"):
        out = semel(command, "show", entry["key"], *ledger).out
        assert f"\nevent       {entry['text']}" in out
        for part in (entry["key"], "dead", "to-crm", "acme", "unknown customer", '"customer": "\\u202ec1"', " UTC"):
            assert part in out
        assert "\x1b" not in out
        whole = semel(command, "show", entry["key"], "--json", *ledger).json
        assert whole["event"]["data"] == {"customer": "\u202ec1"}
        assert (whole["state"], whole["generation"], whole["attempts"]) == ("dead", 1, 1)
        assert len(whole["history"]) == 1


def test_the_result_of_a_done_event_is_shown(ledger: tuple[str, str]) -> None:
    entry = listed("events", "list", "--state", "done", *ledger)[0]
    assert '"ticket": 7' in semel("events", "show", entry["key"], *ledger).out
    whole = semel("events", "show", entry["key"], "--json", *ledger).json
    assert (whole["result"], whole["event"]) == ({"ticket": 7}, None)


def test_the_beginning_of_a_key_is_enough(ledger: tuple[str, str]) -> None:
    for state in ("dead", "done"):
        key = listed("events", "list", "--state", state, *ledger)[0]["key"]
        for text in (key[:10], f"{key[:12]}…", key[:8].upper(), f" {key} "):
            assert semel("events", "show", text, "--json", *ledger).json["key"] == key


def test_a_beginning_of_several_keys_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PREFIX_MIN_CHARS", 1)
    url = fill(tmp_path, dead=17, uncertain=0, done=0)  # of 17 keys, two begin with the same digit
    digits = [entry["key"][0] for entry in listed("dead", "list", "--ledger", url)]
    twice = next(digit for digit in digits if digits.count(digit) > 1)
    ended = semel("dead", "show", twice, "--ledger", url)
    assert ended.code == 2
    several = [key for key in (entry["key"] for entry in listed("dead", "list", "--ledger", url)) if key[0] == twice]
    assert lacks(ended.err, " ".join([str(len(several)), *several])) == []


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("xyz!", "32 hexadecimal"),
        ("abc", "32 hexadecimal 4"),
        ("0" * 33, "32 hexadecimal"),
        ("0" * 32, f"key {'0' * 32}"),
        ("00000000", "key 00000000"),
    ],
)
def test_an_invalid_key_is_refused(key: str, words: str, ledger: tuple[str, str]) -> None:
    for command in (("events", "show"), ("dead", "show"), ("dead", "replay", "--reason", "x")):
        ended = semel(*command, key, *ledger)
        assert ended.code == 2
        assert lacks(ended.err, words) == []


def test_dead_letters_are_searched_first_then_other_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find, "PREFIX_MIN_CHARS", 1)
    monkeypatch.setattr(find, "PAGE", 3)
    options = ("--ledger", fill(tmp_path, dead=1, uncertain=0, done=40))
    dead_letter = listed("dead", "list", *options)[0]["key"]
    done = [entry["key"] for entry in listed("events", "list", "--state", "done", *options)]
    assert any(key[0] == dead_letter[0] for key in done), "inconclusive: nothing to confuse the letter with"
    assert semel("dead", "show", dead_letter[0], "--json", *options).json["key"] == dead_letter
    assert semel("events", "show", dead_letter[0], *options).code == 2
    for command in ("dead", "events"):
        assert semel(command, "show", done[0][:12], "--json", *options).json["state"] == "done"


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_listing_fits_the_terminal_and_columns_keep_their_width(columns: int, tmp_path: Path) -> None:
    """With tenants, a generation and a long event, as they come."""
    fill(tmp_path, dead=2)
    url = fill(tmp_path, dead=2, tenant="acme")
    key = listed("dead", "list", "--state", "dead", "--ledger", url)[0]["key"]
    assert semel("dead", "replay", key, "--reason", "fixed", "--ledger", url).code == 0
    out = semel("events", "list", "--ledger", url, env={"COLUMNS": str(columns)}).out
    lines = [line.rstrip() for line in out.splitlines()]
    assert all(len(line) <= columns for line in lines)
    begins = {line[:12] for line in lines}
    for entry in listed("events", "list", "--ledger", url):
        assert entry["key"][:12] in begins
        assert f"{entry['key'][:12]}…  {entry['state']}" in out
    at = next(number for number, line in enumerate(lines) if line.startswith(key[:12]))
    assert lacks(lines[at + 1], "tenant acme generation 2") == []
    if columns >= 80:
        assert lines[0].split() == ["key", "state", "age", "handler", "event"]
        assert lines[at].endswith("to-crm   test|acmecrm-1")
        assert any(not lacks(line, "acme unknown customer \\x1b[31m\\u202ec0") for line in lines)


def test_a_tenant_that_all_entries_share_is_not_repeated(ledger: tuple[str, str]) -> None:
    assert "tenant acme" in semel("dead", "list", *ledger).out
    assert "tenant acme" not in semel("dead", "list", "--tenant", "acme", *ledger).out


@pytest.mark.parametrize(
    ("option", "value"), [("--since", "yesterday"), ("--until", "2h ago"), ("--state", "lost"), ("--limit", "0")]
)
def test_a_bad_filter_is_named(option: str, value: str, ledger: tuple[str, str]) -> None:
    for command in ("events", "dead"):
        ended = semel(command, "list", option, value, *ledger)
        assert ended.code == 2
        assert option in ended.err


def test_reading_changes_nothing(ledger: tuple[str, str]) -> None:
    before = listed("events", "list", *ledger)
    semel("status", *ledger)
    semel("dead", "replay", "--all", "--dry-run", *ledger)
    semel("dead", "discard", "--all", "--dry-run", *ledger)
    time.sleep(0.01)
    assert listed("events", "list", *ledger) == before
