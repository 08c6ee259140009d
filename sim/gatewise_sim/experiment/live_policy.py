"""The system for real: its leg, the check of every row, and its twin in virtual time."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.experiment.baselines import NAMES
from gatewise_sim.experiment.operating_point import on_disk
from gatewise_sim.experiment.results import Leg
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.result import FleetEstimate
from gatewise_sim.fleet.routes import ROUTES, Routes
from gatewise_sim.fleet.settings import FleetSettings

if TYPE_CHECKING:
    from gatewise_sim.fleet.progress import ProgressListener
    from gatewise_sim.live.fleet import LiveRun

__all__ = ["Measured", "checked", "live_leg", "twin"]

_EDGE, _CLOUD = ROUTES.index("edge"), ROUTES.index("cloud")
_TWINS: Final = ("accuracy", "offload_rate", "fallback", "cost", "bytes_up", "bytes_down")
_TWIN_MS: Final = ("p50", "p95", "offloaded_p50", "offloaded_p95")


@dataclass(frozen=True, eq=False)
class Measured:
    """A live leg and what else came of the run.

    Attributes
    ----------
    leg : Leg
    run : LiveRun
    """

    leg: Leg
    run: LiveRun

    def as_dict(self) -> dict[str, Any]:
        """What the report says about the run itself; the only part that tells time and place."""
        return {
            "seconds": round(self.run.seconds, 3),
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": f"{platform.system()} {platform.machine()}",
            "processes": self.run.processes,
            "cpu_seconds": round(self.run.cpu_seconds, 3),
            "peak_mb": round(self.run.peak_mb, 1),
            "behind_ms": dict(self.run.behind_ms),
            "faults": list(self.run.faults),
            "devices": dict(self.run.devices),
            "workers": list(self.run.workers),
        }


def live_leg(
    bundle: Bundle,
    rows: Rows,
    routes: Routes,
    settings: FleetSettings,
    *,
    energy: DeviceEnergy | None,
    broker: str | None,
    processes: int | None,
    watch: ProgressListener | None,
) -> Measured:
    """Let real processes answer the system's instances, in real time.

    Raises
    ------
    InputError
        If the bundle is signed for another operating point, or the broker will not do.
    RunError
        If a process does not start, or ends too early.
    """
    from gatewise_sim.live.fleet import run_live

    with on_disk(bundle) as path:
        run = run_live(
            path,
            rows.X,
            settings,
            truth=rows.truth,
            broker=broker,
            processes=processes,
            watch=watch,
        )
    estimate = FleetEstimate.of_run(
        routes,
        settings,
        run.answers,
        run.joules,
        device_energy=energy,
        devices=run.devices,
        workers=run.workers,
    )
    return Measured(
        Leg("system", NAMES["system"], "live", routes, settings, estimate, run.lost), run
    )


def checked(answers: Answers, routes: Routes) -> dict[str, Any]:
    """Hold each answer's label, route and cost against what virtual time has for its row.

    Fallbacks and errors are left out: which there are is a matter of time. So are answers that a
    pacer decided.

    Returns
    -------
    dict
        ``compared``: how many; ``differing``: of these, in ``labels``, ``routes`` and ``costs``.
    """
    compared = np.isin(answers.route, (_EDGE, _CLOUD)) & ~answers.paced
    row = answers.row[compared]
    wrong = {
        "labels": answers.label[compared] != routes.label[row],
        "routes": (answers.route[compared] == _CLOUD) != routes.offload[row],
        "costs": answers.cost[compared] != routes.cost[row],
    }
    return {
        "compared": int(compared.sum()),
        "differing": {name: int(np.count_nonzero(each)) for name, each in wrong.items()},
    }


def twin(live: FleetEstimate, virtual: FleetEstimate) -> dict[str, dict[str, float | None]]:
    """Put the figures of a live run beside those of the same run in virtual time.

    Returns
    -------
    dict
        Under ``live`` and ``virtual``: ``accuracy, offload_rate, fallback, cost, bytes_up,
        bytes_down`` per instance, and ``p50_ms, p95_ms, offloaded_p50_ms, offloaded_p95_ms``.
        None where there is no such figure.
    """
    return {"live": _figures(live), "virtual": _figures(virtual)}


def _figures(estimate: FleetEstimate) -> dict[str, float | None]:
    def value(found: Mapping[str, Any], name: str) -> float | None:
        return found[name].value if name in found else None

    return {name: value(estimate.means, name) for name in _TWINS} | {
        f"{name}_ms": value(estimate.latency_ms, name) for name in _TWIN_MS
    }
