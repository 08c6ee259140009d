"""Errors of over-the-air updates.

::

    GatewiseError
    └── UpdateError     news or a file that is not taken   (.reason)
"""

from __future__ import annotations

from gatewise.errors import GatewiseError


class UpdateError(GatewiseError):
    """A repository, release or file that is not taken.

    `reason`: a short code, fit for a counter: ``fetch`` (it cannot be fetched), ``metadata`` (it is
    not signed as it must be, has expired, or is older than what was seen), ``bundle`` or
    ``self-test`` (what is in it), ``store`` (the disk).
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
