"""Test that tables of thousands of columns are read and searched in linear time."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatewise.costs import FeatureCosts
from gatewise_training.cascades.feature_sets.backward_selection import _drop_least_useful
from gatewise_training.cascades.feature_sets.wide_tables import with_fewer_columns
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.data.datasets import read_table
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.screening import MAX_COLUMNS, most_different_columns


def draw_table(n_columns: int, n_rows: int = 120) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of noise; their class depends on columns 7 and 8."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n_rows, n_columns)).astype(np.float32)
    return x, (x[:, 7] + x[:, 8] > 0).astype(np.int64)


def make_problem_of_rows(x: np.ndarray, y: np.ndarray, costs: FeatureCosts) -> FitProblem:
    """Make the problem of rows of equal weight and two classes."""
    split = ValidationSplit.choose(x, y, np.ones(len(y)), validation=None, seed=0)
    return FitProblem(split, split, 2, costs, 0, lambda done, total, what="": None)


@pytest.mark.slow
def test_searches_in_very_many_columns_use_only_some_of_them() -> None:
    x, y = draw_table(1400)
    group = np.full(1400, None, object)
    group[8:708] = "bus"
    own_prices = np.where(group == "bus", 0.0, 1.0)
    costs = FeatureCosts(own_prices, group=group.tolist(), shared={"bus": 3.0})
    narrowed_problem, columns = with_fewer_columns(make_problem_of_rows(x, y, costs))
    assert {7, 8} <= set(columns.tolist())
    bus_columns = columns[(columns >= 8) & (columns < 708)]
    assert len(bus_columns) in (0, 700)  # features that share one price stay together
    assert (
        narrowed_problem.costs.n_features
        == narrowed_problem.split.x.shape[1]
        == len(columns)
        < 1400
    )
    assert narrowed_problem.costs.price(np.arange(len(columns))) == costs.price(columns)
    x, y = draw_table(30)
    narrow_problem = make_problem_of_rows(x, y, FeatureCosts.uniform(30))
    assert with_fewer_columns(narrow_problem)[0] is narrow_problem
    assert len(most_different_columns(*draw_table(3000))) == MAX_COLUMNS


def test_a_backward_step_takes_linear_time_in_the_columns() -> None:
    units = [np.array([k]) for k in range(6000)]
    gain = np.where(np.arange(6000) % 10 == 0, np.arange(6000.0), 0.0)
    started_at = time.process_time()
    is_remaining = _drop_least_useful(gain, np.ones(6000, bool), units, FeatureCosts.uniform(6000))
    # the step takes about 0.1 s; the rest is for slow machines
    assert time.process_time() - started_at < 5.0
    # the columns with a gain
    assert np.flatnonzero(is_remaining).tolist() == list(range(10, 6000, 10))


@pytest.mark.slow
def test_a_wide_file_is_read_in_linear_time(tmp_path: Path) -> None:
    x, y = draw_table(3000, 20)
    table = pd.DataFrame(x, columns=[f"x{i}" for i in range(3000)]).assign(label=y)
    table.to_csv(tmp_path / "wide.csv", index=False)
    started_at = time.process_time()
    wide_table = read_table(tmp_path / "wide.csv")
    wide_table.check()
    wide_table.remarks()
    assert wide_table.as_numbers().X.shape == (20, 3000)
    # reading and checking take about 0.5 s; the rest is for slow machines
    assert time.process_time() - started_at < 12.0
