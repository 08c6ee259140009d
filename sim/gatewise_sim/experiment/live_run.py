"""The system on the live engine: its run, the check of every row, its twin in virtual time."""

from __future__ import annotations

import platform
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from gatewise_export.bundle.bundle import Bundle
from gatewise_sim.experiment.operating_point import on_disk
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.answers import Answers
from gatewise_sim.fleet.energy.device import DeviceEnergy
from gatewise_sim.fleet.estimate.result import FleetEstimate
from gatewise_sim.fleet.routes import ROUTES, Routes
from gatewise_sim.fleet.settings import FleetSettings
from gatewise_sim.report.model import RowCheck, TwinFigures

if TYPE_CHECKING:
    from gatewise_sim.fleet.progress import ProgressListener
    from gatewise_sim.live.run import LiveRun

__all__ = ["check_rows", "run_figures", "run_live_policy", "twin_figures"]

_EDGE, _CLOUD = ROUTES.index("edge"), ROUTES.index("cloud")
_TWIN_MEANS: Final = ("accuracy", "offload_rate", "fallback", "cost", "bytes_up", "bytes_down")
_TWIN_MS: Final = ("p50", "p95", "offloaded_p50", "offloaded_p95")


def run_figures(run: LiveRun) -> dict[str, Any]:
    """Figures of a live run itself; the only part of a report that depends on time and place."""
    return {
        "seconds": round(run.seconds, 3),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": f"{platform.system()} {platform.machine()}",
        "processes": run.processes,
        "cpu_seconds": round(run.cpu_seconds, 3),
        "peak_mb": round(run.peak_mb, 1),
        "behind_ms": dict(run.behind_ms),
        "faults": list(run.faults),
        "devices": dict(run.devices),
        "workers": list(run.workers),
    }


def run_live_policy(
    bundle: Bundle,
    rows: Rows,
    routes: Routes,
    settings: FleetSettings,
    *,
    energy: DeviceEnergy | None,
    broker: str | None,
    processes: int | None,
    watch: ProgressListener | None,
) -> tuple[FleetEstimate, LiveRun]:
    """Let real processes answer the system's instances, in real time.

    Raises
    ------
    InputError
        If the bundle is signed for another operating point, or the broker cannot be used.
    RunError
        If a process does not start, or ends too early.
    """
    from gatewise_sim.live.run import run_live

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
    estimate = FleetEstimate.from_run(
        routes,
        settings,
        run.answers,
        run.joules,
        device_energy=energy,
        devices=run.devices,
        workers=run.workers,
    )
    return estimate, run


def check_rows(answers: Answers, routes: Routes) -> RowCheck:
    """Compare each answer's label, route and cost with those of virtual time for its row.

    Fallbacks and errors are left out: which there are is a matter of time. So are answers that a
    pacer decided.
    """
    compared = np.isin(answers.route, (_EDGE, _CLOUD)) & ~answers.paced
    row = answers.row[compared]
    wrong = {
        "labels": answers.label[compared] != routes.label[row],
        "routes": (answers.route[compared] == _CLOUD) != routes.offload[row],
        "costs": answers.cost[compared] != routes.cost[row],
    }
    return RowCheck(
        compared=int(compared.sum()),
        differing={name: int(np.count_nonzero(each)) for name, each in wrong.items()},
    )


def twin_figures(live: FleetEstimate, virtual: FleetEstimate) -> TwinFigures:
    """Figures of a live run beside those of the same run in virtual time.

    ``accuracy, offload_rate, fallback, cost, bytes_up, bytes_down`` per instance, and ``p50_ms,
    p95_ms, offloaded_p50_ms, offloaded_p95_ms``; None where there is no such figure.
    """
    return TwinFigures(live=_figures(live), virtual=_figures(virtual))


def _figures(estimate: FleetEstimate) -> dict[str, float | None]:
    found: dict[str, float | None] = {
        name: estimate.means[name].value if name in estimate.means else None for name in _TWIN_MEANS
    }
    for name in _TWIN_MS:
        latency = estimate.latency_ms.get(name)
        found[f"{name}_ms"] = None if latency is None else latency.value
    return found
