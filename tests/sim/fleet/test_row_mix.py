"""Test class mixes, which draw rows so that the shares of the classes change over time."""

import math

import numpy as np
import pytest
from scipy import stats

from gatewise_sim.fleet.row_mix import RowMix
from gatewise_sim.fleet.workload import Poisson, draw_arrivals
from tests.support.refused import assert_refused

#: Class of each row: 50 rows of class 0, then 5 of class 1 and 20 of class 2.
LABELS = np.repeat([0, 1, 2], [50, 5, 20])


@pytest.fixture(scope="module")
def linear_arrivals():
    """Arrivals in 1,000 s, in which class 1 replaces class 0 and class 2 keeps its half."""
    mix = RowMix.parse("linear,0s=1/0/1,1000s=0/1/1", LABELS)
    return draw_arrivals(Poisson(2.0), n_devices=50, seconds=1000.0, n_rows=len(LABELS), mix=mix)


def test_shares_of_classes_change_linearly(linear_arrivals):
    times, _, rows = linear_arrivals
    row_labels = LABELS[rows]
    for begin in range(0, 1000, 200):
        in_window = (times >= begin) & (times < begin + 200)
        n_arrivals = in_window.sum()
        elapsed_share = (begin + 100) / 1000  # at the middle of the window
        for class_index, share in enumerate(((1 - elapsed_share) / 2, elapsed_share / 2, 0.5)):
            deviation = (row_labels[in_window] == class_index).sum() - n_arrivals * share
            # four standard deviations of a binomial count
            assert abs(deviation) < 4 * math.sqrt(n_arrivals * share * (1 - share))


def test_rows_of_a_class_are_equally_likely(linear_arrivals):
    _, _, rows = linear_arrivals
    row_counts = [(rows == row).sum() for row in np.flatnonzero(LABELS == 1)]
    # a correct draw fails with one seed in a thousand
    assert stats.chisquare(row_counts).pvalue > 1e-3


def test_shares_of_classes_change_in_steps():
    labels = LABELS % 2
    mix = RowMix.parse("steps,10s=1/0,20s=0/1", labels)
    times, _, rows = draw_arrivals(
        Poisson(1.0), n_devices=10, seconds=40.0, n_rows=len(labels), mix=mix
    )
    assert (labels[rows] == (times >= 20)).all()


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
