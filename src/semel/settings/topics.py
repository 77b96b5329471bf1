"""Topics that everybody has heard of: a pattern that nearly is one of them is probably meant to be it."""

from __future__ import annotations

from difflib import SequenceMatcher

FAMILIES = (  # how topics of Genesys Cloud begin; others exist, so only near misses are told
    "v2.analytics",
    "v2.audits",
    "v2.conversations",
    "v2.detail.events.conversation",
    "v2.outbound",
    "v2.routing.queues",
    "v2.users",
)
NEAR = 0.88  # of similarity: one letter in a short name, two in a long one


def misspelt(pattern: str) -> str:
    """The pattern as it was probably meant; empty when nothing speaks against it."""
    parts = pattern.split(".")
    if any(parts[: len(family.split("."))] == family.split(".") for family in FAMILIES):
        return ""
    for family in FAMILIES:
        length = len(family.split("."))
        begins, rest = ".".join(parts[:length]), parts[length:]
        if "*" not in begins and SequenceMatcher(None, begins.lower(), family).ratio() >= NEAR:
            return ".".join([family, *rest])
    return ""
