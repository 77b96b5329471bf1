"""Dead letters on a bus of EventBridge: for deployments without an SQL store, and for whoever wants to hear of them."""

from semel.dead_letter_targets.announced_ledger import AnnouncingLedger, announced
from semel.dead_letter_targets.eventbridge import EventBridgeTarget

__all__ = ["AnnouncingLedger", "EventBridgeTarget", "announced"]
