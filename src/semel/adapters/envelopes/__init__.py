"""What arrives, and how it becomes an `Event`. One file for each family of shapes; `decode` tells them apart."""

from semel.adapters.envelopes.decode import decode

__all__ = ["decode"]
