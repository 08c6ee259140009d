"""The retained status of a device, with the release that it runs and the release's counts.

The updater publishes it, and operators watch it to see how a rollout proceeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gatewise_edge.link.mqtt_link import MqttLink
    from gatewise_edge.service.edge_metrics import MeasuredDevice
    from gatewise_edge.update.store import Store

#: Time between the first two reports of a release, in seconds.
_FIRST_PAUSE_SECONDS: Final = 10.0
#: Longest time between two reports, in seconds. An operator sees within an hour how each device
#: performs, but a large fleet sends few messages.
_MAX_PAUSE_SECONDS: Final = 3600.0
#: Counts of a device that sum to its number of instances.
_INSTANCE_COUNTS: Final = ("edge", "cloud", "fallback", "errors")
#: Sums over the audits of a device.
_AUDIT_SUMS: Final = ("audit_instances", "audit_weighted")


class ReleaseStatus:
    """Publish the running release with its counts, and the last release that failed.

    :meth:`begin` publishes the first report. The second report follows after ten seconds, and each
    further pause is twice as long as the last, up to an hour. `due_at` is the time of the next
    report on `clock`. Without a link nothing is published.

    The words of a report are separated by spaces (docs/wire.md): the release, then ``refused
    DIGEST`` after a failed release, ``seen=INSTANCES,ERRORS,FALLBACKS`` after the first instance,
    ``audited=INSTANCES,DISAGREEMENTS`` after the first audit, and ``trial`` during a trial.
    """

    def __init__(self, link: MqttLink | None, store: Store, clock: Callable[[], float]) -> None:
        self._link = link
        self._store = store
        self._clock = clock
        self._pause_s = math.inf
        self.due_at = math.inf
        self._device: MeasuredDevice | None = None
        self._counts_at_adoption: dict[str, int] = {}
        self._gauges_at_adoption: dict[str, float] = {}

    def begin(self, device: MeasuredDevice) -> None:
        """Publish a status now and restart the reports for the release that the device runs."""
        if self._link is None:
            return
        self._device = device
        self._counts_at_adoption = device.counters  # a copy, which does not change
        self._gauges_at_adoption = device.gauges
        self._pause_s = _FIRST_PAUSE_SECONDS
        self.due_at = self._clock() + self._pause_s
        self.publish()

    def publish_when_due(self) -> None:
        """Publish the status if the next report is due."""
        now = self._clock()
        if now >= self.due_at:
            self._pause_s = min(2.0 * self._pause_s, _MAX_PAUSE_SECONDS)
            self.due_at = now + self._pause_s
            self.publish()

    def publish(self) -> None:
        """Publish the status now."""
        if self._device is None or self._link is None:
            return
        manifest = self._device.bundle.manifest
        refused_digests = self._store.state.refused
        status_words = [manifest.release]
        if refused_digests:
            # The store appends digests, so the last one is the newest. Its first digits suffice to
            # distinguish the releases of a model.
            status_words += ["refused", refused_digests[-1][:12]]
        counters = self._device.counters
        gauges = self._device.gauges
        counts = {
            name: counters[name] - self._counts_at_adoption[name] for name in _INSTANCE_COUNTS
        }
        if any(counts.values()):
            status_words.append(
                f"seen={sum(counts.values())},{counts['errors']},{counts['fallback']}"
            )
        n_instances, weighted_disagreements = (
            gauges.get(name, 0.0) - self._gauges_at_adoption.get(name, 0.0) for name in _AUDIT_SUMS
        )
        if n_instances:
            status_words.append(f"audited={n_instances:.0f},{weighted_disagreements:.1f}")
        if self._store.state.is_on_trial:
            status_words.append("trial")
        self._link.set_status(" ".join(status_words))
