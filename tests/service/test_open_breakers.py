"""An open breaker is visible to operators: in status, at an event that waits, and after a replay."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.command import semel
from tests.service.running import Running, event, service
from tests.support.servers.process import free_port

from semel.destinations.outcomes import failure_class
from semel.http_client.client import Unsent

SETTINGS = """
ledger = "sqlite:///{folder}/semel.db"
[server]
port = {port}
workers = {workers}
[[endpoints]]
path = "/events"
[destinations.crm]
url = "http://127.0.0.1:{closed}/"
allow = ["127.0.0.1"]
breaker_failures = 1
breaker_open = 60
[[routes]]
name = "to-crm"
topics = ["interaction.*"]
forward = "crm"
max_attempts = 1
[[routes]]
name = "other"
topics = ["nothing"]
console = true
"""


def key_of(state: str, *options: str) -> str:
    (entry, *_) = semel("events", "list", "--state", state, "--json", *options).json
    found: str = entry["key"]
    return found


NOT_SENT = failure_class(Unsent(""))
OPEN = r"destination crm\b.*\bopen\b"


def test_status_events_and_replay_show_it_with_since_reason_and_next_probe(tmp_path: Path) -> None:
    port, closed = free_port(), free_port()
    text = SETTINGS.format(folder=tmp_path, port=port, closed=closed, workers=1)
    options = ("-c", str(tmp_path / "semel.toml"))
    with service(tmp_path, text, "--port", str(port)) as running:
        assert semel("status", "--json", *options).json["breakers"] == [], "all are closed"
        assert running.post("/events", event(1)).status == 200
        opened(running)
        (breaker,) = semel("status", "--json", *options).json["breakers"]
        assert (breaker["of"], breaker["state"], breaker["routes"]) == ("destination crm", "open", ["to-crm"])
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ", breaker["since"])
        assert (breaker["reason"], 0 < breaker["next_probe_s"] <= 75) == (NOT_SENT, True)
        shown = semel("status", *options).out
        assert re.search(OPEN, shown), shown
        assert "probe" in shown

        dead = key_of("dead", *options)
        assert semel("events", "show", dead, "--json", *options).json["breaker"] is None, "it waits for nothing"
        replayed = semel("dead", "replay", dead, "--reason", "again", *options)
        assert re.search(OPEN, replayed.out), replayed.out
        waits = semel("events", "show", dead, *options)
        assert re.search(OPEN, waits.out), waits.out
        assert semel("events", "show", dead, "--json", *options).json["breaker"]["reason"] == NOT_SENT
    assert not re.search(OPEN, semel("status", *options).out)
    assert semel("status", "--json", *options).json["breakers"] is None, "unknown is not closed"


def opened(running: Running) -> None:
    running.until(lambda: '"destination_breaker"' in running.text, "the breaker does not open")
    running.until(lambda: b"destinations" in running.get("/readyz").body, "/readyz does not report it")


def test_a_ledger_alone_asks_no_service(tmp_path: Path) -> None:
    (tmp_path / "semel.toml").write_text('ledger = "sqlite:///semel.db"\n')
    from tests.cli.ledgers import fill

    assert semel("status", "--json", "--ledger", fill(tmp_path)).json["breakers"] is None
