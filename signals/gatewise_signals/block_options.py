"""Functions of blocks from options of the command line."""

from __future__ import annotations

from collections.abc import Iterable

from gatewise.errors import InputError
from gatewise.imports import import_object
from gatewise_signals.blocks.block import Function


def load_block_functions(options: Iterable[str]) -> dict[str, Function]:
    """Import the functions of the options ``--block NAME=module:function``, by name."""
    functions = {}
    for option in options:
        name, _, path = option.rpartition("=")
        function = import_object(f"--block {option}", path)
        if not name or not callable(function):
            raise InputError(f"--block {option}: give NAME=module:function")
        functions[name] = function
    return functions
