"""`semel process`: its inputs, its counts and its report."""

from __future__ import annotations

import gzip
import json
import os
import threading

import pytest
from tests.cli.command import semel
from tests.cli.process.conftest import Shop, event
from tests.wording import lacks

from semel.cli.process_input import CUT_OFF

EVERY = [
    *(event("1"), event("2"), event("1"), event("3", "refused"), event("4", "doubtful"), event("5", "soon")),
    *(b"{broken", event("6", "nobody"), event("2", other="payload"), b"[]", event("7", "later"), event("8")),
]


def test_every_outcome_is_counted_with_its_reason(shop: Shop) -> None:
    shop.write(EVERY)
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 1
    report = ended.json
    assert report["outcomes"] == {
        "done": 4,
        "duplicate": 1,
        "ignored": 1,
        "dead": 1,
        "uncertain": 1,
        "conflict": 1,
        "malformed": 2,
        "left": 1,
    }
    assert not report["ok"]
    assert report["reasons"]["dead"] == [
        {
            "reason": "unknown customer",
            "count": 1,
            "file": "events.jsonl",
            "line": 4,
            "byte": len(b"\n".join(EVERY[:3])) + 1,
        }
    ]
    assert [reason["line"] for reason in report["reasons"]["malformed"]] == [7, 10]
    assert "JSON" in report["reasons"]["malformed"][0]["reason"]
    assert report["reasons"]["left"][0]["reason"] == "in an hour"
    assert shop.booked() == ["1", "2", "8"]


def test_the_table_contains_reasons_positions_and_the_next_command(shop: Shop) -> None:
    shop.write(EVERY)
    ended = shop.process("events.jsonl")
    assert ended.code == 1
    table = " ".join(ended.out.split())
    words = (
        "--force",
        "1 × unknown customer",
        "events.jsonl, line 4, byte ",
        "semel dead list",
        "the same command again",
    )
    assert [text for text in words if text not in table] == [], ended.out


def test_the_exit_code_is_0_if_every_event_is_successful(shop: Shop) -> None:
    shop.write([event("1"), event("1"), event("2", "soon"), event("3", "nobody")])
    ended = shop.process("events.jsonl")
    assert ended.code == 0, ended.out
    assert "again" not in ended.out.replace("--force runs them again", "")
    assert shop.process("events.jsonl", "--json").json["files"] == [
        {"file": "events.jsonl", "size": shop.file.stat().st_size, "finished": True, "stopped": ""}
    ]


def test_the_app_can_be_that_of_the_settings(shop: Shop) -> None:
    (shop.folder / "semel.toml").write_text(
        'ledger = "sqlite:///other.db"\n[[routes]]\nname = "shown"\ntopics = ["**"]\nconsole = true\n'
    )
    shop.write([event("1"), event("2")])
    ended = semel("process", "events.jsonl", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["outcomes"] == {"done": 2}
    assert "sale  1  attempt 1" in ended.err, "what a handler prints is not in the document"


def test_a_missing_app_is_refused(shop: Shop) -> None:
    shop.write([event("1")])
    ended = semel("process", "events.jsonl")
    assert ended.code == 2
    assert "--app module:app" in ended.err


@pytest.mark.parametrize("layout", ["gzip", "list", "concatenated", "formatted", "windows"])
def test_files_of_every_layout_are_read(shop: Shop, layout: str) -> None:
    bodies = [event(str(number)) for number in range(5)]
    match layout:
        case "gzip":
            content = gzip.compress(b"\n".join(bodies[:3])) + gzip.compress(b"\n" + b"\n".join(bodies[3:]))
        case "list":
            content = b"[" + b",".join(bodies) + b"]"
        case "concatenated":
            content = b"".join(bodies)
        case "formatted":
            content = b"\n".join(json.dumps(json.loads(body), indent=4).encode() for body in bodies)
        case _:
            content = b"\xef\xbb\xbf" + b"\r\n".join(bodies)
    shop.file.write_bytes(content)
    ended = shop.process("events.jsonl")
    assert ended.code == 0, ended.out
    assert sorted(shop.booked()) == ["0", "1", "2", "3", "4"]


def test_standard_input_is_read(shop: Shop) -> None:
    content = b"\n".join(event(str(number)) for number in range(5))
    assert shop.process("-", stdin=content).code == 0
    assert sorted(shop.booked()) == ["0", "1", "2", "3", "4"]


def test_a_named_pipe_is_read_like_standard_input(shop: Shop) -> None:
    pipe = shop.folder / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(event("1") + event("2")), daemon=True)
    writer.start()
    ended = shop.process("pipe")
    writer.join()
    assert ended.code == 0, ended.out
    assert sorted(shop.booked()) == ["1", "2"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("missing.jsonl", None, "missing.jsonl: No such file"),
        ("folder", "folder", "folder: file"),
        ("wide.jsonl", event("1").decode().encode("utf-16"), "wide.jsonl: UTF-16"),
    ],
)
def test_an_unreadable_input_is_refused_before_anything_is_done(
    shop: Shop, name: str, content: bytes | str | None, words: str
) -> None:
    shop.write([event("1")])
    if content == "folder":
        (shop.folder / name).mkdir()
    elif isinstance(content, bytes):
        (shop.folder / name).write_bytes(content)
    ended = shop.process("events.jsonl", name)
    assert ended.code == 2
    assert lacks(ended.err, words) == []
    assert not (shop.folder / "shop.db").exists()


