"""Bad input is refused in one line that names what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gatewise.errors import InputError


def refused(read: Callable[..., object], *given: object, says: str, **named: object) -> str:
    """Assert that reading raises InputError, in one line with these words; returns the line."""
    with pytest.raises(InputError) as error:
        read(*given, **named)
    line = str(error.value)
    assert says in line
    assert "\n" not in line
    return line


def refused_file(read: Callable[[Path], object], path: Path, text: str, says: str) -> None:
    """Assert that a file with this text is refused by its name, in one line with these words."""
    path.write_text(text)
    assert str(path) in refused(read, path, says=says)
