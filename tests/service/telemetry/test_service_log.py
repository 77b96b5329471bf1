"""The log of a running service: named events with fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.service.running import Running, service

SETTINGS = """
ledger = "sqlite:///semel.db"
[server]
log_level = "{level}"
[[endpoints]]
path = "/events"
mode = "{mode}"
[[routes]]
name = "copy"
topics = ["**"]
console = true
"""

SECRET = "4111111111111111"


def event(number: int) -> bytes:
    return json.dumps({"id": f"e-{number}", "type": "order.placed", "data": {"card": SECRET}}).encode()


def lines(running: Running, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in running.log if line.startswith("{")]
    return [line for line in found if line["event"] == name]


def test_a_finished_delivery_is_one_line_and_a_request_none_at_info(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS.format(level="info", mode="inbox")) as running:
        running.until(lambda: lines(running, "inbox_found"), "the inbox is not logged at start")
        assert lines(running, "inbox_found")[0]["items"] == 0
        assert running.post("/events", event(1)).status == 200
        running.until(lambda: lines(running, "event_done"), "the delivery is not logged")
        (line,) = lines(running, "event_done")
        assert (line["handler"], line["event_id"], line["attempt"], line["outcome"]) == ("copy", "e-1", 1, "done")
        assert line["duration_ms"] >= 0
        assert lines(running, "http_request") == []


def test_requests_are_logged_at_debug_without_their_query(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS.format(level="debug", mode="inline")) as running:
        assert running.post("/events?token=hunter2", event(1)).status == 200
        running.until(lambda: any(one["path"] == "/events" for one in lines(running, "http_request")), "no request")
        (line,) = [one for one in lines(running, "http_request") if one["path"] == "/events"]
        assert (line["method"], line["http_status"], line["level"]) == ("POST", 200, "debug")
        assert not any("hunter2" in one for one in running.log)
        assert not any(SECRET in one for one in running.log if one.startswith("{") and '"event"' in one)
