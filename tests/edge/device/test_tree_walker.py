"""A walk through trees that acquires features has the bits and visits of training."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise_edge.device import tree_walker
from gatewise_edge.device.tree_walker import TreeWalker
from gatewise_export.bundle.flat_models import read_model
from tests.support.lazy_bundle import (
    write_trees,
)
from tests.support.trees import draw_trees


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), is_mixed=st.booleans(), uses_lists=st.booleans())
def test_walker_has_the_outputs_and_acquired_features_of_training(seed, is_mixed, uses_lists):
    trees, rows = draw_trees(seed, has_mixed_outputs=is_mixed)
    sizes = {"n_inputs": trees.n_features, "n_outputs": trees.n_outputs}
    flat_model = read_model(write_trees(trees), "lazy", "s.npz", **sizes)
    with pytest.MonkeyPatch.context() as patch:
        if not uses_lists:
            patch.setattr(tree_walker, "_MAX_LIST_NODES", 0)
        walk = TreeWalker(flat_model).walk
    margins, is_visited_by_row = trees.margins(rows), trees.visited_features(rows)
    for row, expected_margins, is_visited in zip(rows, margins, is_visited_by_row, strict=True):
        acquired_columns: list[int] = []

        def acquire(column, row=row, acquired_columns=acquired_columns):
            acquired_columns.append(column)
            return float(row[column])

        row_margins = walk(acquire)
        assert row_margins.shape == (1, trees.n_outputs)
        assert row_margins.dtype == np.float32
        assert row_margins[0].view(np.uint32).tolist() == expected_margins.view(np.uint32).tolist()
        assert len(acquired_columns) == len(set(acquired_columns))
        assert sorted(acquired_columns) == np.flatnonzero(is_visited).tolist()
