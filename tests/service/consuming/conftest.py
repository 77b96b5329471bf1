"""Queues of the emulator, for services that consume them."""

from __future__ import annotations

from tests.sources.conftest import aws, new_queue, queue, server

__all__ = ["aws", "new_queue", "queue", "server"]  # fixtures are found by their names here
