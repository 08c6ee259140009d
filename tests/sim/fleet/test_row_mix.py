"""Tests of the rows that a class mix draws."""

import math

import numpy as np
import pytest
from scipy import stats

from gatewise_sim.fleet.row_mix import RowMix
from gatewise_sim.fleet.workload import Poisson, draw_arrivals
from tests.support.refused import assert_refused


def test_classes_drift_linearly_or_in_steps():
    labels = np.repeat([0, 1, 2], [50, 5, 20])
    mix = RowMix.parse("linear,0s=1/0/1,1000s=0/1/1", labels)
    times, _, rows = draw_arrivals(Poisson(2.0), 50, 1000.0, n_rows=75, mix=mix)
    row_labels = labels[rows]
    for begin in range(0, 1000, 200):
        in_window = (times >= begin) & (times < begin + 200)
        n_arrivals = in_window.sum()
        elapsed_share = (begin + 100) / 1000  # at the middle of the window
        for class_index, share in enumerate(((1 - elapsed_share) / 2, elapsed_share / 2, 0.5)):
            deviation = (row_labels[in_window] == class_index).sum() - n_arrivals * share
            # four standard deviations of a binomial number
            assert abs(deviation) < 4 * math.sqrt(n_arrivals * share * (1 - share))
    # the rows of a class are equally likely; a correct draw fails one seed in a thousand
    row_counts = np.bincount(rows[row_labels == 1] - 50, minlength=5)
    assert stats.chisquare(row_counts).pvalue > 1e-3
    step_mix = RowMix.parse("steps,10s=1/0,20s=0/1", labels % 2)
    times, _, rows = draw_arrivals(Poisson(1.0), 10, 40.0, n_rows=75, mix=step_mix)
    assert (labels[rows] % 2 == (times >= 20)).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("often", "write it as steps,0s=9/1"),
        ("steps", "write it as steps,0s=9/1"),
        ("steps,5=1/1", "'5' is not a span"),
        ("steps,0s=1/x", "'x' is not a number"),
        ("steps,0s=1/1,1s=1", "each time needs a share for every class"),
        ("steps,1s=1/1,0s=1/1", "its times must increase"),
        ("steps,0s=0/0", "one above 0 at each time"),
        ("steps,0s=1", "the table has 2 classes, not 1"),
        ("steps,0s=1/1/1", "class 2 has a share but no row"),
    ],
)
def test_invalid_class_mix_is_refused(text, message):
    assert_refused(RowMix.parse, text, [0, 1], message=message)


def test_class_mix_refuses_rows_without_a_class():
    assert_refused(RowMix.parse, "steps,0s=1/1", [0, 1, -1], message="a row of the table has no")