def test_the_file_that_is_read_is_never_written(shop: Shop) -> None:
    content = shop.write([event("1"), b"{"]).read_bytes()
    (shop.folder / "link").symlink_to(shop.file)
    for name in ("events.jsonl", "./events.jsonl", "link"):
        ended = shop.process("events.jsonl", "--rejects", name)
        assert ended.code == 2
        assert lacks(ended.err, "--rejects file read") == []
    assert shop.file.read_bytes() == content


def test_an_empty_file_has_no_events(shop: Shop) -> None:
    shop.file.write_bytes(b"")
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 0
    assert ended.json["outcomes"] == {}
    assert "│" not in shop.process("events.jsonl").out, "no table"


def test_a_truncated_gzip_file_is_reported_and_the_events_before_are_done(shop: Shop) -> None:
    packed = gzip.compress(b"\n".join(event(f"{number}-{os.urandom(32).hex()}") for number in range(2_000)))
    shop.file.write_bytes(packed[: len(packed) * 2 // 3])
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 1
    assert ended.json["files"][0]["stopped"]
    assert not ended.json["files"][0]["finished"]
    assert 0 < ended.json["outcomes"]["done"] < 2_000


def test_rejects_contains_each_document_that_is_not_an_event_with_its_reason(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", b'{"a": "\xff"}', event("1", other=1), event("2")])
    ended = shop.process("events.jsonl", "--rejects", "rejects.jsonl")
    assert ended.code == 1
    entries = [json.loads(line) for line in (shop.folder / "rejects.jsonl").read_text().splitlines()]
    assert [(entry["line"], entry.get("body"), entry.get("base64")) for entry in entries] == [
        (2, "{broken", None),
        (3, None, "eyJhIjogIv8ifQ=="),
        (4, event("1", other=1).decode(), None),
    ]
    assert all(entry["reason"] and entry["file"] == "events.jsonl" for entry in entries)
    content = shop.file.read_bytes()
    assert content[entries[0]["byte"] :][: entries[0]["bytes"]] == b"{broken"
    assert "rejects.jsonl" in ended.out


def test_on_error_stop_ends_the_run_at_the_first_document_that_is_not_an_event(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", *[event(str(number)) for number in range(2, 500)]])
    ended = shop.process("events.jsonl", "--on-error", "stop", "--json")
    assert ended.code == 1
    assert "line 2, byte" in ended.json["stopped"]
    assert ended.json["outcomes"]["malformed"] == 1
    assert len(shop.booked()) < 499, "it reads no further than the current batch"
    assert not ended.json["files"][0]["finished"]
    again = shop.process("events.jsonl", "--json")
    assert again.json["outcomes"]["malformed"] == 1
    assert len(shop.booked()) == 499


def test_a_full_disk_under_the_rejects_stops_the_run(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", event("2")])
    ended = shop.process("events.jsonl", "--rejects", "/dev/full", "--json")
    assert ended.code == 1
    assert "No space left" in ended.json["stopped"]
    assert not ended.json["files"][0]["finished"]


def test_a_limit_counts_the_events_of_all_files(shop: Shop) -> None:
    shop.write([event(f"a{number}") for number in range(5)])
    shop.write([event(f"b{number}") for number in range(5)], "more.jsonl")
    assert shop.process("events.jsonl", "more.jsonl", "--limit", "7").code == 0
    assert len(shop.booked()) == 7
    assert shop.booked()[5:] == ["b0", "b1"]


def test_a_rate_is_kept(shop: Shop) -> None:
    shop.write([event(str(number)) for number in range(20)])
    ended = shop.process("events.jsonl", "--rate", "40", "--json")
    assert ended.json["seconds"] >= 0.4
    assert ended.json["outcomes"] == {"done": 20}


def test_an_event_is_left_if_its_retry_is_due_after_the_patience(shop: Shop) -> None:
    shop.write([event("1"), event("2", "soon"), *[event(f"e{number}") for number in range(600)]])
    ended = shop.process("events.jsonl", "--patience", "0", "--json")
    assert ended.code == 1
    assert ended.json["outcomes"] == {"done": 601, "left": 1}
    assert not ended.json["files"][0]["finished"]
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 0, ended.out
    assert ended.json["outcomes"] == {"done": 1, "duplicate": 601}


def test_tenant_origin_and_paths_are_part_of_the_identity(shop: Shop) -> None:
    shop.file.write_bytes(b'{"number": "n1", "kind": "sale"}')
    assert shop.process("events.jsonl", "--json").json["outcomes"] == {"malformed": 1}
    paths = ("--id-path", "number", "--type-path", "kind", "--origin", "shop")
    assert shop.process("events.jsonl", "--json", *paths).json["outcomes"] == {"done": 1}
    assert shop.process("events.jsonl", "--json", *paths).json["outcomes"] == {"duplicate": 1}
    assert shop.process("events.jsonl", "--json", *paths, "--tenant", "b").json["outcomes"] == {"done": 1}
    assert shop.process("events.jsonl", "--type-path", "kind").code == 2


def test_the_endpoint_of_events_is_part_of_their_keys_unless_they_name_their_origin(shop: Shop) -> None:
    shop.write([event("1"), b'{"specversion": "1.0", "id": "1", "source": "s", "type": "sale"}'])
    assert shop.process("events.jsonl", "--json", "--endpoint", "/a").json["outcomes"] == {"done": 2}
    assert shop.process("events.jsonl", "--json", "--endpoint", "/a").json["outcomes"] == {"duplicate": 2}
    assert shop.process("events.jsonl", "--json", "--endpoint", "/b").json["outcomes"] == {"done": 1, "duplicate": 1}


def test_a_dry_run_shows_each_event_and_writes_nothing(shop: Shop) -> None:
    shop.write([event("1"), event("2"), b"{broken", event("3", "nobody")])
    before = {path.name for path in shop.folder.iterdir()}
    ended = shop.process("events.jsonl", "--dry-run")
    assert ended.code == 1, "something is no event"
    assert [line.split()[1:4] for line in ended.out.splitlines()[:2]] == [["would", "run", "book"]] * 2
    assert any(not lacks(line, "events.jsonl:3 malformed JSON") for line in ended.out.splitlines())
    assert {path.name for path in shop.folder.iterdir()} - {"__pycache__"} == before - {"__pycache__"}
    shop.process("events.jsonl", "--limit", "1")
    lines = [json.loads(line) for line in shop.process("events.jsonl", "--dry-run", "--json").out.splitlines()]
    assert [line["state"] for line in lines] == ["done", "new", "malformed", "ignored"]
    assert len(lines[0]["key"]) == 32
    assert shop.booked() == ["1"]


def test_a_dry_run_shows_events_without_a_key(shop: Shop) -> None:
    shop.write([event("1"), event("x" * 300)])
    ended = shop.process("events.jsonl", "--dry-run", "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["state"] for line in lines] == ["new", "without key"]
    assert "255" in lines[1]["reason"]
    assert ended.code == 1
    assert shop.process("events.jsonl", "--json").json["outcomes"] == {"done": 1, "dead": 1}
    lines = [json.loads(line) for line in shop.process("events.jsonl", "--dry-run", "--json").out.splitlines()]
    assert [line["state"] for line in lines] == ["done", "dead"]


def test_an_incomplete_event_is_reported_and_processed_when_it_is_complete(shop: Shop) -> None:
    content = event("1") + b"\n" + event("2")
    shop.file.write_bytes(content[:-5])
    ended = shop.process("events.jsonl")
    assert ended.code == 1
    assert CUT_OFF in " ".join(ended.out.replace("│", " ").split())
    shop.file.write_bytes(content)
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 0, ended.out
    assert ended.json["outcomes"] == {"duplicate": 1, "done": 1}


def test_an_event_that_waits_for_its_retry_does_not_delay_the_others(shop: Shop) -> None:
    shop.write([event("slow", "soon"), *[event(str(number)) for number in range(300)]])
    ended = shop.process("events.jsonl", "--json")
    assert ended.json["outcomes"] == {"done": 301}
    assert ended.json["seconds"] >= 0.2
