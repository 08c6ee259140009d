import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_sim.fleet.estimate.sketch import LEAST_MS, Sketch

values = st.lists(st.floats(LEAST_MS, 1e6), min_size=1, max_size=200)


@settings(max_examples=60, deadline=None)
@given(values, st.floats(0.0, 1.0))
def test_a_quantile_is_within_a_bin_of_the_exact_one(some, share):
    exact = float(np.quantile(some, share, method="inverted_cdf"))
    assert Sketch.from_values(some).quantile(share) == pytest.approx(exact, rel=0.0024)


@settings(max_examples=40, deadline=None)
@given(values, values)
def test_merging_is_counting_everything(first, second):
    merged = Sketch.merge([Sketch.from_values(first), Sketch.from_values(second)], [2.0, 1.0])
    once = Sketch.from_values([*first, *first, *second])
    assert np.array_equal(merged.bins, once.bins)
    assert np.array_equal(merged.counts, once.counts)
    assert merged.sums == pytest.approx(once.sums)


def test_few_values_are_exact():
    sketch = Sketch.from_values([0.0, 1.2345, 49.0, 49.0, 300.1])
    assert [sketch.quantile(q) for q in (0, 0.4, 0.5, 0.8, 1)] == [0.0, 1.2345, 49.0, 49.0, 300.1]
    assert np.isnan(Sketch.from_values([]).quantile(0.5))


def test_counts_by_wider_bins():
    sketch = Sketch.from_values([1.0, 1.2, 1.3, 9.9, 10.0, 5000.0], [1, 1, 2, 1, 1, 7])
    assert sketch.coarse(10, 0, 11) == [2, 2, 0, 0, 0, 0, 0, 0, 0, 1, 8]
    bin_ = int(Sketch.from_values([1.3]).bins[0])
    assert sketch.up_to(bin_) == 4
