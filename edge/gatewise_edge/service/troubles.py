"""The current troubles of a device's parts, for the log, the watchdog and the metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from gatewise.console import note
from gatewise_edge.errors import LinkError

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt_link import MqttLink

_LOG = logging.getLogger(__name__)


class HasTrouble(Protocol):
    """A part of the service; its `trouble` describes its current problem, or is None."""

    @property
    def trouble(self) -> str | None: ...


class Troubles:
    """The current troubles of the link, the store, the updates, the sensors and the files.

    ``str()`` lists the troubles, each after a semicolon; without troubles it is empty.

    Parameters
    ----------
    link : MqttLink or None
    parts : mapping
        The other parts by their names in the metrics; None for a part that is not in use.
    """

    def __init__(self, link: MqttLink | None, parts: Mapping[str, HasTrouble | None]) -> None:
        self._link = link
        self._parts = {name: part for name, part in parts.items() if part is not None}
        self._connect_error: str | None = None

    def connect_link(self, timeout_s: float) -> None:
        """Connect the link; if that fails, log it, and let the link retry in the background."""
        if self._link is None:
            return
        try:
            self._link.connect(timeout_s)
            note(f"device {self._link.device} at {self._link.url}")
        except LinkError as error:
            self._connect_error = str(error)
            _LOG.error("%s; the device answers without it and retries", error)

    def by_part(self) -> dict[str, str | None]:
        """Map the name of each part to the description of its trouble, or None."""
        troubles: dict[str, str | None] = {}
        if self._link is not None:
            troubles["link"] = self._link_trouble(self._link)
            troubles["device id"] = self._link.trouble
        return troubles | {name: part.trouble for name, part in self._parts.items()}

    def _link_trouble(self, link: MqttLink) -> str | None:
        if link.is_ready:
            return None
        # the error of the first attempt is outdated once the link has been connected
        if self._connect_error is not None and link.connection_number == 0:
            return self._connect_error
        return f"broker {link.url} is not connected"

    def __str__(self) -> str:
        distinct_troubles = dict.fromkeys(self.by_part().values())
        return "".join(f"; {trouble}" for trouble in distinct_troubles if trouble)
