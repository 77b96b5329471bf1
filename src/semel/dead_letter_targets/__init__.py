"""Targets that dead letters are announced on, in addition to the ledger that keeps them."""

from semel.dead_letter_targets.eventbridge import EventBridgeTarget

__all__ = ["EventBridgeTarget"]
