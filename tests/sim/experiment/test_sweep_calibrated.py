from dataclasses import dataclass, replace
from typing import Any

import pytest

from gatewise.errors import InputError
from gatewise_sim.calibration.figures import Calibration
from gatewise_sim.experiment.simulate_command import calibrated_once
from gatewise_sim.experiment.sweep.store import Fingerprints
from tests.support.routes import make_routes


@dataclass(frozen=True)
class Job:
    """A job that may have service times."""

    bundle: str = "b"
    calibration: Any = None


@pytest.fixture
def measure():
    """Measures other times whenever it is called."""
    times = []

    def once() -> Job:
        times.append(0.1 + len(times) / 7)
        assumed = Calibration.assumed(make_routes())
        return Job(calibration=replace(assumed, edge_ms=(times[-1],)))

    once.times = times
    return once


def test_service_times_are_measured_once_and_name_the_same_points(tmp_path, measure, capsys):
    first = calibrated_once(Job(), tmp_path / "out", measure)
    assert capsys.readouterr().err == ""
    second = calibrated_once(Job(), tmp_path / "out", measure)
    assert "service times as measured before" in capsys.readouterr().err
    assert len(measure.times) == 1
    assert first.calibration.edge_ms == pytest.approx((0.1,))
    assert Fingerprints().digest(first) == Fingerprints().digest(second)
    calibrated_once(Job(), tmp_path / "other", measure)
    assert len(measure.times) == 2


def test_a_damaged_file_and_somebody_elses_folder_are_refused(tmp_path, measure):
    calibrated_once(Job(), tmp_path, measure)
    (tmp_path / "sweep-calibration.json").write_text("{")
    with pytest.raises(InputError, match=r"sweep-calibration\.json"):
        calibrated_once(Job(), tmp_path, measure)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(InputError, match="holds other files"):
        calibrated_once(Job(), tmp_path, measure)
    assert len(measure.times) == 1
