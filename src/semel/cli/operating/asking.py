"""Asking whoever sits at the terminal."""

from __future__ import annotations

import sys

import typer

from semel.values.errors import ConfigError


def confirmed(question: str, instead: str = "say --yes, or look with --dry-run first") -> bool:
    """Asked where someone can answer; elsewhere such a decision has to be made beforehand."""
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is nobody here to ask: {instead}")
    return typer.confirm(question, err=True)
