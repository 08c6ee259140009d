import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise_sim.fleet.workload.row_mix import RowMix
from tests.support.refused import refused


def test_a_draw_that_rounds_up_to_one_still_finds_a_row():
    mix = RowMix([0, 1, 1], [0.0], [[1, 2, 0]])
    assert mix.rows(np.array([0.0]), np.array([1.0]), np.array([0.0])).tolist() == [1]


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=2, max_size=20),
    st.data(),
)
def test_only_classes_with_a_share_are_drawn(labels, draws, data):
    there = sorted(set(labels))
    weights = np.zeros((2, 4))
    for knot, index in itertools.product((0, 1), there):
        weights[knot, index] = data.draw(st.sampled_from([0.0, 0.1, 1.0, 7.0]))
    weights[:, there[0]] += 0.5
    mix = RowMix(labels, [0.0, 10.0], weights, linear=True)
    u = np.array(draws)
    row = mix.rows(np.linspace(0, 12, len(u)), u, u[::-1])
    shares = mix.shares(np.linspace(0, 12, len(u)))
    assert (shares[np.arange(len(u)), np.array(labels)[row]] > 0).all()
    np.testing.assert_allclose(shares.sum(axis=1), 1)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("0s=1/1", "write it as steps,0s=9/1"),
        ("linear", "write it as"),
        ("linear,0s", "'' is not a number"),
        ("linear,0=1/1", "'0' is not a span of time"),
        ("linear,0s=1/x", "'x' is not a number"),
        ("linear,0s=1/1,5s=1", "a share for every class"),
        ("linear,5s=1/1,0s=1/1", "its times must rise"),
        ("linear,0s=1/-1", "at least 0"),
        ("linear,0s=0/0", "one above it at each time"),
        ("linear,0s=1/1/1", "class 2 has a share but no row"),
        ("linear,0s=1", "there are 2 classes, not 1"),
    ],
)
def test_a_bad_mix(text, complaint):
    refused(RowMix.parse, text, [0, 1, 1], says=complaint)
