"""A bus beside the stores."""

from __future__ import annotations

from tests.dead_letter_targets.conftest import bus, server

__all__ = ["bus", "server"]
