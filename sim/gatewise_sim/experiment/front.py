"""What ``gatewise simulate`` does around a run: folder, calibration, screen, words."""

from __future__ import annotations

import os
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.console import emit, progress
from gatewise_sim.experiment.operating_point import on_disk
from gatewise_sim.experiment.run import run
from gatewise_sim.experiment.simulation import Job, Simulation
from gatewise_sim.experiment.words import show
from gatewise_sim.report.output import SIMULATION
from gatewise_sim.report.progress_display import shown_progress

if TYPE_CHECKING:
    from gatewise_sim.fleet.progress import ProgressListener

__all__ = ["Front"]


@dataclass(frozen=True, kw_only=True)
class Front:
    """How a simulation is shown and kept.

    Attributes
    ----------
    out : Path
        Folder for the report.
    sweeps : tuple of str
    calibrate : bool
        Whether to measure service times first.
    jobs : int or None
        Processes; None: one a core.
    as_json : bool
    """

    out: Path
    sweeps: tuple[str, ...] = ()
    calibrate: bool = False
    jobs: int | None = None
    as_json: bool = False

    def run(self, job: Job) -> int:
        """Run it, write the folder, say what came of it; gives the exit status."""
        if self.sweeps:
            return self._sweep(job)
        SIMULATION.check(self.out)
        with shown_progress() as watch:
            if self.calibrate:
                job = _calibrated(job, watch)
            prepared = job.prepare()
            command = job.command(self.out / "calibration.json")
            report = run(prepared, command, watch=watch, jobs=self.jobs or _cores())
            Simulation(report, prepared.calibration).write(self.out)
        if self.as_json:
            emit(report)
        else:
            show(report)
            print(self.out / "report.html", flush=True)
        return 1 if any(leg["answers"]["lost"] for leg in report["legs"]) else 0

    def _sweep(self, job: Job) -> int:
        from gatewise_sim.experiment.sweep.calibrated import calibrated_once
        from gatewise_sim.experiment.sweep.run import run_sweep

        job.open()  # what is wrong with bundle or rows is said once, not for every point
        if self.calibrate:
            with shown_progress() as watch:
                job = calibrated_once(job, self.out, lambda: _calibrated(job, watch))
        words = [job.command(), *(f"--sweep {shlex.quote(text)}" for text in self.sweeps)]
        words += ["--calibrate"] * self.calibrate
        with progress("sweep") as told:
            result = run_sweep(
                job,
                self.sweeps,
                folder=self.out,
                jobs=self.jobs,
                progress=told,
                command=" ".join(words),
            )
        if self.as_json:
            emit(result.document)
        else:
            result.show()
        return result.status


def _calibrated(job: Job, watch: ProgressListener | None) -> Job:
    from gatewise_sim.calibration.measuring import calibrate

    opened, rows = job.open()
    with on_disk(opened) as path:
        measured = calibrate(path, rows.X, broker=job.scenario.broker, watch=watch)
    return replace(job, calibration=measured)


def _cores() -> int:
    return len(os.sched_getaffinity(0))
