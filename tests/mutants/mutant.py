"""What a planted bug is."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    name: str
    file: str  # below src/semel
    old: str
    new: str
    killer: str  # the test that fails when the bug is planted
