"""Peer that fits the CEGB of LightGBM (NIPS 2017), with coupled and lazy penalties."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.boosters import (
    Booster,
    booster_fit,
    capacities,
    prices_with_group_part,
    sweep_penalties,
)
from benchmarks.comparison.record import Point
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training.data.validation_split import ValidationSplit, cross_fit

#: Range of penalties, in mean loss per mean price, from no effect to no feature.
STRENGTH_RANGE = (1e-5, 0.3)


def coupled_points(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, n_fits: int
) -> list[Point]:
    """Fit single models for a range of penalties on the first use of a feature.

    LightGBM does not support groups. A callback removes the shared price of a group after the first
    use of a member, because the peer could not compete on priced groups otherwise.
    """
    costs = problem.costs

    def evaluate(capacity: dict[str, Any], strength: float) -> tuple[float, Point]:
        penalties = _compute_coupled_penalties(costs, np.zeros(costs.n_features, bool), strength)
        fit = booster_fit(
            plan,
            np.arange(costs.n_features),
            problem.n_classes,
            capacity | {"cegb_penalty_feature_coupled": penalties.tolist()},
            seed=seed,
            callback=_make_group_callback(costs, strength) if costs.shared.any() else None,
        )
        model, validation_proba = cross_fit(
            plan, fit, lambda fitted_model, rows: fitted_model.proba(plan.x[rows])
        )
        cost = costs.price(model.used_features())
        probabilities = validation_proba, model.proba(fold.test[0])
        return cost, Point.of_probabilities(fold, plan, *probabilities, cost, model.nbytes)

    return _sweep(problem, plan, evaluate, seed, n_fits)


def lazy_points(
    problem: Problem, fold: Fold, plan: ValidationSplit, seed: int, n_fits: int
) -> list[Point]:
    """Fit single models for a range of penalties per instance, without bagging.

    Bagging does not work with these penalties. An instance pays for the features on its paths. The
    penalty of a feature is its own price and an equal part of the shared price of its group,
    because LightGBM does not support groups.
    """
    costs = problem.costs

    def evaluate(capacity: dict[str, Any], strength: float) -> tuple[float, Point]:
        # every instance pays the penalty, so it has no factor of the number of rows
        penalties = strength / len(plan.fit_rows) * prices_with_group_part(costs)
        fit = booster_fit(
            plan,
            np.arange(costs.n_features),
            problem.n_classes,
            capacity | {"cegb_penalty_feature_lazy": penalties.tolist()},
            seed=seed,
        )

        def cost_and_proba(model: Booster, rows: NDArray[np.intp]) -> NDArray[np.float64]:
            features = plan.x[rows]
            return np.column_stack([path_costs(model, features, costs), model.proba(features)])

        model, validation_columns = cross_fit(plan, fit, cost_and_proba)
        test_rows = fold.test[0]
        val_cost = float(validation_columns[:, 0].mean())
        mean_costs = val_cost, float(path_costs(model, test_rows, costs).mean())
        probabilities = validation_columns[:, 1:], model.proba(test_rows)
        point = Point.of_probabilities(fold, plan, *probabilities, mean_costs, model.nbytes)
        return val_cost, point

    return _sweep(problem, plan, evaluate, seed, n_fits)


def _sweep(
    problem: Problem,
    plan: ValidationSplit,
    evaluate: Callable[[dict[str, Any], float], tuple[float, Point]],
    seed: int,
    n_fits: int,
) -> list[Point]:
    """Sweep the penalties for each capacity.

    The unit of LightGBM's gain, which is a sum over rows, converts :data:`STRENGTH_RANGE`.
    """
    unit = len(plan.fit_rows) * problem.costs.n_features / problem.costs.total
    low, high = (unit * strength for strength in STRENGTH_RANGE)
    capacity_list = capacities(
        plan, problem.n_classes, seed=seed, has_noisy_labels=problem.has_noisy_labels
    )
    sweeps = [
        sweep_penalties(partial(evaluate, capacity), low, high, n_fits)
        for capacity in capacity_list
    ]
    return [point for points in sweeps for point in points]


def path_costs(
    model: Booster, rows: NDArray[np.float32], costs: FeatureCosts
) -> NDArray[np.float64]:
    """Price the features on each instance's paths through all trees."""
    leaves = np.asarray(
        model.model.predict(rows[:, model.columns], pred_leaf=True, num_iteration=model.rounds)
    ).reshape(len(rows), -1)
    trees = model.model.dump_model(num_iteration=model.rounds)["tree_info"]
    is_acquired = np.zeros((len(rows), costs.n_features), bool)
    for tree_number, tree in enumerate(trees):
        leaf_features = np.zeros((tree["num_leaves"], costs.n_features), bool)
        _mark_features(tree["tree_structure"], [], model.columns, leaf_features)
        is_acquired |= leaf_features[leaves[:, tree_number].astype(np.intp)]
    return costs.instance_costs(is_acquired)


def _mark_features(
    node: dict[str, Any],
    path_features: list[int],
    columns: NDArray[np.intp],
    leaf_features: NDArray[np.bool_],
) -> None:
    """Mark the features on the path to each leaf below a node."""
    if "split_feature" not in node:
        leaf_features[node.get("leaf_index", 0), path_features] = True
        return
    child_features = [*path_features, int(columns[node["split_feature"]])]
    _mark_features(node["left_child"], child_features, columns, leaf_features)
    _mark_features(node["right_child"], child_features, columns, leaf_features)


def _compute_coupled_penalties(
    costs: FeatureCosts, is_used: NDArray[np.bool_], strength: float
) -> NDArray[np.float64]:
    # strength * (own price + shared price of an unused group) for an unused feature
    has_used_group = np.isin(costs.group, costs.group[is_used]) & (costs.group >= 0)
    shared_prices = np.where(has_used_group, 0.0, np.append(costs.shared, 0.0)[costs.group])
    return np.where(is_used, 0.0, strength * (costs.own + shared_prices))


def _make_group_callback(costs: FeatureCosts, strength: float) -> Callable[[Any], None]:
    def update_penalties(round_state: Any) -> None:
        is_used = round_state.model.feature_importance("split") > 0
        penalties = _compute_coupled_penalties(costs, is_used, strength)
        round_state.model.reset_parameter({"cegb_penalty_feature_coupled": penalties.tolist()})

    return update_penalties
