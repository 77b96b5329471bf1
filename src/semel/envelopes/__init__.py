"""What arrives, and how it becomes an `Event`. One file for each family of shapes; `decode` tells them apart."""

from semel.envelopes.decode import decode
from semel.envelopes.identities import IDENTITIES, ShapeIdentity

__all__ = ["IDENTITIES", "ShapeIdentity", "decode"]
