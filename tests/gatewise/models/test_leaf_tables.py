"""Leaf tables, which store the same numbers in the smallest of several forms."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier

from gatewise.models.leaf_tables import LeafTables, leaf_rows, pack_leaves, unsigned_bytes
from gatewise.models.trees import TreeEnsemble
from tests.support.trees import make_trees

RNG = np.random.default_rng(0)
#: Four numbers that are no multiples of one step, so that bytes cannot hold them; one is subnormal.
FEW_NUMBERS = np.float32([0.1, 0.25, 0.3, 1e-39])
#: Values of leaves by the name of their smallest form. A test derives from the words of the name
#: (rows, sparse, bytes, picks) which tables the form has.
ROWS_BY_FORM = {
    "floats": RNG.normal(size=(90, 1)),
    "bytes": RNG.integers(-127, 128, (200, 1)) / 64,
    "picks": RNG.choice(FEW_NUMBERS, (90, 1)),
    "rows": np.repeat(RNG.normal(size=(9, 4)), 30, axis=0),
    "rows of bytes": np.repeat(RNG.integers(1, 128, (9, 4)) / 64, 30, axis=0),
    "rows of picks": np.repeat(RNG.choice(FEW_NUMBERS, (9, 6)), 30, axis=0),
    "sparse rows": np.repeat(np.eye(26)[:20] * RNG.normal(size=(20, 1)), 3, axis=0),
    "sparse rows of picks": RNG.permutation(np.eye(26)[RNG.integers(0, 26, 400)] * 0.1),
    "a single leaf": RNG.normal(size=(1, 3)),
    "no leaf": np.zeros((0, 1)),
}


def decode_numbers(tables: LeafTables, n_leaves: int, n_outputs: int) -> np.ndarray:
    """Decode rows of numbers, shape (n_leaves, n_outputs), by the rules of :class:`LeafTables`."""
    numbers = tables.value
    if tables.small is not None:
        numbers = tables.small * tables.step
    elif tables.picks is not None:
        numbers = tables.value[tables.picks]
    rows = np.zeros((n_leaves, n_outputs), np.float32)
    for leaf in range(n_leaves):
        stored_row = leaf if tables.rows is None else tables.rows[leaf]
        if tables.starts is None:
            rows[leaf] = numbers.reshape(-1, n_outputs)[stored_row]
        else:
            row_slice = slice(tables.starts[stored_row], tables.starts[stored_row + 1])
            rows[leaf, tables.outputs[row_slice]] = numbers[row_slice]
    return rows


@pytest.mark.parametrize("form_name", ROWS_BY_FORM)
def test_the_smallest_form_holds_the_same_numbers(form_name):
    rows = ROWS_BY_FORM[form_name].astype(np.float32) + np.float32(
        0
    )  # -0 becomes 0, as in the tables
    tables = pack_leaves(rows)
    assert decode_numbers(tables, *rows.shape).tobytes() == rows.tobytes()
    assert (tables.rows is not None) == ("rows" in form_name)
    assert (tables.starts is not None) == ("sparse" in form_name)
    assert (tables.small is not None) == ("bytes" in form_name)
    assert (tables.picks is not None) == ("picks" in form_name)
    assert tables.nbytes() <= rows.nbytes


def test_table_sizes_count_indices_with_the_given_widths():
    tables = LeafTables(np.zeros(3, np.float32), rows=np.arange(256), picks=np.arange(4))
    assert tables.index_widths == (1, 1, 1, 1)
    # 3 floats of 4 bytes, 256 row indices and 4 value indices
    assert tables.nbytes() == 3 * 4 + 256 + 4
    assert tables.nbytes((2, 1, 1, 4)) == 3 * 4 + 2 * 256 + 4 * 4
    # around the largest numbers of one byte and of two
    assert [unsigned_bytes(largest) for largest in (255, 256, 65535, 65536)] == [1, 2, 2, 4]


def test_negative_zero_is_stored_as_zero():
    """Both zeros add the same to a sum that begins with 0."""
    rows = np.float32([[0.0], [-0.0], [0.5]] * 9)
    assert not np.signbit(decode_numbers(pack_leaves(rows), *rows.shape)).any()


def test_leaf_rows_of_trees_with_one_output_and_with_all_outputs():
    rng = np.random.default_rng(1)
    n_trees, n_features, n_outputs = 12, 3, 4
    trees = make_trees(
        rng, n_trees, n_features, n_outputs,
        output_form="mixed", threshold_values=np.float32([0, 1]),
    )  # fmt: skip
    # -1: a tree adds to all outputs; 0 and more: it adds to this output
    assert {-1, 0} < set(trees.output.tolist())
    rows, output_of_tree = leaf_rows(trees)
    assert output_of_tree is None  # the rows have all outputs
    leaves = np.flatnonzero(trees.feature < 0)
    # the nodes of a tree follow its root
    tree_of_leaf = np.searchsorted(trees.roots, leaves, side="right") - 1
    output_of_leaf = trees.output[tree_of_leaf]
    for row, leaf_values, output in zip(rows, trees.value[leaves], output_of_leaf, strict=True):
        expected_row = leaf_values
        if output >= 0:
            expected_row = np.zeros(n_outputs, np.float32)
            expected_row[output] = leaf_values[0]
        np.testing.assert_array_equal(row, expected_row)


def test_a_forest_with_pure_leaves_needs_a_byte_per_leaf():
    X, y = load_digits(return_X_y=True)
    forest = RandomForestClassifier(5, random_state=0).fit(X, y)
    rows, output_of_tree = leaf_rows(TreeEnsemble.from_forest(forest))
    assert output_of_tree is None
    assert rows.shape[1] == 10  # an output for each digit
    # a byte per leaf; the table of ten rows is less than a tenth of it
    assert pack_leaves(rows).nbytes() < 1.1 * len(rows)
