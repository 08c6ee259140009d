"""Errors that all packages share.

::

    GatewiseError
    ├── InputError (also a ValueError)   bad input
    │   └── TooLargeError                no candidate fits the device's memory
    └── BundleError                      a bundle that cannot be used
        └── ManifestError                a field of its manifest is wrong (.field)
    UserWarning
    ├── RecallWarning                    the recall of a rare class falls while accuracy does not
    └── GroupsWarning                    neighbouring rows are nearly equal and have no groups

Packages add their own branches. The command line prints the message of a GatewiseError as one line
and exits with status 2. A message therefore names the problem and its remedy.
"""

from __future__ import annotations

import sys
import warnings
from types import FrameType


def warn_caller(remark: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that names the line outside Gatewise from which it was called."""
    level = 2
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).startswith("gatewise"):
        level += 1
        frame = frame.f_back
    warnings.warn(remark, category, stacklevel=level)


class GatewiseError(Exception):
    """Base class of the errors that Gatewise raises."""


class InputError(GatewiseError, ValueError):
    """Invalid file, table, price or setting; also a ValueError, as in scikit-learn."""


class TooLargeError(InputError):
    """No candidate fits `max_bytes`; the smallest takes `smallest_bytes` bytes."""

    def __init__(self, subject: str, max_bytes: int, smallest_bytes: int, hint: str) -> None:
        super().__init__(
            f"{subject} fits max_bytes={max_bytes}: the smallest takes {smallest_bytes} bytes; "
            f"{hint}"
        )
        self.max_bytes = max_bytes
        self.smallest_bytes = smallest_bytes
        self._arguments = (subject, max_bytes, smallest_bytes, hint)

    def __reduce__(self) -> tuple[type[TooLargeError], tuple[str, int, int, str]]:
        """Pickle the arguments, because parallel fits raise the error in other processes."""
        return type(self), self._arguments


class BundleError(GatewiseError):
    """Bundle that is missing, malformed, altered, or too new for this program."""


class ManifestError(BundleError):
    """Manifest with a `problem` in a `field`, such as ``stages[0].inputs[2]``."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"manifest.json: {field}: {problem}")
        self.field = field


class RecallWarning(UserWarning):
    """Operating point at which the recall of a rare class falls although accuracy does not fall."""


class GroupsWarning(UserWarning):
    """Neighbouring training rows that are nearly equal, without groups or times."""


def find_interruption(error: BaseException | None) -> BaseException | None:
    """Find a KeyboardInterrupt or SystemExit among the causes of an error.

    An interrupt during compiled code appears as the cause of a SystemError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def one_line(error: BaseException) -> str:
    """Shorten the message of another library's error to one line."""
    return " ".join(str(error).split())[:300]


def not_installed(error: ModuleNotFoundError, extra: str) -> Exception:
    """Make an error that names the pip extra with the missing library.

    The error itself is returned if a module of Gatewise is missing.
    """
    if error.name is None or error.name.startswith("gatewise"):
        return error
    return InputError(
        f"this needs {error.name}, which is not installed: pip install 'gatewise[{extra}]'"
    )
