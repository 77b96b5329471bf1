"""`semel process`: what it reads, what it counts, and what it says."""

from __future__ import annotations

import asyncio
import gzip
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command import semel
from tests.cli.process.conftest import Shop, event
from tests.wording import lacks

from semel import Context, Event, Semel
from semel.cli.process_input import CUT_OFF
from semel.cli.process_run import Forcing

EVERY = [
    *(event("1"), event("2"), event("1"), event("3", "refused"), event("4", "doubtful"), event("5", "soon")),
    *(b"{broken", event("6", "nobody"), event("2", other="payload"), b"[]", event("7", "later"), event("8")),
]


def test_every_outcome_is_counted_with_its_reason_and_nothing_bad_is_overlooked(shop: Shop) -> None:
    shop.write(EVERY)
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 1
    told = ended.json
    assert told["outcomes"] == {
        "done": 4,
        "duplicate": 1,
        "ignored": 1,
        "dead": 1,
        "uncertain": 1,
        "conflict": 1,
        "malformed": 2,
        "left": 1,
    }
    assert not told["ok"]
    assert told["reasons"]["dead"] == [
        {
            "reason": "unknown customer",
            "count": 1,
            "file": "events.jsonl",
            "line": 4,
            "byte": len(b"\n".join(EVERY[:3])) + 1,
        }
    ]
    assert [one["line"] for one in told["reasons"]["malformed"]] == [7, 10]
    assert "JSON" in told["reasons"]["malformed"][0]["reason"]
    assert told["reasons"]["left"][0]["reason"] == "in an hour"
    assert shop.booked() == ["1", "2", "8"]


def test_the_table_says_what_happened_where_and_how_to_go_on(shop: Shop) -> None:
    shop.write(EVERY)
    ended = shop.process("events.jsonl")
    assert ended.code == 1
    told = " ".join(ended.out.split())
    for words in ("--force", "1 × unknown customer", "events.jsonl, line 4, byte ", "semel dead list", "--resume"):
        assert words in told, ended.out


def test_when_everything_ends_well_the_code_is_0(shop: Shop) -> None:
    shop.write([event("1"), event("1"), event("2", "soon"), event("3", "nobody")])
    ended = shop.process("events.jsonl")
    assert ended.code == 0, ended.out
    assert "--resume" not in ended.out
    assert shop.progress["finished"]


def test_settings_alone_are_enough(shop: Shop) -> None:
    (shop.folder / "semel.toml").write_text(
        'ledger = "sqlite:///other.db"\n[[routes]]\nname = "shown"\ntopics = ["**"]\nconsole = true\n'
    )
    shop.write([event("1"), event("2")])
    ended = semel("process", "events.jsonl", "--json")
    assert ended.code == 0, ended.err
    assert ended.json["outcomes"] == {"done": 2}
    assert "sale  1  attempt 1" in ended.err, "what a handler prints is not in the document"


def test_without_an_app_it_says_what_is_missing(shop: Shop) -> None:
    shop.write([event("1")])
    ended = semel("process", "events.jsonl")
    assert ended.code == 2
    assert "--app module:app" in ended.err


@pytest.mark.parametrize("layout", ["gzip", "list", "together", "laid out", "windows"])
def test_files_of_every_layout_are_read(shop: Shop, layout: str) -> None:
    bodies = [event(str(number)) for number in range(5)]
    match layout:
        case "gzip":
            content = gzip.compress(b"\n".join(bodies[:3])) + gzip.compress(b"\n" + b"\n".join(bodies[3:]))
        case "list":
            content = b"[" + b",".join(bodies) + b"]"
        case "together":
            content = b"".join(bodies)
        case "laid out":
            content = b"\n".join(json.dumps(json.loads(body), indent=4).encode() for body in bodies)
        case _:
            content = b"\xef\xbb\xbf" + b"\r\n".join(bodies)
    shop.file.write_bytes(content)
    ended = shop.process("events.jsonl")
    assert ended.code == 0, ended.out
    assert sorted(shop.booked()) == ["0", "1", "2", "3", "4"]


def test_standard_input_is_read_and_cannot_be_resumed(shop: Shop) -> None:
    content = b"\n".join(event(str(number)) for number in range(5))
    assert shop.process("-", stdin=content).code == 0
    assert sorted(shop.booked()) == ["0", "1", "2", "3", "4"]
    ended = semel("process", "-", "--resume", "--app", f"{shop.module}:app")
    assert ended.code == 2
    assert lacks(ended.err, "--resume") == []
    assert list(shop.folder.glob("*progress*")) == []


