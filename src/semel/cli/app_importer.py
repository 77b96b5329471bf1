"""`module:app` on the command line: the Semel that is meant, or what is wrong with the name."""

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
    """Import the module, from the working directory too, and take the app out of it. Raises ConfigError."""
    module_name, colon, attribute = target.partition(":")
    if not colon or not module_name or not attribute:
        file = f"; for {module_name} write {_as_module(module_name)}:app" if module_name.endswith(".py") else ""
        raise ConfigError(f"{quoted(target)}: {EXAMPLE}{file}")
    if not all(part.isidentifier() for part in (*module_name.split("."), *attribute.split("."))):
        file = f"; a file is named without .py: {_as_module(module_name)}" if module_name.endswith(".py") else ""
        raise ConfigError(f"{quoted(target)}: {EXAMPLE}{file}")
    return _app_in(_imported(module_name), attribute, target)


def _as_module(file: str) -> str:
    return file.removesuffix(".py").strip("./").replace("/", ".").replace(os.sep, ".")


def _imported(name: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as `python -m` does; what the app imports later is found there too
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise ConfigError(f"there is no module {quoted(error.name)} here or among what is installed") from None
        raise ConfigError(_failure(name, error)) from error
    except (Exception, SystemExit) as error:
        raise ConfigError(_failure(name, error)) from error


def _failure(name: str, error: BaseException) -> str:
    """The module is there, and could not be imported: a line of its own tells why, not one of ours."""
    if isinstance(error, SyntaxError):
        return f"module {name} could not be imported: {error.filename}, line {error.lineno}: SyntaxError: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(Path(frame.filename))] or frames
    place = f"{own[-1].filename}, line {own[-1].lineno}"
    return f"module {name} could not be imported: {place}: {type(error).__name__}: {error}"


def _is_own(file: Path) -> bool:
    """Written by whoever wrote the app: in the working directory, and no package that was installed there."""
    ours = Path(__file__).parent.parent
    return file.is_relative_to(Path.cwd()) and "site-packages" not in file.parts and not file.is_relative_to(ours)


def _app_in(module: ModuleType, attribute: str, target: str) -> Semel:
    found: object = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            apps = [known for known, value in vars(module).items() if isinstance(value, Semel)]
            guess = f"; its app is {' or '.join(map(quoted, apps))}" if apps else did_you_mean(name, dir(found))
            raise ConfigError(f"module {module.__name__} has no {quoted(attribute)}{guess}")
        found = getattr(found, name)
    if not isinstance(found, Semel):
        raise ConfigError(f"{quoted(target)} is no Semel: it is {_a(type(found).__name__)}")
    return found


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1].lower() in "aeiou" else f"a {noun}"
