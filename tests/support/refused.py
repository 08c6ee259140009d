"""Assertions that bad input raises an error with a message of one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gatewise.errors import InputError


def assert_refused(
    function: Callable[..., object], *arguments: object, message: str, **options: object
) -> str:
    """Assert that a call raises InputError with a line that contains `message`; return the line."""
    with pytest.raises(InputError) as error_info:
        function(*arguments, **options)
    error_text = str(error_info.value)
    assert message in error_text
    assert "\n" not in error_text
    return error_text


def assert_file_refused(
    read: Callable[[Path], object], path: Path, text: str, message: str
) -> None:
    """Assert that reading a file with this text raises an error with its path and `message`."""
    path.write_text(text)
    assert str(path) in assert_refused(read, path, message=message)
