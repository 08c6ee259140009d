"""Training of the high-cost model, as the best of several kinds or by a given classifier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import joblib
import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special
from sklearn.base import clone

from gatewise_training.data.parallel_fits import parallel_results
from gatewise_training.data.validation_split import Fit, Rows, ValidationSplit, cross_fit
from gatewise_training.learners.boosting import (
    MAX_MEDIUM_ROWS,
    MAX_SMALL_ROWS,
    RANDOM_THRESHOLDS,
    capacity_params,
    fit_boosting,
)
from gatewise_training.learners.extra_trees import fit_extra_trees
from gatewise_training.learners.given_models.estimator_fits import (
    calibrated_svm,
    fit_clone,
    has_halves,
    labels_to_fit,
    scalers,
    selects_by_name,
    split_into_halves,
)
from gatewise_training.learners.high_cost_model import HighCostModel
from gatewise_training.learners.kernel_fitting import MAX_SVM_ROWS
from gatewise_training.learners.screening import most_different_columns
from gatewise_training.learners.stage_bounds import TreeShape

#: Number of extra-trees on up to 5,000 rows, on up to 50,000 rows, and on more.
N_TREES_ON_SMALL_TABLES = 300
N_TREES_ON_MEDIUM_TABLES = 150
N_TREES_ON_LARGE_TABLES = 100

#: Number of extra-trees of a trial, which comes first on more than 5,000 rows. On more than 50,000
#: rows the trial uses a sample of the rows.
N_TRIAL_TREES = 30

#: A kind is fitted on all rows if the accuracy of its trial is at most this much below the best.
MAX_TRIAL_LOSS = 0.01

#: Numbers of leaves to try on more than 5,000 rows, from that of `capacity_params` down.
LEAVES_TO_TRY = (1023, 255, 63, 15, 4)

#: Number of bins to try on up to 5,000 rows, after that of `capacity_params`.
FINE_BINS = 255

DEFAULT_PARAMS = {"num_leaves": 31, "learning_rate": 0.1, "max_bin": 255, "min_data_in_leaf": 20}
#: LightGBM's default settings, without early stopping. Few rows, or few groups of rows, may stop a
#: fit too early.
DEFAULT_ROUNDS = 100

#: Maximum number of boosting rounds; early stopping usually ends a fit before.
MAX_ROUNDS = 600

#: Other scalers for the SVM are tried if the first one is at most this far below the best accuracy.
MAX_SVM_LOSS = 0.03

#: Lower bound of probabilities in a log loss, which would otherwise be infinite.
MIN_PROBABILITY = 1e-12

#: Lower bound of probabilities before their calibration, because forests give many zeros.
MIN_UNCALIBRATED_PROBABILITY = 1e-6


class TrainedModel(NamedTuple):
    """A high-cost model, its out-of-fold predictions, and the best shape of boosted trees.

    Shapes: `labels` (n_validation,) class indices, `probabilities` (n_validation, n_classes).
    """

    model: HighCostModel
    labels: NDArray[np.int64]
    probabilities: NDArray[np.float64]
    shape: TreeShape | None = None  # None if no boosted trees were tried


def train_high_cost_model(
    split: ValidationSplit,
    n_classes: int,
    *,
    template: Any = None,
    classes: NDArray[Any] | None = None,
    names: Sequence[str] | None = None,
    allow_missing: bool = False,
    seed: int = 0,
    report_step: Callable[[str], None] = lambda _step_name: None,
) -> TrainedModel:
    """Train the high-cost model as the best of several kinds of models on validation rows.

    The kinds are boosted trees in several shapes and, on up to 5,000 rows, boosted trees with
    random thresholds. Unless values may be missing, there are also extra-trees and, on up to 16,000
    rows, an RBF-SVM that is calibrated by Platt's sigmoid. :func:`index_of_best` chooses. On more
    than 50,000 rows, all kinds are first tried on a sample of the rows.

    With a `template`, an unfitted scikit-learn classifier, clones of it are fitted instead, to the
    labels `classes`, (n_classes,), by default the class indices. If it selects columns by their
    names, it gets the rows with `names`.
    """
    y = split.y[split.validation_rows]
    weight = split.weight[split.validation_rows]
    models: list[TrainedModel] = []
    accuracies: list[float] = []

    def cross_fit_all(fits: list[tuple[str, _CrossFit]]) -> None:
        jobs = (joblib.delayed(fit)() for _, fit in fits)
        for (kind, _), model in zip(fits, parallel_results(jobs, shared_data=split), strict=True):
            report_step(f"high-cost model: {kind}")
            models.append(model)
            accuracies.append(float(np.average(model.labels == y, weights=weight)))

    if template is not None:
        labels = labels_to_fit(template, np.arange(n_classes) if classes is None else classes)
        used_names = names if selects_by_name(template) else None
        fit = partial(_train_clones, labels, "given", template, used_names)
        cross_fit_all([(type(template).__name__, fit)])
        return models[0]
    # trials of large fits, then complete fits of the kinds with good trials
    recipes = partial(_list_recipes, split, n_classes, allow_missing, seed=seed)
    cross_fit_all([(recipe.kind, recipe.trial or recipe.fit) for recipe in recipes(None)])
    shape = next((model.shape for model in models if model.shape), None)
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
    other_svm_recipes = _list_svms(split)[1:] if recipes(shape)[-1].kind.startswith("svm") else []
    if other_svm_recipes and accuracies[len(recipes(shape)) - 1] >= max(accuracies) - MAX_SVM_LOSS:
        cross_fit_all([(recipe.kind, recipe.fit) for recipe in other_svm_recipes])
    return models[index_of_best(models, split)]._replace(shape=shape)


def index_of_best(models: Sequence[TrainedModel], split: ValidationSplit) -> int:
    """Get the index of the model with the smallest sum of error rate and calibrated Brier score.

    On few rows, error rates differ by chance. Brier scores vary less, but without calibration they
    underrate models with probabilities that are too cautious, such as forests.
    """
    rows = split.validation_rows
    y = split.y[rows]
    normalised_weight = split.weight[rows] / split.weight[rows].sum()
    criteria = []
    for model in models:
        calibrated_probabilities = _calibrate_probabilities(
            model.probabilities, y, normalised_weight
        )
        # sum_c (p_c - [c = y])^2
        brier_scores = (
            (calibrated_probabilities**2).sum(axis=1)
            - 2 * calibrated_probabilities[np.arange(len(y)), y]
            + 1.0
        )
        criteria.append(float(((model.labels != y) + brier_scores) @ normalised_weight))
    return int(np.argmin(criteria))


def _calibrate_probabilities(
    probabilities: NDArray[np.float64], y: NDArray[np.int64], normalised_weight: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Raise all probabilities to the power with the smallest log loss, and normalise them.

    Shapes: `probabilities` (n, n_classes), `y` (n,), `normalised_weight` (n,), weights that add up
    to 1.
    """
    log_probabilities = np.log(np.maximum(probabilities, MIN_UNCALIBRATED_PROBABILITY))

    def raise_to(log2_power: float) -> NDArray[np.float64]:
        return np.asarray(special.softmax(2.0**log2_power * log_probabilities, axis=1), np.float64)

    def log_loss(log2_power: float) -> float:
        label_probability = raise_to(log2_power)[np.arange(len(y)), y]
        return float(-np.log(np.maximum(label_probability, MIN_PROBABILITY)) @ normalised_weight)

    # powers from 1/8, for a model that is far too certain, to 8
    best_log2_power = optimize.minimize_scalar(log_loss, bounds=(-3.0, 3.0), method="bounded").x
    return raise_to(float(best_log2_power))


