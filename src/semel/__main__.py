"""`python -m semel`, and the console script `semel`."""

from __future__ import annotations

import sys

CLI_PACKAGES = ("typer", "rich")


def main() -> None:
    try:
        from semel.cli.main import main as run
    except ModuleNotFoundError as missing:
        if missing.name not in CLI_PACKAGES:
            raise
        sys.exit(
            f"The command line needs the package {missing.name}, which the library alone does not install. "
            "Install it with: pip install 'semel[cli]', or 'semel[service]' to run the service."
        )
    run()


if __name__ == "__main__":
    main()
