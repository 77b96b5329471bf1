"""What SQLite may forget, by how it is told to write. Its process is ours: it is never killed alone."""

from __future__ import annotations

from msgspec.structs import replace

from semel.ports import Loses, Traits

SYNCHRONOUS = ("full", "normal", "extra")


def traits_of(synchronous: str) -> Traits:
    """`normal` leaves the newest commits to the operating system, which outlives us but not a power cut."""
    if synchronous != "normal":
        return Traits(name="SQLite", durable=True, transactional=True)
    return Traits(
        name="SQLite",
        durable=True,
        transactional=True,
        caveat="synchronous=normal may forget the newest answers on power loss",
        loses=Loses(power_loss="the newest answers, some seconds of them", tokens_go_back=True),
    )


def profiles() -> list[Traits]:
    """Everything that a SQLite ledger can be."""
    return [traits_of("full"), replace(traits_of("normal"), name="SQLite, synchronous=normal")]
