"""What has happened so far."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Each number only grows."""

    received: int = 0
    settled: int = 0
    retried: int = 0
    letters: int = 0
    commits: int = 0  # requests that were answered well
    assigned: int = 0  # partitions
    revoked: int = 0
    lost: int = 0
    paused: int = 0
    failures: int = 0  # of requests, connections and letters
