"""Verifiers of signatures and credentials, one file per family of schemes. `verifier` builds one by its name."""

from semel.verifiers.registry import SCHEMES, verifier
from semel.verifiers.sns_message import SnsMessage, unwrap

__all__ = ["SCHEMES", "SnsMessage", "unwrap", "verifier"]