def tree_shape(split: ValidationSplit, n_classes: int, seed: int) -> TreeShape:
    """Find the shape of boosted trees with the smallest loss on validation rows."""
    shape = _train_best_shape(n_classes, seed, split).shape
    assert shape is not None
    return shape


_CrossFit = Callable[[ValidationSplit], TrainedModel]


@dataclass(frozen=True)
class _ModelRecipe:
    """Functions that fit one kind of model: the whole fit and, if there is one, a cheap trial."""

    kind: str
    fit: _CrossFit
    trial: _CrossFit | None = None


def _train_by_fit(fit: Fit[HighCostModel], split: ValidationSplit) -> TrainedModel:
    def predict_answers(model: HighCostModel, rows: Rows) -> NDArray[np.float64]:
        return np.column_stack(model.answers(split.x[rows]))

    model, unseen_predictions = cross_fit(split, fit, predict_answers)
    return TrainedModel(model, unseen_predictions[:, 0].astype(np.int64), unseen_predictions[:, 1:])


def _train_clones(
    labels: NDArray[Any],
    kind: str,
    template: Any,
    names: Sequence[str] | None,
    split: ValidationSplit,
) -> TrainedModel:
    """Cross-fit clones of a classifier; if `names` are given, it selects columns by them."""

    def fit(rows: Rows, _unseen_rows: Rows | None, _rounds: int | None) -> HighCostModel:
        x: Any = split.x[rows]
        if names is not None:
            import pandas as pd

            x = pd.DataFrame(x, columns=list(names))
        classifier = template
        if kind == "svm" and (halves := split_into_halves(split, rows)) is not None:
            classifier = clone(template).set_params(cv=halves)
        estimator = fit_clone(classifier, x, labels[split.y[rows]], split.weight[rows])
        model = HighCostModel.from_model(estimator, labels, x.shape[1])
        return model if model.estimator is None else replace(model, kind=kind)

    return _train_by_fit(fit, split)


