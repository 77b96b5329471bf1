"""A disk that takes no more bytes: the service says so, and recovers."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest
from tests.service.running import event, service

SETTINGS = '[[endpoints]]\npath = "/events"\n'


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_readyz_is_503_while_no_byte_can_be_written(tmp_path: Path) -> None:
    """A write lock can be taken on a full disk: only a write tells. The limit of a file's size stands for the disk."""
    with service(tmp_path, SETTINGS) as running:
        assert running.post("/events", event(1)).status == 200
        running.until(lambda: running.get("/readyz").status == 200, "it is not ready at first")
        limits = resource.prlimit(running.pid, resource.RLIMIT_FSIZE)
        full = (tmp_path / "semel.db-wal").stat().st_size
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, (full, limits[1]))
        running.until(lambda: running.get("/readyz").status == 503, "it calls itself ready")
        assert running.post("/events", event(2)).status == 503, "inconclusive: it can still write"
        resource.prlimit(running.pid, resource.RLIMIT_FSIZE, limits)
        running.until(lambda: running.get("/readyz").status == 200, "it does not recover")
        running.until(lambda: running.post("/events", event(3)).status == 200, "it takes nothing")
