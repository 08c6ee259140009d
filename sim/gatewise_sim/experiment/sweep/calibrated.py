"""Service times of a sweep: measured once, and the same when a broken-off sweep goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gatewise.console import note
from gatewise_sim.experiment.sweep.store import CALIBRATION, Store

if TYPE_CHECKING:
    from gatewise_sim.experiment.simulation import Job

__all__ = ["calibrated_once"]


def calibrated_once(job: Job, folder: Path, measure: Callable[[], Job]) -> Job:
    """Give a job the service times that were measured for this folder, or measure them now.

    Another measurement would make every point another one, and none that is finished would be
    taken: so the times are kept in ``sweep-calibration.json`` beside the points.

    Parameters
    ----------
    job : Job
    folder : Path
        Of the sweep.
    measure : callable
        Gives the job with its calibration measured.

    Raises
    ------
    InputError
        If the folder is somebody else's, or the file in it is damaged.
    """
    from gatewise_sim.calibration.figures import Calibration

    path = Store(folder).folder / CALIBRATION
    if path.exists():
        note(f"service times as measured before: {path}; remove it to measure again")
        return replace(job, calibration=Calibration.from_file(path))
    measured = measure()
    assert measured.calibration is not None
    measured.calibration.write(path)
    # Read back: figures are rounded in the file, and it is these that points are named by.
    return replace(measured, calibration=Calibration.from_file(path))
