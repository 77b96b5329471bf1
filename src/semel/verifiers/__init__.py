"""How a delivery proves where it comes from. One file for each family of schemes; `verifier` chooses by name."""

from semel.verifiers.registry import SCHEMES, verifier
from semel.verifiers.sns_message import SnsMessage, unwrap

__all__ = ["SCHEMES", "SnsMessage", "unwrap", "verifier"]
