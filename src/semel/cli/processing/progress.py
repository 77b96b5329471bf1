"""How far a file was worked off: a small file beside it, so that work goes on after an end of any kind.

It names the lowest place below which everything is settled, and is replaced as a whole: whoever is killed leaves the
old one or the new one. It can only be too old. Then some events are read again, and the ledger knows them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
from msgspec import Struct

from semel.cli.processing.documents import Place
from semel.cli.processing.opening import Mark
from semel.values.errors import ConfigError

SUFFIX = ".semel-progress"
VERSION = 1
MAX_BYTES = 1024 * 1024  # more is another file


class Progress(Struct, frozen=True, kw_only=True):
    """What is known of a file."""

    version: int = VERSION
    file: str
    mark: Mark
    place: Place
    counts: dict[str, int]  # of what came before that place, by outcome
    work: dict[str, str]  # for whom it was read: another ledger has seen nothing of it
    began_ms: int | None = None  # of a run with --force: what it has run again is not run once more
    finished: bool = False  # nothing came behind that place


def path_for(name: str) -> Path:
    return Path(f"{name}{SUFFIX}")


def load(path: Path) -> Progress | None:
    """None: there is none. Raises ConfigError."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        progress = msgspec.json.decode(content, type=Progress)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"{path}: the progress cannot be read: {error.strerror}") from None
    except msgspec.MsgspecError as error:
        raise ConfigError(
            f"{path}: this is no progress of semel process ({error}). Leave --resume out to begin anew"
        ) from None
    if progress.version != VERSION:
        raise ConfigError(f"{path}: written by another version of Semel. Leave --resume out to begin anew")
    return progress


def save(path: Path, progress: Progress) -> None:
    """Durable, and whole or not at all. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with unfinished.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(progress), indent=1) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except OSError:
        with suppress(OSError):
            unfinished.unlink()
        raise


def refuse_other_work(path: Path, progress: Progress, work: Mapping[str, str]) -> None:
    """What one app has settled is new to another."""
    for name in sorted({*work, *progress.work}):
        then, now = progress.work.get(name, ""), work.get(name, "")
        if then != now:
            raise ConfigError(
                f"{path}: this progress was made with another {name} ({then or 'none'}; now {now or 'none'}), for "
                "which the file is not done up to there. Leave --resume out to begin anew"
            )
