"""`semel init`: writes a settings file that contains every setting. A test compares it with the schema."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from semel.values.errors import ConfigError


def starter() -> str:
    """The commented file. Unchanged, it uses SQLite and writes every event to the console."""
    return files("semel.cli").joinpath("starter.toml").read_text("utf-8")


def write(path: Path, force: bool = False) -> None:
    """Write the file. An existing file is overwritten only with `force`. Raises ConfigError."""
    try:
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(starter())
    except FileExistsError:
        raise ConfigError(f"{path} exists already: choose another file, or pass --force to overwrite it") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from None


def register(app: typer.Typer) -> None:
    @app.command()
    def init(
        file: Annotated[Path, typer.Argument(help="The file to write.")] = Path("semel.toml"),
        force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    ) -> None:
        """Write a commented settings file to start with.

        It contains every setting with its default, a SQLite ledger, and a route that writes every event to the console.
        """
        write(file, force)
        option = "" if file == Path("semel.toml") else f" -c {file}"
        typer.echo(f"Wrote {file}. Review it, then run: semel doctor{option} && semel run{option}")
