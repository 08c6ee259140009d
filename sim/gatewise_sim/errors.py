"""Errors of the simulator."""

from __future__ import annotations

from gatewise.errors import GatewiseError


class RunError(GatewiseError):
    """A process of a run did not start or ended too early; `process` is its name."""

    def __init__(self, process: str, message: str) -> None:
        super().__init__(f"{process}: {message}")
        self.process = process
