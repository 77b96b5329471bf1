"""Dead letters on a bus of EventBridge: for deployments without an SQL store, and for whoever wants to hear of them."""

from semel.adapters.letterboxes.eventbridge.announcing import LettersAnnounced, announced
from semel.adapters.letterboxes.eventbridge.letters import EventBridgeLetters

__all__ = ["EventBridgeLetters", "LettersAnnounced", "announced"]
