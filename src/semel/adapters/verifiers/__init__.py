"""How a delivery proves where it comes from. One file for each family of schemes; `verifier` chooses by name."""

from semel.adapters.verifiers.choosing import SCHEMES, verifier
from semel.adapters.verifiers.sns_message import SnsMessage, unwrap

__all__ = ["SCHEMES", "SnsMessage", "unwrap", "verifier"]
