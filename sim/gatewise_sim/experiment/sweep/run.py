"""Run a sweep: every point once, several at a time, each saved as soon as it is finished."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import Field, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from gatewise.console import Progress, note
from gatewise.errors import InputError
from gatewise_sim.experiment.scenario import Scenario
from gatewise_sim.experiment.sweep.pool import ReportDocument, run_jobs
from gatewise_sim.experiment.sweep.settings import SweptSetting, combinations, merged
from gatewise_sim.experiment.sweep.store import Fingerprints, SweepFolder
from gatewise_sim.report.sweep.setting_text import Value, setting
from gatewise_sim.report.sweep.summary import PointResult, csv_text, summarise


class SweepJob(Protocol):
    """A dataclass with a scenario that can be run: a simulation by names alone."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def scenario(self) -> Scenario:
        """Settings that a sweep changes."""

    def run(self) -> dict[str, Any]:
        """Run it and return the report as in ``report.json``."""


@dataclass(frozen=True, eq=False)
class SweepResult:
    """A sweep that has been run."""

    folder: Path
    sweeps: tuple[SweptSetting, ...]
    points: tuple[PointResult, ...]  # in the order of combinations()
    document: dict[str, Any]  # as written to sweep.json

    @property
    def failed(self) -> int:
        """How many points failed."""
        return sum(point.report is None for point in self.points)


def run_sweep(
    job: SweepJob,
    sweeps: Iterable[SweptSetting | str],
    *,
    folder: str | Path,
    jobs: int | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> SweepResult:
    """Simulate every combination of some settings, and compare what comes of them.

    Writes ``points/<digest>.json`` for each point as soon as it is finished, and at the end
    ``sweep.json``, ``sweep.csv`` and ``sweep.html``. Points that are there already are not run
    again, so a sweep that was broken off goes on where it stopped. The files are the same, byte for
    byte, however many processes there were and however often it was broken off.

    `job` (a :class:`gatewise_sim.experiment.simulation.Job`) is what is simulated where no sweep
    says otherwise. `sweeps` are written as ``devices=10,100,1000`` (:meth:`SweptSetting.parse`);
    `jobs` are processes at most, one a core by default (points of the live engine run one by one);
    `progress` is called with the number of points done, that of all, and what is done. A point that
    fails has an error in the result; InputError if a sweep or a combination cannot be, or `folder`
    is not a sweep's. `command`, the line that repeats it, stands in the report.

    Processes are started afresh (spawned): a script that calls this needs the usual ``if __name__
    == "__main__":`` around it.
    """
    from gatewise_sim.report.output import json_text, write_text
    from gatewise_sim.report.sweep.views import sweep_page

    if jobs is not None and jobs < 1:
        raise InputError(f"jobs is {jobs}; it must be at least 1")
    processes = jobs or len(os.sched_getaffinity(0))
    if job.scenario.engine == "live":  # whoever measures time wants the machine alone
        processes = 1
    chosen = merged(sweeps)
    settings = combinations(chosen)
    tasks = [_at(job, values) for values in settings]
    store = SweepFolder(Path(folder))
    prints = Fingerprints()
    points = [
        PointResult(values, digest, found, kept=found is not None)
        for values, task in zip(settings, tasks, strict=True)
        for digest in [prints.digest(task)]
        for found in [store.find(digest)]
    ]
    first = {point.digest: at for at, point in reversed([*enumerate(points)])}
    todo = sorted(at for at in first.values() if points[at].report is None)
    finished = len(points) - len(todo)
    if progress is not None and finished:
        progress(finished, len(points), f"{finished} points were finished before")

    def done(number: int, report: ReportDocument, error: str) -> None:
        nonlocal finished
        at = todo[number]
        if report is not None:
            store.keep(points[at].digest, prints.contents(tasks[at]), report)
        else:
            note(f"{setting(settings[at])}: {error}")
        points[at] = replace(points[at], report=report, error=error)
        finished += 1
        if progress is not None:
            progress(finished, len(points), setting(settings[at]))

    try:
        run_jobs([tasks[at].run for at in todo], processes, done)
    except BaseException:
        note(
            f"stopped: {finished} of {len(points)} points are kept in {store.points}; "
            "the same command goes on from there"
        )
        raise
    same = {point.digest: point for point in points if point.report or point.error}
    points = [replace(p, report=same[p.digest].report, error=same[p.digest].error) for p in points]
    document = summarise({s.name: s.values for s in chosen}, points, prints.contents(job), command)
    write_text(store.folder / "sweep.csv", csv_text(document))
    write_text(store.folder / "sweep.html", sweep_page(document))
    write_text(store.folder / "sweep.json", json_text(document))
    return SweepResult(store.folder, chosen, tuple(points), document)


def _at(job: SweepJob, values: dict[str, Value]) -> SweepJob:
    """Give the job of one point; the whole scenario is checked."""
    try:
        return replace(job, scenario=job.scenario.changed(**values))
    except InputError as error:
        raise InputError(f"sweep at {setting(values)}: {error}") from None
