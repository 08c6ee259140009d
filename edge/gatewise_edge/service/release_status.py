"""The retained status of a device: the release that it runs, and how that release does."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt import MqttLink
    from gatewise_edge.service.edge_metrics import MeasuredDevice
    from gatewise_edge.update.store import Store

#: Longest time between two reports, in seconds.
_LONGEST: Final = 3600.0
#: Counts of a device that sum to its instances.
_ANSWERS: Final = ("edge", "cloud", "fallback", "errors")


class ReleaseStatus:
    """Publishes the release that runs, the last one that failed, and the running one's counts.

    The first report comes after `first` seconds, the next ones after twice as many each, up to an
    hour; `due` is when, on `clock`. Without a link nothing is published. docs/wire.md defines
    the words.
    """

    def __init__(
        self, link: MqttLink | None, store: Store, first: float, clock: Callable[[], float]
    ) -> None:
        self._link = link
        self._store = store
        self._first = first
        self._clock = clock
        self._pause = self.due = math.inf
        self._device: MeasuredDevice | None = None
        self._before: dict[str, int] = {}  # the device's counts when the release was adopted

    def begin(self, device: MeasuredDevice) -> None:
        """Report on the release that the device runs now."""
        if self._link is None:
            return
        self._device = device
        self._before = device.counters
        self._pause = self._first
        self.due = self._clock() + self._pause
        self.publish()

    def publish_when_due(self) -> None:
        """Report again if it is time to."""
        now = self._clock()
        if now >= self.due:
            self._pause = min(2.0 * self._pause, _LONGEST)
            self.due = now + self._pause
            self.publish()

    def publish(self) -> None:
        """Set the link's status."""
        if self._device is None or self._link is None:
            return
        manifest = self._device.bundle.manifest
        refused = self._store.state.refused
        words = [manifest.release]
        if refused:
            words += ["refused", refused[-1][:12]]
        now = self._device.counters
        gauges = self._device.gauges
        count = {name: now[name] - self._before[name] for name in _ANSWERS}
        if any(count.values()):
            words.append(f"seen={sum(count.values())},{count['errors']},{count['fallback']}")
        if gauges.get("audit_instances"):
            audited = gauges["audit_instances"], gauges["audit_weighted"]
            words.append("audited={:.0f},{:.1f}".format(*audited))
        self._link.set_status(" ".join(words))
