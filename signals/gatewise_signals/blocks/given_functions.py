"""Import functions that commands are given as module:function."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable
from typing import Any

from gatewise.errors import InputError
from gatewise_signals.blocks.block import Function


def load_function(what: str, path: str) -> Any:
    """Import what ``module:function`` names, from the current folder first.

    Raises InputError, `what` being the option, if it is no such name or cannot be imported.
    """
    module, colon, name = path.partition(":")
    if not colon or not name or not all(p.isidentifier() for p in module.split(".")):
        raise InputError(f"{what}: give module:function")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == module.split(".")[0]:
            raise InputError(f"{what}: there is no module {error.name!r} here") from None
        why = f"{type(error).__name__}: {error}"
        raise InputError(f"{what}: importing {module} failed: {why}") from error
    if not hasattr(found, name):
        raise InputError(f"{what}: module {module!r} has no {name!r}")
    return getattr(found, name)


def load_block_functions(options: Iterable[str]) -> dict[str, Function]:
    """Import the functions of blocks that ``--block NAME=module:function`` gives, by name."""
    found = {}
    for given in options:
        name, _, path = given.rpartition("=")
        function = load_function(f"--block {given}", path)
        if not name or not callable(function):
            raise InputError(f"--block {given}: give NAME=module:function")
        found[name] = function
    return found