def test_a_pipe_with_a_name_is_like_standard_input(shop: Shop) -> None:
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
def test_what_cannot_be_read_is_refused_before_anything_is_done(
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


@pytest.mark.parametrize("option", ["--rejects", "--progress"])
def test_the_file_that_is_read_is_never_written(shop: Shop, option: str) -> None:
    content = shop.write([event("1"), b"{"]).read_bytes()
    (shop.folder / "link").symlink_to(shop.file)
    for name in ("events.jsonl", "./events.jsonl", "link"):
        ended = shop.process("events.jsonl", option, name)
        assert ended.code == 2
        assert lacks(ended.err, f"{option} file read") == []
    assert shop.file.read_bytes() == content
    assert shop.process("events.jsonl", "--rejects", "same", "--progress", "same").code == 2


def test_an_empty_file_has_no_events(shop: Shop) -> None:
    shop.file.write_bytes(b"")
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 0
    assert ended.json["outcomes"] == {}
    assert "│" not in shop.process("events.jsonl").out, "no table"


def test_a_packed_file_that_was_cut_off_says_so_and_what_came_before_is_done(shop: Shop) -> None:
    packed = gzip.compress(b"\n".join(event(f"{number}-{os.urandom(32).hex()}") for number in range(2_000)))
    shop.file.write_bytes(packed[: len(packed) * 2 // 3])
    ended = shop.process("events.jsonl", "--json")
    assert ended.code == 1
    assert ended.json["files"][0]["stopped"]
    assert not ended.json["files"][0]["finished"]
    assert 0 < ended.json["outcomes"]["done"] < 2_000


def test_what_is_no_event_is_kept_with_its_reason_when_asked_for(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", b'{"a": "\xff"}', event("1", other=1), event("2")])
    ended = shop.process("events.jsonl", "--rejects", "rejects.jsonl")
    assert ended.code == 1
    kept = [json.loads(line) for line in (shop.folder / "rejects.jsonl").read_text().splitlines()]
    assert [(one["line"], one.get("body"), one.get("base64")) for one in kept] == [
        (2, "{broken", None),
        (3, None, "eyJhIjogIv8ifQ=="),
        (4, event("1", other=1).decode(), None),
    ]
    assert all(one["reason"] and one["file"] == "events.jsonl" for one in kept)
    content = shop.file.read_bytes()
    assert content[kept[0]["byte"] :][: kept[0]["bytes"]] == b"{broken"
    assert "rejects.jsonl" in ended.out


def test_it_stops_before_what_is_no_event_when_told_to(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", *[event(str(number)) for number in range(2, 500)]])
    ended = shop.process("events.jsonl", "--on-error", "stop", "--json")
    assert ended.code == 1
    assert "line 2, byte" in ended.json["stopped"]
    assert ended.json["outcomes"]["malformed"] == 1
    assert ended.json["files"][0]["settled_to"] == len(event("1"))
    assert len(shop.booked()) < 499, "it read no further than the batch in hand"
    again = shop.process("events.jsonl", "--resume", "--json")
    assert again.json["outcomes"]["malformed"] == 1, "told once, although it was met twice"
    assert len(shop.booked()) == 499


def test_a_full_disk_under_the_rejects_stops_it_before_anything_is_passed_over(shop: Shop) -> None:
    shop.write([event("1"), b"{broken", event("2")])
    ended = shop.process("events.jsonl", "--rejects", "/dev/full", "--json")
    assert ended.code == 1
    assert "No space left" in ended.json["stopped"]
    assert ended.json["files"][0]["settled_to"] == len(event("1"))


def test_progress_that_cannot_be_kept_costs_nothing_but_is_told(shop: Shop) -> None:
    shop.write([event("1"), event("2")])
    ended = shop.process("events.jsonl", "--progress", "nowhere/progress")
    assert ended.code == 0
    assert "nowhere/progress" in ended.out
    assert shop.booked() == ["1", "2"]


def test_a_limit_is_kept_over_all_files_and_a_resume_goes_on_behind_it(shop: Shop) -> None:
    shop.write([event(f"a{number}") for number in range(5)])
    shop.write([event(f"b{number}") for number in range(5)], "more.jsonl")
    assert shop.process("events.jsonl", "more.jsonl", "--limit", "7").code == 0
    assert len(shop.booked()) == 7
    ended = shop.process("more.jsonl", "--resume", "--json")
    assert ended.json["this_run"] == {"done": 3}
    assert ended.json["before"] == {"done": 2}


def test_a_rate_is_kept(shop: Shop) -> None:
    shop.write([event(str(number)) for number in range(20)])
    ended = shop.process("events.jsonl", "--rate", "40", "--json")
    assert ended.json["seconds"] >= 0.4
    assert ended.json["outcomes"] == {"done": 20}


def test_a_retry_is_waited_for_with_patience_and_left_without(shop: Shop) -> None:
    shop.write([event("1"), event("2", "soon"), *[event(f"e{number}") for number in range(600)]])
    ended = shop.process("events.jsonl", "--patience", "0", "--json")
    assert ended.code == 1
    assert ended.json["outcomes"] == {"done": 601, "left": 1}
    assert ended.json["files"][0]["settled_to"] == len(event("1")), "a failure is never buried, by any later batch"
    ended = shop.process("events.jsonl", "--resume", "--json")
    assert ended.code == 0, ended.out
    assert ended.json["outcomes"] == {"done": 2, "duplicate": 600}


def test_tenant_and_origin_and_paths_are_part_of_what_an_event_is(shop: Shop) -> None:
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


def test_a_dry_run_tells_what_would_be_done_and_writes_nothing(shop: Shop) -> None:
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


def test_a_dry_run_shows_which_events_would_be_dead_letters_for_want_of_a_key(shop: Shop) -> None:
    shop.write([event("1"), event("x" * 300)])
    ended = shop.process("events.jsonl", "--dry-run", "--json")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["state"] for line in lines] == ["new", "without key"]
    assert "255" in lines[1]["reason"]
    assert ended.code == 1
    assert shop.process("events.jsonl", "--json").json["outcomes"] == {"done": 1, "dead": 1}
    lines = [json.loads(line) for line in shop.process("events.jsonl", "--dry-run", "--json").out.splitlines()]
    assert [line["state"] for line in lines] == ["done", "dead"]


# ------------------------------------------------------------------------------------------------------------- force


def test_what_had_succeeded_is_run_again_only_by_force_and_with_a_reason(shop: Shop) -> None:
    shop.write([event("1"), event("2"), event("1")])
    assert shop.process("events.jsonl").code == 0
    assert shop.process("events.jsonl", "--json").json["outcomes"] == {"duplicate": 3}
    assert shop.process("events.jsonl", "--force").code == 2
    ended = shop.process("events.jsonl", "--force", "--reason", "the CRM lost a day", "--by", "kim", "--json")
    assert ended.code == 0, ended.out + ended.err
    assert ended.json["forced"] == 2
    assert ended.json["outcomes"] == {"done": 2, "duplicate": 1}, "a copy in the same file is one event"
    assert sorted(shop.booked()) == ["1", "1", "2", "2"]


def test_what_this_run_has_done_for_the_first_time_is_not_forced(shop: Shop) -> None:
    bodies = [event(str(number)) for number in range(250)]
    shop.write([*bodies, *bodies])
    ended = shop.process("events.jsonl", "--force", "--reason", "again", "--json")
    assert ended.json["outcomes"] == {"done": 250, "duplicate": 250}
    assert len(shop.booked()) == 250


def test_a_resumed_run_forces_nothing_a_second_time(shop: Shop) -> None:
    shop.write([event("0", "later"), event("1"), event("2")])
    assert shop.process("events.jsonl").code == 1
    force = ("--force", "--reason", "again", "--json")
    assert shop.process("events.jsonl", *force).json["forced"] == 2
    ended = shop.process("events.jsonl", *force, "--resume")
    assert ended.json["forced"] == 0, "what is left holds the place back, and the others are known as forced"
    assert sorted(shop.booked()) == ["1", "1", "2", "2"]


def test_what_an_earlier_run_of_the_same_force_did_for_the_first_time_is_not_forced(shop: Shop) -> None:
    shop.write([event("0", "later"), event("1"), event("2")])
    force = ("--force", "--reason", "again", "--json")
    assert shop.process("events.jsonl", *force).json["this_run"] == {"done": 2, "left": 1}
    ended = shop.process("events.jsonl", *force, "--resume")
    assert ended.json["forced"] == 0
    assert ended.json["this_run"] == {"duplicate": 2, "left": 1}
    assert shop.booked() == ["1", "2"]


def test_a_force_is_known_again_by_its_name_where_the_clocks_differ(tmp_path: Path) -> None:
    async def story() -> None:
        async with Semel(f"sqlite:///{tmp_path}/semel.db") as app:

            @app.on("sale")
            async def act(event: Event, ctx: Context) -> None: ...

            ledger: Any = app.ledger
            ahead_ms = time.time_ns() // 1_000_000 + 3_600_000  # of the ledger's clock, which says that nothing is new
            assert [one.status for one in await app.process_many([event("1"), event("1")])] == ["done", "duplicate"]
            for reopened in ([0], []):
                forcing = Forcing(ledger, "again", "kim", ahead_ms)
                assert await forcing.reopened(await app.process_many([event("1")])) == reopened
                await app.process_many([event("1")])

    asyncio.run(story())


# ------------------------------------------------------------------------------------------------------------ resuming


@pytest.mark.parametrize("change", ["head", "shorter", "before the place", "packed"])
def test_a_changed_file_is_not_resumed(shop: Shop, change: str) -> None:
    bodies = [event(f"{number:05}") for number in range(2_000)]
    shop.write(bodies)
    assert shop.process("events.jsonl", "--limit", "1000").code == 0
    content = shop.file.read_bytes()
    at = shop.progress["place"]["at"]
    match change:
        case "head":
            shop.file.write_bytes(b"x" + content[1:])
        case "shorter":
            shop.file.write_bytes(content[:-1])
        case "before the place":
            shop.file.write_bytes(content[: at - 10] + b"x" + content[at - 9 :])
        case _:
            shop.file.write_bytes(gzip.compress(content))
    ended = shop.process("events.jsonl", "--resume")
    assert ended.code == 2
    assert lacks(ended.err, "events.jsonl --resume") == []
    assert len(shop.booked()) == 1_000


def test_a_file_that_has_grown_or_was_copied_is_resumed(shop: Shop) -> None:
    shop.write([event(str(number)) for number in range(100)])
    assert shop.process("events.jsonl").code == 0
    content = shop.file.read_bytes()
    shop.file.unlink()
    shop.file.write_bytes(content + event("new"))
    ended = shop.process("events.jsonl", "--resume", "--json")
    assert ended.json["this_run"] == {"done": 1}
    assert ended.json["before"] == {"done": 100}


def test_an_event_that_was_cut_off_is_read_again_when_it_is_whole(shop: Shop) -> None:
    whole = event("1") + b"\n" + event("2")
    shop.file.write_bytes(whole[:-5])
    ended = shop.process("events.jsonl")
    assert ended.code == 1
    assert CUT_OFF in " ".join(ended.out.split())
    shop.file.write_bytes(whole)
    ended = shop.process("events.jsonl", "--resume", "--json")
    assert ended.code == 0, ended.out
    assert ended.json["outcomes"] == {"done": 2}


def test_progress_of_another_app_or_ledger_is_not_gone_on_from(shop: Shop) -> None:
    shop.write([event("1")])
    assert shop.process("events.jsonl").code == 0
    (shop.folder / "semel.toml").write_text('[[routes]]\nname = "other"\ntopics = ["**"]\nconsole = true\n')
    ended = semel("process", "events.jsonl", "--resume")
    assert ended.code == 2
    assert lacks(ended.err, "progress ledger") == []
    assert shop.process("events.jsonl", "--resume", "--tenant", "b").code == 2


def test_progress_that_is_none_is_refused(shop: Shop) -> None:
    shop.write([event("1")])
    (shop.folder / "events.jsonl.semel-progress").write_text("{")
    ended = shop.process("events.jsonl", "--resume")
    assert ended.code == 2
    assert "events.jsonl.semel-progress" in ended.err
    assert shop.booked() == []


def test_a_packed_file_is_resumed(shop: Shop) -> None:
    shop.file.write_bytes(gzip.compress(b"\n".join(event(str(number)) for number in range(500))))
    assert shop.process("events.jsonl", "--limit", "300").code == 0
    ended = shop.process("events.jsonl", "--resume", "--json")
    assert ended.json["this_run"] == {"done": 200}
