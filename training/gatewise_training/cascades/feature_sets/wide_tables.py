"""Selection of columns of a very wide table, before the search for feature sets.

Each search for feature sets fits tens of models on all columns. If a table has thousands of
columns, most of them useless, a quick selection keeps the number that a search can handle in
reasonable time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gatewise_training.cascades.feature_sets.backward_selection import MAX_ROWS, boosted_gains
from gatewise_training.cascades.feature_sets.forward_selection import units_of_acquisition
from gatewise_training.cascades.fit_problem import FitProblem
from gatewise_training.learners.screening import MAX_COLUMNS, class_contrasts


def with_fewer_columns(problem: FitProblem) -> tuple[FitProblem, NDArray[np.intp]]:
    """Get the problem with about :data:`.MAX_COLUMNS` of its columns, and their indices.

    Half of the selected columns have the largest gain per unit of cost in a boosted model. The
    other half have the largest difference between classes per unit of cost. Features that cost only
    the shared price of their group are selected together.
    """
    costs = problem.costs
    n_features = costs.n_features
    if n_features <= MAX_COLUMNS:
        return problem, np.arange(n_features)
    problem.report_progress(0, 1, f"choosing among {n_features:,} features")
    split = problem.split
    rows = np.random.default_rng(problem.seed).permutation(split.fit_rows)[:MAX_ROWS]
    units = units_of_acquisition(costs)
    prices = np.maximum(costs.standalone_prices, 1e-9)  # free features have the largest ratios
    gains = boosted_gains(problem, rows, np.arange(n_features)) / prices
    contrasts = class_contrasts(split.x[rows], split.y[rows]) / prices
    unit_of_feature = np.empty(n_features, np.intp)
    for unit_index, unit in enumerate(units):
        unit_of_feature[unit] = unit_index
    columns_by_gain = np.argsort(-gains, kind="stable")
    useful_columns = columns_by_gain[gains[columns_by_gain] > 0][: MAX_COLUMNS // 2]
    ranked_columns = np.append(useful_columns, np.argsort(-contrasts, kind="stable"))
    is_selected = costs.standalone_prices == 0
    for column in ranked_columns.tolist():
        if is_selected.sum() >= MAX_COLUMNS:
            break
        is_selected[units[unit_of_feature[column]]] = True
    columns = np.flatnonzero(is_selected)
    split_of_columns = replace(split, x=np.ascontiguousarray(split.x[:, columns]))
    return replace(problem, split=split_of_columns, costs=costs.select(columns)), columns
