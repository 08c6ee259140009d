"""The gate: the last stage on the device, its threshold and its drift alarm.

Its threshold is the manifest's or, where a pacer keeps a budget, the pacer's. The drift alarm
follows what the manifest's threshold alone would have done, so a pacer cannot hide a drift from it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Self

from gatewise.decision import as_float32
from gatewise_edge.device.drift import Drift
from gatewise_edge.device.pacer import Pace, Pacer
from gatewise_edge.device.plan import StagePlan
from gatewise_edge.device.stage_output import RowOutput
from gatewise_export.bundle.manifest import Manifest

_LOG = logging.getLogger(__name__)

#: Bytes of a response's fields beside the probabilities.
_RESPONSE_BYTES: Final = 70


class Gate:
    """A bundle's gate, with a threshold as packed (None never stops). Thread-safe."""

    def __init__(self, threshold: float | None, drift: Drift, pace: Pace | None = None) -> None:
        self._packed = threshold
        self._drift = drift
        self._drifting = threading.Lock()
        self.pace = pace

    @classmethod
    def from_manifest(
        cls,
        manifest: Manifest,
        plan: StagePlan,
        *,
        pacer: Pacer | None,
        on_drift: Callable[[str, float], None],
    ) -> Self:
        """Make the active operating point's gate; InputError if the pacer's budget is unfit."""
        point, last = manifest.active_point, plan.n_here - 1
        threshold = as_float32(point.thresholds[last])
        pace = None
        if pacer is not None:
            costs = manifest.exit_costs()
            pace = pacer.attach(
                f"{manifest.release}/{manifest.active}",
                threshold=threshold,
                local=float(costs[last]),
                offload=float(costs[-1]),
                bytes=plan.request_bytes + _RESPONSE_BYTES + 4 * len(plan.classes),
                limits=manifest.gate_limits(last),
            )
            _LOG.warning(
                "a pacer moves the gate's threshold to keep %s=%g: %s",
                pacer.budget.name,
                pacer.budget.amount,
                "the operating point's accuracy is not the validated one"
                if point.guarantee is None
                else "the operating point's guarantee no longer holds",
            )
        # With stages beyond the device the manifest has the rate that reaches the high-cost
        # model, not the rate that leaves the device.
        expected = point.offload_rate if plan.n_here == plan.n_stages else None
        drift = Drift(
            0.5 if expected is None else expected,
            tolerance=1.0 if expected is None else None,
            on_alarm=on_drift,
        )
        return cls(threshold, drift, pace)

    def decide(self, finished: RowOutput) -> tuple[bool, bool, bool]:
        """Whether an instance stops here, whether it would as packed, whether the pacer decided."""
        paced = self.pace is not None and self.pace.moved
        as_packed = finished.stops(self._packed)
        return finished.stops(self.threshold) if paced else as_packed, as_packed, paced

    @property
    def threshold(self) -> float | None:
        """The pacer's threshold if it has moved, else as packed."""
        return self._packed if self.pace is None else as_float32(self.pace.threshold())

    def watch_drift(self, offloads: bool) -> None:
        """Pass on to the drift alarm whether an instance is offloaded as packed."""
        with self._drifting:
            self._drift.observe(offloads)

    @property
    def gauges(self) -> dict[str, float]:
        """``drift`` (-1, 0 or 1) and, with a pacer, ``pacer_level`` and ``pacer_debt``."""
        with self._drifting:
            found = {"drift": {"below": -1.0, "": 0.0, "above": 1.0}[self._drift.state]}
        return found if self.pace is None else found | self.pace.gauges