def _train_boosting(
    n_classes: int, seed: int, shape: TreeShape | None, split: ValidationSplit
) -> TrainedModel:
    """Cross-fit boosted trees of a shape; without a shape, the best one on a trial's rows."""
    if shape is None:
        return _train_best_shape(n_classes, seed, split)
    model = _train_boosted_trees(n_classes, seed, _make_tree_params(shape), split)
    return model._replace(shape=shape)


def _train_forest(n_classes: int, seed: int, n_trees: int, split: ValidationSplit) -> TrainedModel:
    def fit(rows: Rows, unseen_rows: Rows | None, rounds: int | None) -> HighCostModel:
        x = split.x[rows]
        y = split.y[rows]
        weight = split.weight[rows]
        trees = fit_extra_trees(x, y, n_classes, weight=weight, n_trees=n_trees, seed=seed)
        return HighCostModel(np.arange(x.shape[1]), n_classes, "extra-trees", trees=trees)

    return _train_by_fit(fit, split)


def _train_forest_trial(n_classes: int, seed: int, split: ValidationSplit) -> TrainedModel:
    return _train_forest(n_classes, seed, N_TRIAL_TREES, _reduce_split(split, seed))


def _reduce_split(split: ValidationSplit, seed: int) -> ValidationSplit:
    """Reduce a split to as many training rows as a comparison of models needs."""
    return split.with_max_fit_rows(MAX_MEDIUM_ROWS, seed) if len(split.folds) == 1 else split


def _make_tree_params(shape: TreeShape) -> dict[str, Any]:
    bin_params = {} if shape.n_bins is None else {"max_bin": shape.n_bins}
    return {"num_leaves": shape.n_leaves, "learning_rate": shape.learning_rate} | bin_params


def _train_best_shape(n_classes: int, seed: int, split: ValidationSplit) -> TrainedModel:
    """Train boosted trees in one shape after the other, as long as the log loss falls.

    On more than 5,000 rows, the shapes have fewer and fewer leaves. The best number is 255 on
    Forest and 4 on the 349 features of HAPT, where 63 leaves lose 4 points of accuracy. On fewer
    rows, the second shape has more bins. 63 bins are better on MiniBooNE, but lose half a point of
    accuracy on Thyroid, which has sharp thresholds.
    """
    params = _choose_capacity(split, n_classes)
    rows = split.validation_rows
    split = _reduce_split(split, seed)
    max_leaves = params["num_leaves"]
    learning_rate = params["learning_rate"]
    default_bins = params.get("max_bin")
    candidates = [(n_leaves, default_bins) for n_leaves in LEAVES_TO_TRY if n_leaves <= max_leaves]
    if len(split.fit_rows) <= MAX_SMALL_ROWS:
        candidates = [(max_leaves, default_bins), (max_leaves, FINE_BINS)]
    best_model: TrainedModel | None = None
    smallest_loss = np.inf
    for n_leaves, n_bins in candidates:
        shape = TreeShape(n_leaves, learning_rate, n_bins)
        model = _train_boosted_trees(n_classes, seed, _make_tree_params(shape), split)
        label_probability = model.probabilities[np.arange(len(rows)), split.y[rows]]
        log_probability = np.log(np.maximum(label_probability, MIN_PROBABILITY))
        loss = float(np.average(-log_probability, weights=split.weight[rows]))
        if best_model is not None and loss >= smallest_loss:
            break
        best_model = model._replace(shape=shape)
        smallest_loss = loss
    assert best_model is not None
    return best_model


