"""A bus beside the stores."""

from __future__ import annotations

from tests.letterboxes.conftest import bus, server

__all__ = ["bus", "server"]
