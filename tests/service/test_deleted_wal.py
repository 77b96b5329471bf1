"""Files of a SQLite ledger are deleted under a running service: it stops taking events, and forgets none."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest
from tests.service.running import Running, event, service

SETTINGS = """
[[endpoints]]
path = "/inline"
mode = "inline"

[[endpoints]]
path = "/inbox"

[[routes]]
name = "all"
topics = ["**"]
console = true
"""


PAUSE_S = 0.01  # the files are looked at every 0.5 s: some dozens of events come before that


class Sender:
    """Sends one event after the other, and keeps the ids that were acknowledged."""

    def __init__(self, running: Running, path: str) -> None:
        self.acknowledged: list[str] = []
        self.refused = 0
        self._running, self._path = running, path
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._send)

    def _send(self) -> None:
        number = 0
        while not self._over.is_set():
            number += 1
            id = f"{self._path}-{number}"
            status = self._running.post(self._path, event(id)).status
            if status == 200:
                self.acknowledged.append(id)
            else:
                assert status == 503
                self.refused += 1
            self._over.wait(PAUSE_S)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.mark.parametrize("suffixes", [("-wal",), ("-wal", "-shm"), ("-shm",)], ids=" ".join)
def test_no_acknowledged_event_is_forgotten_after_its_log_was_deleted(
    suffixes: tuple[str, ...], tmp_path: Path
) -> None:
    with service(tmp_path, SETTINGS) as running:
        with Sender(running, "/inline") as inline, Sender(running, "/inbox") as inbox:
            running.until(lambda: min(len(inline.acknowledged), len(inbox.acknowledged)) > 20, "nothing is taken")
            assert (tmp_path / "semel.db-wal").stat().st_size > 0, "nothing is in the log"
            for suffix in suffixes:
                (tmp_path / f"semel.db{suffix}").unlink()
            running.until(lambda: inline.refused and inbox.refused, "it goes on taking events")
            running.until(lambda: running.get("/readyz").status == 503, "it calls itself ready")
        path = str(tmp_path / "semel.db")
        running.until(
            lambda: any(path in line and "SIGTERM" in line for line in running.log), "the log does not say what to do"
        )
        running.kill()
        running.start()
        for sender, path in ((inline, "/inline"), (inbox, "/inbox")):
            again = [running.post(path, event(id)).json["status"] for id in sender.acknowledged]
            assert again == ["duplicate"] * len(again)


def test_an_idle_service_notices_it_and_saves_what_was_acknowledged(tmp_path: Path) -> None:
    with service(tmp_path, SETTINGS) as running:
        assert running.post("/inline", event("before")).status == 200
        (tmp_path / "semel.db-wal").unlink()
        time.sleep(2.0)  # the files are looked at every 0.5 s; nobody asks for anything meanwhile
        running.kill()
        running.start()
        assert running.post("/inline", event("before")).json["status"] == "duplicate"
