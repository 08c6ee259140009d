"""Assertions that bad input raises an error with a message of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gatewise.errors import InputError


def refused(read: Callable[..., object], *arguments: object, says: str, **keywords: object) -> str:
    """Assert that a call raises InputError with a line that contains `says`; return the line."""
    with pytest.raises(InputError) as error:
        read(*arguments, **keywords)
    line = str(error.value)
    assert says in line
    assert "\n" not in line
    return line


def refused_file(read: Callable[[Path], object], path: Path, text: str, says: str) -> None:
    """Assert that reading a file with this text raises an error with its path and `says`."""
    path.write_text(text)
    assert str(path) in refused(read, path, says=says)
