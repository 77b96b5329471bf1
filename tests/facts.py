"""Facts of `semel doctor` in the form that tests compare."""

from __future__ import annotations

from collections.abc import Iterable

from semel.ports import Fact


def rendered(facts: Iterable[Fact]) -> dict[str, str]:
    """Each fact as doctor prints it, by name. A problem begins with "warning: " or "error: "."""
    return {fact.name: str(fact) for fact in facts}
