"""The emulator of SQS, as the tests of sources have it."""

from __future__ import annotations

from tests.sources.conftest import aws, new_queue, queue, quick_end, server

__all__ = ["aws", "new_queue", "queue", "quick_end", "server"]  # fixtures
