"""Errors of the simulator's room.

::

    GatewiseError
    └── RunError    a process of a run that failed    (.process)
"""

from __future__ import annotations

from gatewise.errors import GatewiseError

__all__ = ["RunError"]


class RunError(GatewiseError):
    """A process that a run needs did not start, or ended when it should not have.

    Attributes
    ----------
    process : str
        Which one, for people.
    """

    def __init__(self, process: str, message: str) -> None:
        super().__init__(f"{process}: {message}")
        self.process = process
