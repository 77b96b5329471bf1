"""Imports the app that `module:app` names on the command line."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType

from semel.app import Semel
from semel.settings.errors import did_you_mean, quoted
from semel.values.errors import ConfigError

EXAMPLE = "expected module:app, such as shop.events:app"


def find_app(target: str) -> Semel:
    """Import the module, also from the working directory, and return its app. Raises ConfigError."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        file = f"; for {module_name} write {_as_module(module_name)}:app" if module_name.endswith(".py") else ""
        raise ConfigError(f"{quoted(target)}: {EXAMPLE}{file}")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        file = f"; a file is named without .py: {_as_module(module_name)}" if module_name.endswith(".py") else ""
        raise ConfigError(f"{quoted(target)}: {EXAMPLE}{file}")
    return _get_app(_import(module_name), attribute, target)


def _as_module(file: str) -> str:
    return file.removesuffix(".py").strip("./").replace("/", ".").replace(os.sep, ".")


def _import(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; the app may import other modules from there later
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(
                f"there is no module {quoted(error.name)} in this folder or among the installed packages"
            ) from None
        raise ConfigError(_failure(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_failure(name, error)) from error


def _failure(name: str, error: BaseException) -> str:
    """Describe why an existing module cannot be imported, with the last line of the user's own code."""
    if isinstance(error, SyntaxError):
        return f"cannot import module {name}: {error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    last = ([frame for frame in frames if _is_user_code(Path(frame.filename))] or frames)[-1]
    return f"cannot import module {name}: {last.filename}, line {last.lineno}: {type(error).__name__}: {error}"


def _is_user_code(file: Path) -> bool:
    """Whether a file is in the working directory and not in an installed package."""
    semel = Path(__file__).parent.parent
    return file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts and not file.is_relative_to(semel)


def _get_app(module: ModuleType, attribute: str, target: str) -> Semel:
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            apps = [known for known, value in vars(module).items() if isinstance(value, Semel)]
            guess = f"; its app is {' or '.join(map(quoted, apps))}" if apps else did_you_mean(name, dir(found))
            raise ConfigError(f"module {module.__name__} has no {quoted(attribute)}{guess}")
        found = getattr(found, name)
    if not isinstance(found, Semel):
        raise ConfigError(f"{quoted(target)} is not a Semel app; its type is {type(found).__name__}")
    return found
