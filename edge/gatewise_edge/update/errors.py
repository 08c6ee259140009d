"""Errors of over-the-air updates.

::

    GatewiseError
    └── UpdateError     an announcement or a file that is not taken   (.reason, .again)
"""

from __future__ import annotations

from gatewise.errors import GatewiseError

__all__ = ["UpdateError"]


class UpdateError(GatewiseError):
    """A refused announcement, or a file that cannot be fetched or is another one.

    Attributes
    ----------
    reason : str
        A short code, fit for a counter: ``malformed``, ``forged``, ``other-name``, ``replayed``
        (of announcements); ``host``, ``fetch``, ``size``, ``space``, ``hash`` (of the file);
        ``bundle``, ``self-test``, ``answers`` (of what is in it); ``store``, ``stopped``.
    again : bool
        Whether another try may go better.
    """

    def __init__(self, reason: str, message: str, *, again: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.again = again
