"""Training of the high-cost model f0, as the best of several kinds or by a given classifier."""

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
from gatewise_training.learners.screening import most_different_columns
from gatewise_training.learners.stage_bounds import TreeShape

N_EXTRA_TREES = (300, 150, 100)
"""Number of extra-trees on up to 5,000 rows, on up to 50,000 rows, and on more."""

N_TRIAL_TREES = 30
"""Number of extra-trees of a trial, which comes first on more than 5,000 rows. On more than 50,000
rows the trial uses a sample of the rows."""

MAX_TRIAL_LOSS = 0.01
"""A kind is fitted on all rows if the accuracy of its trial is that close to the best one."""

LEAVES = (1023, 255, 63, 15, 4)
"""Numbers of leaves to try on more than 5,000 rows, from the number of `capacity` down."""

FINE_BINS = 255
"""Number of bins to try on up to 5,000 rows, after the number of `capacity`."""

PLAIN = {"num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "min_data_in_leaf": 20}
PLAIN_ROUNDS = 100
"""LightGBM's default settings, without early stopping. Few rows, or few groups of rows, may stop a
fit too early."""

MAX_SVM_LOSS = 0.03
"""Other scalers for the SVM are tried if the first one is at most this far below the best
accuracy."""

MIN_PROBABILITY = 1e-12
"""Lower bound of probabilities in a log loss."""

MIN_UNCALIBRATED = 1e-6
"""Lower bound of probabilities before their calibration, because forests give many zeros."""


class TrainedModel(NamedTuple):
    """A high-cost model, its out-of-fold predictions, and the best shape of boosted trees.

    Shapes: `labels` (n_validation,) class indices, `probabilities` (n_validation, n_classes).
    """

    model: HighCostModel
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    shape: TreeShape | None = None  # None if no boosted trees were tried


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
    """Train f0 as the best of several kinds of models on validation rows.

    The kinds are boosted trees in several shapes and, on up to 5,000 rows, boosted trees with
    random thresholds. Unless values may be missing, there are also extra-trees and, on up to 16,000
    rows, an RBF-SVM that is calibrated by Platt's sigmoid. :func:`best_model` chooses. On more than
    50,000 rows, all kinds are first tried on a sample of the rows.

    With a `template`, an unfitted scikit-learn classifier, clones of it are fitted instead. If it
    selects columns by their names, it gets the rows with `names`.
    """
    y = plan.y[plan.validation_rows]
    weight = plan.weight[plan.validation_rows]
    trained: list[TrainedModel] = []
    accuracies: list[float] = []

    def cross_fit_all(fits: list[tuple[str, _CrossFit]]) -> None:
        results = parallel_results((joblib.delayed(_run)(fit) for _, fit in fits), shared_data=plan)
        for (kind, _), result in zip(fits, results, strict=True):
            report(f"high-cost model: {kind}")
            trained.append(result)
            accuracies.append(float(np.average(result.labels == y, weights=weight)))

    # trials of large fits, then complete fits of the kinds with good trials
    recipes = partial(_recipes, plan, n_classes, template, names, allow_missing, seed=seed)
    cross_fit_all([(recipe.kind, recipe.trial or recipe.fit) for recipe in recipes(None)])
    shape = next((model.shape for model in trained if model.shape), None)
    min_accuracy = max(accuracies) - MAX_TRIAL_LOSS
    trials = zip(recipes(shape), accuracies.copy(), strict=True)
    cross_fit_all(
        [
            (recipe.kind, recipe.fit)
            for recipe, accuracy in trials
            if recipe.trial and accuracy >= min_accuracy
        ]
    )
    # other scalers for an SVM that is nearly as good as the best model
    other_svms = _other_svms(plan, recipes(shape))
    if other_svms and accuracies[len(recipes(shape)) - 1] >= max(accuracies) - MAX_SVM_LOSS:
        cross_fit_all([(recipe.kind, recipe.fit) for recipe in other_svms])
    return trained[best_model(trained, plan)]._replace(shape=shape)


def best_model(trained: Sequence[TrainedModel], plan: ValidationSplit) -> int:
    """Get the index of the model with the smallest sum of error rate and calibrated Brier score.

    On few rows, error rates differ by chance. Brier scores vary less, but without calibration they
    underrate models with probabilities that are too cautious, such as forests.
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
    """Raise all probabilities to the power with the smallest log loss, and normalise them.

    Shapes: `probabilities` (n, n_classes), `y` (n,), `share` (n,), weights that add up to 1.
    """
    log_chances = np.log(np.maximum(probabilities, MIN_UNCALIBRATED))

    def powered(log2_power: float) -> NDArray[np.float64]:
        return np.asarray(special.softmax(2.0**log2_power * log_chances, axis=1), np.float64)

    def log_loss(log2_power: float) -> float:
        chance_of_label = powered(log2_power)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(chance_of_label, MIN_PROBABILITY)) @ share)

    best_power = optimize.minimize_scalar(log_loss, bounds=(-3.0, 3.0), method="bounded").x
    return powered(float(best_power))


def tree_shape(plan: ValidationSplit, n_classes: int, seed: int) -> TreeShape:
    """Find the shape of boosted trees with the smallest loss on validation rows."""
    return _best_shape(n_classes, seed, plan)[0]


_CrossFit = Callable[[ValidationSplit], TrainedModel]


@dataclass(frozen=True)
class _F0Recipe:
    """How to fit one kind of model, with an optional cheap trial before the fit."""

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
    """Cross-fit boosted trees of a shape; without a shape, the best one on a trial's rows."""
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
    return _forest(n_classes, seed, N_TRIAL_TREES, _trial_plan(plan, seed))


def _trial_plan(plan: ValidationSplit, seed: int) -> ValidationSplit:
    """Reduce a plan to as many training rows as a comparison of models needs."""
    return plan.with_fit_rows(MANY_ROWS, seed) if len(plan.folds) == 1 else plan


def _tree_params(shape: TreeShape) -> dict[str, Any]:
    bins = {} if shape.bins is None else {"max_bin": shape.bins}
    return {"num_leaves": shape.leaves, "learning_rate": shape.rate} | bins


def _best_shape(n_classes: int, seed: int, plan: ValidationSplit) -> tuple[TreeShape, TrainedModel]:
    """Try one shape after the other as long as the log loss of validation rows falls.

    On more than 5,000 rows, the shapes have fewer and fewer leaves. The best number is 255 on
    Forest and 4 on the 349 features of HAPT, where 63 leaves lose 4 points of accuracy. On fewer
    rows, the second shape has more bins. 63 bins are better on MiniBooNE, but lose half a point of
    accuracy on Thyroid, which has sharp thresholds.
    """
    params = _capacity(plan, n_classes)
    rows = plan.validation_rows
    plan = _trial_plan(plan, seed)
    leaves = params["num_leaves"]
    rate = params["learning_rate"]
    bins = params.get("max_bin")
    candidates = [(n_leaves, bins) for n_leaves in LEAVES if n_leaves <= leaves]
    if len(plan.fit_rows) <= LARGE_ROWS:
        candidates = [(leaves, bins), (leaves, FINE_BINS)]
    trials: list[tuple[float, TreeShape, TrainedModel]] = []
    for n_leaves, n_bins in candidates:
        shape = TreeShape(n_leaves, rate, n_bins)
        trained = _boosted(n_classes, seed, _tree_params(shape), plan)
        chance = trained.probabilities[np.arange(len(rows)), plan.y[rows]]
        log_chance = np.log(np.maximum(chance, MIN_PROBABILITY))
        loss = np.average(-log_chance, weights=plan.weight[rows])
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
    """Cross-fit boosted trees with early stopping, or with a fixed number of rounds."""
    params = _capacity(plan, n_classes) | dict(changes)

    def fit(rows: Rows, unseen: Rows | None, rounds: int | None) -> HighCostModel:
        columns = most_different_columns(plan.x[rows], plan.y[rows])
        # a slice avoids a copy if all columns are used
        used = columns if len(columns) < plan.x.shape[1] else slice(None)
        validation = None
        if unseen is not None and fixed_rounds is None:
            validation = plan.x[unseen][:, used], *plan.labels_and_weights(unseen)
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
    """List the recipes to try; `shape` is the shape of boosted trees, once it is known."""
    if template is not None:
        kind = type(template).__name__
        used_names = names if finds_by_name(template) else None
        return [_F0Recipe(kind, partial(_clones, n_classes, "given", template, used_names))]
    is_large = len(plan.fit_rows) > LARGE_ROWS
    is_very_large = len(plan.fit_rows) > MANY_ROWS
    boosting = partial(_boosting, n_classes, seed, shape)
    has_trial = is_very_large and len(plan.folds) == 1
    recipes = [_F0Recipe("boosting", boosting, boosting if has_trial else None)]
    if not is_large or plan.splitter.n_groups is not None:
        recipes.append(_F0Recipe("plain boosting", partial(_plainly_boosted, n_classes, seed)))
    if not is_large:
        random_boosting = partial(_boosted, n_classes, seed, RANDOM_THRESHOLDS)
        recipes.append(_F0Recipe("random boosting", random_boosting))
    if not allow_missing:
        n_trees = N_EXTRA_TREES[is_large + is_very_large]
        forest = partial(_forest, n_classes, seed, n_trees)
        trial = partial(_forest_trial, n_classes, seed) if is_large else None
        recipes.append(_F0Recipe("extra-trees", forest, trial))
        recipes += _svms(plan)[:1]
    return recipes


def _svms(plan: ValidationSplit) -> list[_F0Recipe]:
    """List the SVMs with several scalers, if rows are few and have equal weights."""
    n_rarest = np.bincount(plan.y[plan.fit_rows]).min()
    has_equal_weights = np.ptp(plan.weight) == 0  # scalers do not take weights
    is_small = len(plan.fit_rows) <= SVM_ROWS and n_rarest >= 2 * len(plan.folds)
    if not (is_small and has_equal_weights and has_halves(plan)):
        return []
    n_classes = int(plan.y.max()) + 1
    svms = []
    for name, scaler in scalers():
        fit = partial(_clones, n_classes, "svm", calibrated_svm(scaler), None)
        svms.append(_F0Recipe(f"svm on {name}", fit))
    return svms


def _other_svms(plan: ValidationSplit, recipes: Sequence[_F0Recipe]) -> list[_F0Recipe]:
    """List the SVMs with other scalers, if the last recipe is an SVM."""
    return _svms(plan)[1:] if recipes[-1].kind.startswith("svm") else []
