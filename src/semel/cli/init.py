"""`semel init`: a settings file to start with, in which every setting is named. A test holds it to the schema."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from semel.values.errors import ConfigError


def starter() -> str:
    """The commented file. As it stands it has SQLite and a route that writes every event to the console."""
    return files("semel.cli").joinpath("starter.toml").read_text("utf-8")


def write(path: Path, force: bool = False) -> None:
    """Write the starter. A file that is there stays as it is, unless force says otherwise. Raises ConfigError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(starter())
    except FileExistsError:
        raise ConfigError(f"{path} exists already: name another file, or say --force to write over it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command()
    def init(
        file: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("semel.toml"),
        force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
    ) -> None:
        """Write a commented settings file to start with.

        It names every setting with its default, keeps what was done in SQLite, and has a route that writes every event
        to the console.
        """
        write(file, force)
        named = "" if file == Path("semel.toml") else f" -c {file}"
        typer.echo(f"Wrote {file}. Look at it, then try: semel doctor{named} && semel run{named}")
