"""`semel`: the list of commands, each of which is a module of this package.

`semel --help` shows the texts below and imports no command, so it is quick. A command's module is imported when the
command is called.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_group

COMMANDS = {
    "Every day": {
        "run": "Run the service: take webhooks, consume sources, forward events, serve the HTTP API.",
        "doctor": "Check settings, stores and sources, and show the guarantees that they give.",
        "status": "Show how many events are in each state, and what needs attention.",
        "dead": "List, replay and discard dead and uncertain events.",
        "notify": "Send and look up messages to customers, and decide about uncertain ones.",
        "process": "Process events from files or from standard input, each effect once.",
    },
    "Set up": {
        "init": "Write a commented settings file to start with.",
        "migrate": "Create or upgrade the tables of the ledger.",
        "token": "Create a token for the HTTP API and print its lines for semel.toml.",
    },
    "Operate": {
        "events": "List and show single events.",
        "relay": "Send notifications through the providers of the settings, each of them once.",
        "purge": "Delete settled keys whose retention has ended.",
    },
    "Try and measure": {
        "demo": "Kill workers during a burst of duplicated events and count the effects.",
        "storm": "Send realistic Genesys traffic: duplicated, late, out of order, in bursts.",
        "sink": "Run a destination that counts effects, to check a storm against.",
        "bench": "Measure Semel on this machine against minimal programs written by hand.",
    },
}


class LazyCommands(TyperGroup):
    """Imports the module of a command when that command is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """Import the module of a command and build the command with its options. Its type depends on typer's version."""
    own = typer.Typer()
    try:
        import_module(f"semel.cli.{name}").register(own)
    except ModuleNotFoundError as error:
        from semel.values.errors import ConfigError

        raise ConfigError(f"semel {name} needs {error.name}: pip install 'semel[service]'") from None
    return get_group(own).commands[name]


app = typer.Typer(
    cls=LazyCommands,
    help="Run your handler's effect once for every contact-centre event.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for purpose, commands in COMMANDS.items():
    for name, text in commands.items():
        app.command(name, help=text, rich_help_panel=purpose)(lambda: None)  # `load` replaces it


def main() -> None:
    """The console entry."""
    from semel.values.errors import SemelError

    try:
        app()
    except SemelError as error:
        typer.echo(f"semel: {error}", err=True)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        typer.echo("semel: interrupted", err=True)
        raise SystemExit(130) from None


def _print_version(wanted: bool) -> None:
    if wanted:
        from semel import __version__

        typer.echo(f"semel {__version__}")
        raise typer.Exit


@app.callback()
def semel(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
