"""Errors that all packages share.

::

    GatewiseError
    ├── InputError (also a ValueError)   bad input
    │   └── TooLargeError                no candidate fits the device's memory
    └── BundleError                      a bundle that cannot be used
        └── ManifestError                a field of its manifest is wrong (.field)
    UserWarning
    ├── RecallWarning                    a rare class is answered worse than accuracy shows
    └── GroupsWarning                    neighbouring rows are nearly the same, and have no groups

Packages add their own branches. The command line prints the message of such an error as a line and
exits with status 2, so that a message names the problem and its remedy.
"""

from __future__ import annotations


class GatewiseError(Exception):
    """Base of all errors that Gatewise raises on purpose."""


class InputError(GatewiseError, ValueError):
    """Invalid file, table, price or setting; also a ValueError, as in scikit-learn."""


class TooLargeError(InputError):
    """No candidate within `max_bytes`; the smallest has `smallest` bytes."""

    def __init__(self, what: str, max_bytes: int, smallest: int, hint: str) -> None:
        super().__init__(
            f"{what} fits max_bytes={max_bytes}: the smallest takes {smallest} bytes; {hint}"
        )
        self.max_bytes = max_bytes
        self.smallest = smallest
        self._parts = (what, max_bytes, smallest, hint)

    def __reduce__(self) -> tuple[type[TooLargeError], tuple[str, int, int, str]]:
        """Pickle the arguments, because parallel fits raise the error in other processes."""
        return type(self), self._parts


class BundleError(GatewiseError):
    """Bundle that is missing, malformed, altered, or too new for this program."""


class ManifestError(BundleError):
    """Manifest with a missing or invalid `field`, such as ``stages[0].inputs[2]``, and `why`."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"manifest.json: {field}: {why}")
        self.field = field


class RecallWarning(UserWarning):
    """Operating point at which the recall of a rare class falls although accuracy does not."""


class GroupsWarning(UserWarning):
    """Similar neighbouring training rows, without groups or times."""


def interruption(error: BaseException | None) -> BaseException | None:
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
    """Make an error that names the extra with the missing library; keep errors of our modules."""
    if error.name is None or error.name.startswith("gatewise"):
        return error
    return InputError(
        f"this needs {error.name}, which is not installed: pip install 'gatewise[{extra}]'"
    )
