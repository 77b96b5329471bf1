"""Decodes the body of a delivery into an `Event`. One file per family of shapes; `decode` recognises them."""

from semel.envelopes.decode import decode
from semel.envelopes.identities import IDENTITIES, ShapeIdentity

__all__ = ["IDENTITIES", "ShapeIdentity", "decode"]
