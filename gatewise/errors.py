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

Packages add their own branches. The command line turns any of them into one line and exit
status 2, so a message names the problem and its remedy.
"""

from __future__ import annotations


class GatewiseError(Exception):
    """Base of all errors that Gatewise raises on purpose."""


class InputError(GatewiseError, ValueError):
    """Bad input: a file, a table, a price or a setting that cannot be used.

    Also a :class:`ValueError`, so that code with scikit-learn's habits catches it.
    """


class TooLargeError(InputError):
    """Even the `smallest` candidate takes more bytes than the `max_bytes` of a device."""

    def __init__(self, what: str, max_bytes: int, smallest: int, hint: str) -> None:
        super().__init__(
            f"{what} fits max_bytes={max_bytes}: the smallest takes {smallest} bytes; {hint}"
        )
        self.max_bytes = max_bytes
        self.smallest = smallest
        self._parts = (what, max_bytes, smallest, hint)

    def __reduce__(self) -> tuple[type[TooLargeError], tuple[str, int, int, str]]:
        """Pickle the parts, not the message: parallel fits raise it in other processes."""
        return type(self), self._parts


class BundleError(GatewiseError):
    """A bundle that is missing, malformed, altered, or too new for this program."""


class ManifestError(BundleError):
    """A manifest with a `field`, as ``stages[0].inputs[2]``, that is missing or wrong: `why`."""

    def __init__(self, field: str, why: str) -> None:
        super().__init__(f"manifest.json: {field}: {why}")
        self.field = field


class RecallWarning(UserWarning):
    """Recall of a rare class falls at the chosen operating point, though accuracy hardly does."""


class GroupsWarning(UserWarning):
    """Neighbouring training rows are nearly the same, and neither groups nor times are given."""


def interruption(error: BaseException | None) -> BaseException | None:
    """Get the Ctrl-C or signal that was being handled when an error came up, if any.

    Compiled code turns one that arrives while it runs into a SystemError.
    """
    while error is not None and not isinstance(error, KeyboardInterrupt | SystemExit):
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return error


def one_line(error: BaseException) -> str:
    """Shorten another library's message to one line, for a message of ours."""
    return " ".join(str(error).split())[:300]


def not_installed(error: ModuleNotFoundError, extra: str) -> Exception:
    """Make an error that names the extra with a library; a missing module of ours is a bug."""
    if error.name is None or error.name.startswith("gatewise"):
        return error
    return InputError(
        f"this needs {error.name}, which is not installed: pip install 'gatewise[{extra}]'"
    )
