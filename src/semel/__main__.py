"""`python -m semel`."""

from semel.cli.main import main

main()
