"""`semel run` on every kind of store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.service.running import event, service
from tests.stores.commands import SECRETS, migrated, semel

from semel.values.redaction import masked

INLINE = '[[endpoints]]\nmode = "inline"\n'
ROUTE = '[[routes]]\nname = "all"\ntopics = ["**"]\nconsole = true\n'


def test_an_event_acts_once_on_every_store_and_over_a_restart(store: str, tmp_path: Path) -> None:
    settings = f'ledger = "env:LEDGER"\n{INLINE}{ROUTE}'
    with service(tmp_path, settings, env={"LEDGER": migrated(store)}) as running:
        first, copy = (running.post("/events", event(1)) for _ in range(2))
        assert [(reply.status, reply.json["status"]) for reply in (first, copy)] == [
            (200, "processed"),
            (200, "duplicate"),
        ]
        assert running.get("/readyz").status == 200
        running.kill()
        running.start()
        assert running.post("/events", event(1)).json["status"] == "duplicate"
        running.terminate()
        assert running.wait() == 0
        assert masked(store) in "\n".join(running.log)
        assert not any(secret in "\n".join(running.log) for secret in SECRETS)


def test_postgres_keeps_an_inbox_for_several_workers(database: str, tmp_path: Path) -> None:
    """Accepted by one worker, handled by whichever takes it, counted once."""
    settings = f'ledger = "{migrated(database)}"\n{ROUTE}'
    with service(tmp_path, settings, "--workers", "2") as running:
        replies = [running.post("/events", event(number % 40)) for number in range(80)]
        assert {reply.status for reply in replies} <= {200, 202}
        option = ("--ledger", database)
        running.until(lambda: semel("status", "--json", *option).json["states"]["done"] == 40, "not all were handled")

        def runs() -> int:
            """Two workers share our pipe, and write a line and its end apart: two can come to stand on one line."""
            return "\n".join(running.log).count("attempt 1")

        running.until(lambda: runs() >= 40, "not all were said")
        assert runs() == 40
        assert not any(secret in "\n".join(running.log) for secret in SECRETS)


@pytest.mark.parametrize("dead_letters", ["sqlite", "postgres"])
def test_a_letter_of_redis_is_kept_elsewhere_and_replayed_from_there(
    dead_letters: str, redis_url: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The whole way: given up, listed, decided by a person, brought to its handler by the letterbox's inbox, done."""
    target = f"sqlite:///{tmp_path}/letters.db"
    if dead_letters == "postgres":
        target = migrated(str(request.getfixturevalue("database")))
    known, effects = tmp_path / "known", tmp_path / "effects"
    env = {"LEDGER": redis_url, "LETTERS": target, "KNOWN": str(known), "EFFECTS": str(effects)}
    path = tmp_path / "stores.toml"
    path.write_text(f'ledger = "env:LEDGER"\ndead_letters = "env:LETTERS"\n{INLINE}', "utf-8")
    option = ("-c", str(path))

    def shown(key: str) -> Any:
        return semel("events", "show", key, "--json", *option, env=env).json

    if dead_letters == "sqlite":
        empty = semel("status", "--json", *option, env=env).json
        assert sum(empty["states"].values()) == 0
        assert not (tmp_path / "letters.db").exists(), "looking makes nothing"
    with service(tmp_path, INLINE, "tests.stores.letters_app:app", env=env) as running:
        assert running.post("/events", event(1)).json["status"] == "dead"
        assert running.post("/events", event(1)).json["status"] in ("dead", "duplicate")
        (dead_letter,) = semel("dead", "list", "--json", *option, env=env).json
        assert (dead_letter["state"], dead_letter["reason"]) == ("dead", "unknown customer")
        assert semel("dead", "show", dead_letter["key"], "--json", *option, env=env).json["event"] == event(1)
        alone = semel("dead", "show", dead_letter["key"], "--json", "--ledger", redis_url).json
        assert alone["event"] is None, "the event is in the letterbox alone"

        known.touch()
        replay = semel("dead", "replay", dead_letter["key"], "--reason", "a customer now", "--json", *option, env=env)
        assert replay.code == 0
        assert [one["goes_to"] for one in replay.json["events"]] == ["inbox"]
        running.until(effects.exists, "the replay did not run")
        running.until(lambda: shown(dead_letter["key"])["state"] == "done", "the replay was not settled")
        assert [one["state"] for one in shown(dead_letter["key"])["history"]] == ["done", "replayed"]
        assert running.post("/events", event(1)).json["status"] == "duplicate"
        assert effects.read_text().splitlines() == ["e-1"]
        running.terminate()
        assert running.wait() == 0
    report = json.loads(semel("doctor", "-c", str(path), "--json", env=env).out)
    assert [one["level"] for one in report["findings"] if one["check"] == "dead_letters"] == ["ok"]
    assert "0" in report["store"]["dead_letters"].split()


def test_a_letterbox_that_is_not_ready_keeps_the_service_from_starting(
    redis_url: str, database: str, tmp_path: Path
) -> None:
    path = tmp_path / "semel.toml"
    path.write_text(f'ledger = "{redis_url}"\ndead_letters = "{database}"\n{INLINE}{ROUTE}', "utf-8")
    ended = semel("run", "-c", str(path), "--port", "0")
    assert ended.code == 2
    assert "semel migrate" in ended.err
    stores = semel("migrate", "-c", str(path), "--json").json["stores"]
    assert [(store["role"], store["migrates"], bool(store["done"])) for store in stores] == [
        ("ledger", False, False),
        ("dead_letters", True, True),
    ]
