"""Train the high-cost model f0: the most accurate of several kinds, or the user's own kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    LARGE_ROWS,
    MANY_ROWS,
    RANDOM_THRESHOLDS,
    SVM_ROWS,
    capacity,
    fit_boosting,
)
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.given_models.estimator_fits import (
    EstimatorFit,
    Fit,
    calibrated_svm,
    finds_by_name,
    has_halves,
    scalers,
)
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.screening import screened
from gatewise_training.learners.stage_bounds import TreeShape

TREES = (300, 150, 100)
TRIAL_TREES = 30
"""Trees of extra-trees by size of the data; above 5,000 rows a few are tried first, above 50,000 on
some of the rows, as boosting is."""

NEAR = 0.01
"""What is tried first is fitted whole if it is that close to the best accuracy."""

FEWER_LEAVES = (1023, 255, 63, 15, 4)
"""Leaves of a boosted tree that are tried on more than 5,000 rows, from `capacity`'s on."""

FINE_BINS = 255
"""Bins of a feature that are tried on fewer, after `capacity`'s."""

PLAIN = {"num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "min_data_in_leaf": 20}
PLAIN_ROUNDS = 100
"""LightGBM's own settings: they stop nothing early, which few or few kinds of rows may do too soon.
"""

FAR = 0.03
"""An SVM behind another scaler is not tried where the first one is that much less accurate."""

LEAST_CHANCE = 1e-12
"""No probability is less in a log loss."""

LEAST_SHARPENED = 1e-6
"""No probability is less before it is calibrated: forests give many zeros."""


class TrainedModel(NamedTuple):
    """A high-cost model, its out-of-fold answers, and the best shape of boosted trees on the rows.

    Shapes: `labels` (n_validation,) class indices, `probabilities` (n_validation, n_classes).
    """

    model: HighCostModel
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    shape: TreeShape | None = None  # None: none were tried


def train_high_cost_model(
    plan: ValidationSplit,
    n_classes: int,
    *,
    template: Any = None,
    names: Sequence[str] | None = None,
    allow_missing: bool = False,
    seed: int = 0,
    report: Callable[[str], None] = lambda _what: None,
) -> TrainedModel:
    """Train f0: the most accurate, on validation rows, of the families that fit the data.

    The families are boosted trees in several shapes, up to 5,000 rows also with random thresholds,
    and, unless values may be missing, extra-trees and up to 16,000 rows an RBF-SVM (calibrated by
    Platt's sigmoid). :func:`best_model` chooses. Above 50,000 rows all are first tried on some of
    the rows. With a `template`, an unfitted scikit-learn classifier, clones of it are fitted
    instead; if it finds columns by their names, it gets the rows under `names`.
    """
    y = plan.y[plan.validation_rows]
    weight = plan.weight[plan.validation_rows]
    trained: list[TrainedModel] = []
    accuracies: list[float] = []

    def cross_fit_all(fits: list[tuple[str, _CrossFit]]) -> None:
        results = parallel_results((joblib.delayed(_run)(fit) for _, fit in fits), shared=plan)
        for (kind, _), result in zip(fits, results, strict=True):
            report(f"high-cost model: {kind}")
            trained.append(result)
            accuracies.append(float(np.average(result.labels == y, weights=weight)))

    # first trials of large fits, then the whole fits of the promising kinds
    recipes = partial(_recipes, plan, n_classes, template, names, allow_missing, seed=seed)
    cross_fit_all([(recipe.kind, recipe.trial or recipe.fit) for recipe in recipes(None)])
    shape = next((model.shape for model in trained if model.shape), None)
    near = max(accuracies) - NEAR
    tries = zip(recipes(shape), accuracies.copy(), strict=True)
    cross_fit_all([(r.kind, r.fit) for r, accuracy in tries if r.trial and accuracy >= near])
    # another scaler for an SVM that is nearly as good as the best
    further = _further_svms(plan, recipes(shape))
    if further and accuracies[len(recipes(shape)) - 1] >= max(accuracies) - FAR:
        cross_fit_all([(recipe.kind, recipe.fit) for recipe in further])
    return trained[best_model(trained, plan)]._replace(shape=shape)


def best_model(trained: Sequence[TrainedModel], plan: ValidationSplit) -> int:
    """Get the number of the model with the smallest error rate plus calibrated Brier score.

    On few rows error rates differ by chance. Brier scores vary less, but say little about a model
    whose probabilities are too cautious, such as a forest's, until they are calibrated.
    """
    rows = plan.validation_rows
    y = plan.y[rows]
    share = plan.weight[rows] / plan.weight[rows].sum()
    scores = []
    for model in trained:
        chances = _calibrated(model.probabilities, y, share)
        # sum_c (p_c - [c = y])^2
        brier = (chances**2).sum(axis=1) - 2 * chances[np.arange(len(y)), y] + 1.0
        scores.append(float(((model.labels != y) + brier) @ share))
    return int(np.argmin(scores))


def _calibrated(
    probabilities: NDArray[np.float64], y: NDArray[np.int64], share: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Raise probabilities to the one power with the smallest log loss, and normalise them.

    Shapes: `probabilities` (n, n_classes), `y, share` (n,): classes and weights with sum 1.
    """
    log_chances = np.log(np.maximum(probabilities, LEAST_SHARPENED))

    def powered(log2_power: float) -> NDArray[np.float64]:
        return np.asarray(special.softmax(2.0**log2_power * log_chances, axis=1), np.float64)

    def log_loss(log2_power: float) -> float:
        of_truth = powered(log2_power)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(of_truth, LEAST_CHANCE)) @ share)

    best_power = optimize.minimize_scalar(log_loss, bounds=(-3.0, 3.0), method="bounded").x
    return powered(float(best_power))


def tree_shape(plan: ValidationSplit, n_classes: int, seed: int) -> TreeShape:
    """Find the best shape of boosted trees by the loss of validation rows."""
    return _best_shape(n_classes, seed, plan)[0]


_CrossFit = Callable[[ValidationSplit], TrainedModel]


@dataclass(frozen=True)
class _F0Recipe:
    """One kind of model, and perhaps a cheap trial of whether it is worth its fit."""

    kind: str
    fit: _CrossFit
    trial: _CrossFit | None = None


def _run(plan: ValidationSplit, fit: _CrossFit) -> TrainedModel:
    return fit(plan)


def _cross_fitted(fit: Fit, plan: ValidationSplit) -> TrainedModel:
    def answers(model: HighCostModel, rows: Rows) -> NDArray[np.float64]:
        return np.column_stack(model.answers(plan.x[rows]))

    model, unseen = cross_fit(plan, fit, answers)
    return TrainedModel(model, unseen[:, 0].astype(np.int64), unseen[:, 1:])


def _clones(
    n_classes: int, kind: str, template: Any, names: Sequence[str] | None, plan: ValidationSplit
) -> TrainedModel:
    """Cross-fit clones of a classifier."""
    return _cross_fitted(EstimatorFit(plan, n_classes, kind, template, names), plan)


def _boosting(
    n_classes: int, seed: int, shape: TreeShape | None, plan: ValidationSplit
) -> TrainedModel:
    """Cross-fit boosted trees of a shape; None: search for the best one on the rows of a trial."""
    if shape is None:
        shape, trained = _best_shape(n_classes, seed, plan)
    else:
        trained = _boosted(n_classes, seed, _tree_params(shape), plan)
    return trained._replace(shape=shape)


def _forest(n_classes: int, seed: int, n_trees: int, plan: ValidationSplit) -> TrainedModel:
    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        x = plan.x[rows]
        y = plan.y[rows]
        weight = plan.weight[rows]
        trees = fit_extra_trees(x, y, n_classes, weight=weight, n_trees=n_trees, seed=seed)
        return HighCostModel(np.arange(x.shape[1]), n_classes, "extra-trees", trees=trees)

    return _cross_fitted(fit, plan)


def _forest_trial(n_classes: int, seed: int, plan: ValidationSplit) -> TrainedModel:
    return _forest(n_classes, seed, TRIAL_TREES, _trial_plan(plan, seed))


def _trial_plan(plan: ValidationSplit, seed: int) -> ValidationSplit:
    """Get the plan with as many rows to fit as a comparison of models needs."""
    return plan.with_fit_rows(MANY_ROWS, seed) if len(plan.folds) == 1 else plan


def _tree_params(shape: TreeShape) -> dict[str, Any]:
    bins = {} if shape.bins is None else {"max_bin": shape.bins}
    return {"num_leaves": shape.leaves, "learning_rate": shape.rate} | bins


def _best_shape(n_classes: int, seed: int, plan: ValidationSplit) -> tuple[TreeShape, TrainedModel]:
    """Try one change after the other as long as the log loss of validation rows falls.

    On more than 5,000 rows fewer leaves: the best number depends on the data by a factor of 60, 255
    on Forest, 4 on the 349 features of HAPT, where 63 lose 4 points of accuracy. On few rows more
    bins: 63 are better on MiniBooNE, and lose half a point on Thyroid's sharp thresholds.
    """
    params = _capacity(plan, n_classes)
    rows = plan.validation_rows
    plan = _trial_plan(plan, seed)
    leaves = params["num_leaves"]
    rate = params["learning_rate"]
    bins = params.get("max_bin")
    changes = [(n_fewer, bins) for n_fewer in FEWER_LEAVES if n_fewer <= leaves]
    if len(plan.fit_rows) <= LARGE_ROWS:
        changes = [(leaves, bins), (leaves, FINE_BINS)]
    trials: list[tuple[float, TreeShape, TrainedModel]] = []
    for n_leaves, n_bins in changes:
        shape = TreeShape(n_leaves, rate, n_bins)
        trained = _boosted(n_classes, seed, _tree_params(shape), plan)
        chance = trained.probabilities[np.arange(len(rows)), plan.y[rows]]
        loss = np.average(-np.log(np.maximum(chance, LEAST_CHANCE)), weights=plan.weight[rows])
        if trials and loss >= trials[-1][0]:
            break
        trials.append((float(loss), shape, trained))
    return trials[-1][1:]


def _boosted(
    n_classes: int,
    seed: int,
    changes: Mapping[str, Any],
    plan: ValidationSplit,
    fixed_rounds: int | None = None,
) -> TrainedModel:
    """Cross-fit boosted trees, as many rounds as validation rows say or a fixed number."""
    params = _capacity(plan, n_classes) | dict(changes)

    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        columns = screened(plan.x[rows], plan.y[rows])
        # a slice of a table that is not wide copies no columns
        used = columns if len(columns) < plan.x.shape[1] else slice(None)
        validation = None
        if unseen is not None and fixed_rounds is None:
            validation = plan.x[unseen][:, used], *plan.truth(unseen)
        trees, n_rounds = fit_boosting(
            plan.x[rows][:, used],
            plan.y[rows],
            n_classes,
            weight=plan.weight[rows],
            validation=validation,
            rounds=fixed_rounds or rounds or 600,
            seed=seed,
            params=params,
        )
        return HighCostModel(columns, n_classes, "boosting", trees=trees, rounds=n_rounds)

    return _cross_fitted(fit, plan)


def _plainly_boosted(n_classes: int, seed: int, plan: ValidationSplit) -> TrainedModel:
    return _boosted(n_classes, seed, PLAIN, plan, PLAIN_ROUNDS)


def _capacity(plan: ValidationSplit, n_classes: int) -> dict[str, Any]:
    grouped = plan.splitter.n_groups is not None
    return capacity(len(plan.fit_rows), n_classes, grouped=grouped)


def _recipes(
    plan: ValidationSplit,
    n_classes: int,
    template: Any,
    names: Sequence[str] | None,
    allow_missing: bool,
    shape: TreeShape | None,
    *,
    seed: int,
) -> list[_F0Recipe]:
    """List the kinds to try; `shape` is the shape of boosted trees, once it is known."""
    if template is not None:
        kind = type(template).__name__
        used_names = names if finds_by_name(template) else None
        return [_F0Recipe(kind, partial(_clones, n_classes, "given", template, used_names))]
    large, many = (len(plan.fit_rows) > n for n in (LARGE_ROWS, MANY_ROWS))
    boosting = partial(_boosting, n_classes, seed, shape)
    has_trial = many and len(plan.folds) == 1
    recipes = [_F0Recipe("boosting", boosting, boosting if has_trial else None)]
    if not large or plan.splitter.n_groups is not None:
        recipes.append(_F0Recipe("plain boosting", partial(_plainly_boosted, n_classes, seed)))
    if not large:
        random = partial(_boosted, n_classes, seed, RANDOM_THRESHOLDS)
        recipes.append(_F0Recipe("random boosting", random))
    if not allow_missing:
        forest = partial(_forest, n_classes, seed, TREES[large + many])
        trial = partial(_forest_trial, n_classes, seed) if large else None
        recipes.append(_F0Recipe("extra-trees", forest, trial))
        recipes += _svms(plan)[:1]
    return recipes


def _svms(plan: ValidationSplit) -> list[_F0Recipe]:
    """List the SVMs behind several scalers, where rows are few and of equal weight."""
    smallest = np.bincount(plan.y[plan.fit_rows]).min()
    even = np.ptp(plan.weight) == 0  # a scaler before the SVM could not see weights
    is_small = len(plan.fit_rows) <= SVM_ROWS and smallest >= 2 * len(plan.folds)
    if not (is_small and even and has_halves(plan)):
        return []
    n_classes = int(plan.y.max()) + 1
    svms = []
    for name, scaler in scalers():
        fit = partial(_clones, n_classes, "svm", calibrated_svm(scaler), None)
        svms.append(_F0Recipe(f"svm on {name}", fit))
    return svms


def _further_svms(plan: ValidationSplit, recipes: Sequence[_F0Recipe]) -> list[_F0Recipe]:
    """List the SVMs behind other scalers than the one of the recipes, which is their last."""
    return _svms(plan)[1:] if recipes[-1].kind.startswith("svm") else []
