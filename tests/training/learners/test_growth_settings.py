"""Test the choice of the first rounds of boosted trees."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.growth_settings import first_rounds


def make_trees(outputs: list[int]) -> TreeEnsemble:
    """Make trees of a single leaf, of the value of their number."""
    n_trees = len(outputs)
    no_node = np.full(n_trees, -1, np.int32)
    return TreeEnsemble(
        feature=no_node,
        threshold=np.zeros(n_trees, np.float32),
        left=no_node,
        right=no_node,
        nan_left=np.zeros(n_trees, np.bool_),
        value=np.arange(n_trees, dtype=np.float32)[:, np.newaxis],
        roots=np.arange(n_trees, dtype=np.int32),
        output=np.array(outputs, np.int32),
        base=np.zeros(3, np.float32),
        n_features=1,
    )


@pytest.mark.parametrize(
    ("outputs", "round_share", "n_trees"),
    [
        ([0, 1, 2] * 10, 0.5, 15),
        ([0, 1, 2] * 10, 0.01, 3),  # one round at least
        ([0, 1, 2] * 10, 1.0, 30),
        # the rounds 012, 02, 12 and 1 lack trees that could not be split
        ([0, 1, 2, 0, 2, 1, 2, 1], 0.5, 3),
        ([0, 1, 2, 0, 2, 1, 2, 1], 0.6, 5),
        ([0, 1, 2, 0, 2, 1, 2, 1], 0.9, 7),
        ([0] * 8, 0.25, 2),
        ([], 0.5, 0),
    ],
)
def test_first_rounds_end_with_a_round_near_the_share_of_trees(outputs, round_share, n_trees):
    trees = first_rounds(make_trees(outputs), round_share)
    assert trees.output.tolist() == outputs[:n_trees]
    assert trees.value[:, 0].tolist() == list(range(n_trees))