def _train_boosted_trees(
    n_classes: int,
    seed: int,
    param_changes: Mapping[str, Any],
    split: ValidationSplit,
    fixed_rounds: int | None = None,
) -> TrainedModel:
    """Cross-fit boosted trees with early stopping, or with a fixed number of rounds."""
    lightgbm_params = _choose_capacity(split, n_classes) | dict(param_changes)

    def fit(rows: Rows, unseen_rows: Rows | None, rounds: int | None) -> HighCostModel:
        columns = most_different_columns(split.x[rows], split.y[rows])
        # a slice avoids a copy if all columns are used
        used_columns = columns if len(columns) < split.x.shape[1] else slice(None)
        validation = None
        if unseen_rows is not None and fixed_rounds is None:
            validation = (
                split.x[unseen_rows][:, used_columns],
                *split.labels_and_weights(unseen_rows),
            )
        trees, n_rounds = fit_boosting(
            split.x[rows][:, used_columns],
            split.y[rows],
            n_classes,
            weight=split.weight[rows],
            validation=validation,
            max_rounds=fixed_rounds or rounds or MAX_ROUNDS,
            seed=seed,
            params=lightgbm_params,
        )
        return HighCostModel(columns, n_classes, "boosting", trees=trees, rounds=n_rounds)

    return _train_by_fit(fit, split)


def _choose_capacity(split: ValidationSplit, n_classes: int) -> dict[str, Any]:
    return capacity_params(len(split.fit_rows), n_classes, has_groups=split.has_groups)


def _list_recipes(
    split: ValidationSplit,
    n_classes: int,
    allow_missing: bool,
    shape: TreeShape | None,
    *,
    seed: int,
) -> list[_ModelRecipe]:
    """List the recipes to try; `shape` is the shape of boosted trees, once it is known."""
    is_large = len(split.fit_rows) > MAX_SMALL_ROWS
    is_very_large = len(split.fit_rows) > MAX_MEDIUM_ROWS
    boosting = partial(_train_boosting, n_classes, seed, shape)
    has_trial = is_very_large and len(split.folds) == 1
    recipes = [_ModelRecipe("boosting", boosting, boosting if has_trial else None)]
    if not is_large or split.has_groups:
        plain_boosting = partial(
            _train_boosted_trees, n_classes, seed, DEFAULT_PARAMS, fixed_rounds=DEFAULT_ROUNDS
        )
        recipes.append(_ModelRecipe("plain boosting", plain_boosting))
    if not is_large:
        random_boosting = partial(_train_boosted_trees, n_classes, seed, RANDOM_THRESHOLDS)
        recipes.append(_ModelRecipe("random boosting", random_boosting))
    if not allow_missing:
        n_trees = N_TREES_ON_MEDIUM_TABLES if is_large else N_TREES_ON_SMALL_TABLES
        if is_very_large:
            n_trees = N_TREES_ON_LARGE_TABLES
        forest = partial(_train_forest, n_classes, seed, n_trees)
        trial = partial(_train_forest_trial, n_classes, seed) if is_large else None
        recipes.append(_ModelRecipe("extra-trees", forest, trial))
        recipes += _list_svms(split)[:1]
    return recipes


def _list_svms(split: ValidationSplit) -> list[_ModelRecipe]:
    """List the SVMs with several scalers, if rows are few and have equal weights."""
    n_rarest = np.bincount(split.y[split.fit_rows]).min()
    has_equal_weights = np.ptp(split.weight) == 0  # scalers do not take weights
    is_small = len(split.fit_rows) <= MAX_SVM_ROWS and n_rarest >= 2 * len(split.folds)
    if not (is_small and has_equal_weights and has_halves(split)):
        return []
    labels = np.arange(int(split.y.max()) + 1)
    recipes = []
    for name, scaler in scalers():
        fit = partial(_train_clones, labels, "svm", calibrated_svm(scaler), None)
        recipes.append(_ModelRecipe(f"svm on {name}", fit))
    return recipes
