"""The time of a run is measured at growing batches, and within its own time."""

import numpy as np
import pytest

from gatewise_sim.calibration.timing import SIZES, measure


class Clock:
    def __init__(self, fixed, each):
        self.now, self.fixed, self.each, self.runs = 0.0, fixed, each, []

    def __call__(self):
        return self.now

    def run(self, X):
        self.runs.append(len(X))
        self.now += self.fixed + self.each * len(X)


def test_measuring_keeps_to_its_time():
    quick, slow = Clock(40e-6, 50e-6), Clock(0.3, 0.0)
    rows = np.zeros((3, 2), np.float32)
    seconds = measure(quick.run, rows, clock=quick)
    assert seconds == pytest.approx({n: 40e-6 + 50e-6 * n for n in SIZES})
    assert sorted(set(quick.runs)) == list(SIZES)
    assert measure(slow.run, rows, clock=slow) == {1: pytest.approx(0.3)}
    assert slow.runs == [1, 1]
