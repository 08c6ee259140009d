"""Base of the cascades: stages on the device before a high-cost model in the cloud."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils._param_validation import StrOptions

from gatewise.costs import CloudPrices, CostsLike
from gatewise.errors import InputError, one_line, warn_caller
from gatewise.operating_point import OperatingPoint
from gatewise_signals.blocks.block import Block
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.cascades.fit_problem import FitProblem, UnseenAnswers
from gatewise_training.data.input_checks import (
    AT_LEAST_1,
    NOT_NEGATIVE,
    UNIT_INTERVAL,
    Constraints,
    FitArguments,
    TrainingTable,
    Validation,
    is_fitted,
)
from gatewise_training.learners.given_models.given_classifiers import check_conversion
from gatewise_training.learners.given_models.given_model_check import (
    can_be_cloned,
    find_suspicious_accuracy,
    unseen_answers,
)
from gatewise_training.learners.given_models.packable import check_packable
from gatewise_training.learners.given_models.raw_boosters import as_classifier
from gatewise_training.learners.high_cost_model import HighCostModel, is_given
from gatewise_training.learners.high_cost_training import train_high_cost_model


@dataclass(eq=False, repr=False, kw_only=True)
class CascadeClassifier(BudgetedClassifier):
    """Base of the cascades, with their common settings.

    ``high_cost_model_`` is never None. :meth:`offload` marks the rows that go to it, and an
    operating point may be picked by `offload_rate`.

    Parameters
    ----------
    high_cost_model : classifier, ONNX file, function, or None
        A fitted classifier of scikit-learn, LightGBM, XGBoost or CatBoost is used as it is, and an
        unfitted classifier is fitted. None trains the best of boosted trees, extra-trees and an
        RBF-SVM. An ONNX file is given as a path or an :class:`.OnnxModel`. A ``Booster`` of
        LightGBM or XGBoost, or a booster's file (.txt, .json, .ubj, .cbm), has the classes 0, 1,
        ... and is never refitted. Other sources of probabilities are not packed, and a worker runs
        them as a backend: a function of the rows, an object or class with ``predict_proba``, or
        ``"python:module:attribute"``.
    feature_costs : FeatureCosts, dict or Series by name, or list, optional
        Prices; 1 per feature by default.
    cloud_prices : CloudPrices, optional
        Price of a request, of its bytes and of an evaluation; 0 by default.
    budget : float, optional
        Mean cost per instance that may be spent.
    max_loss : float, or mapping of class label to float, default 0.01
        Largest loss of accuracy against the high-cost model. Without a budget, the cheapest
        operating point within this loss is active. A mapping such as ``{"fault": 0.05}`` bounds the
        loss of recall by class, and its key None the loss of accuracy.
    offload_rate : float, optional
        Share of instances that may go to the cloud, instead of a budget.
    min_recall, min_precision : mapping of class label to float, optional
        Smallest recall and precision of classes, such as ``{"fault": 0.9}``, in addition to the
        goal.
    class_weight : mapping of class label to float, or "balanced", optional
        Weight of a row of each class in fits, thresholds and frontier. Accuracies are then
        weighted. With "balanced" all classes have the same total weight. A fitted `high_cost_model`
        does not change.
    guarantee : float, optional
        Confidence, such as 0.95, with which the goal and the bounds on classes hold on new
        instances. Some rows are set aside to certify it
        (:mod:`gatewise_training.operating_points.guarantee`).
    max_bytes : int, optional
        Largest total size in bytes of the stages' tables on a device, as :func:`.to_c` writes them
        with floats. The stages and the sizes of their trees are chosen on validation rows.
    max_instance_cost : float, optional
        Largest cost that an instance of any values may have: the features of the stages that it
        visits, the features of the high-cost model and the price of an offload. Devices also
        enforce this bound. `budget` bounds the mean cost instead.
    random_state : int, RandomState or None
        Source of the random choices; an int makes a fit repeatable.
    """

    #: Whether a fitted high-cost model may have seen the training rows.
    _may_have_seen_rows = False

    high_cost_model: Any = field(default=None, kw_only=False)
    feature_costs: CostsLike | None = field(default=None, kw_only=False)
    cloud_prices: CloudPrices | None = None
    budget: float | None = None
    max_loss: float | Mapping[Any, float] | None = 0.01
    offload_rate: float | None = None
    min_recall: Mapping[Any, float] | None = None
    min_precision: Mapping[Any, float] | None = None
    class_weight: Mapping[Any, float] | Literal["balanced"] | None = None
    guarantee: float | None = None
    max_bytes: int | None = None
    max_instance_cost: float | None = None
    random_state: Any = None

    _parameter_constraints: ClassVar[Constraints] = {
        "max_loss": [UNIT_INTERVAL, Mapping, None],
        "max_bytes": [AT_LEAST_1, None],
        "max_instance_cost": [NOT_NEGATIVE, None],
    }

    def _check_settings(self) -> None:
        super()._check_settings()
        if self.budget is not None and self.offload_rate is not None:
            raise InputError("give budget or offload_rate, not both")
        # the setting as a classifier; `high_cost_model_` is the fitted model
        self._high_cost_model = as_classifier(self.high_cost_model)
        if self._high_cost_model is not None:
            check_packable(self._high_cost_model, as_library_file=True)

    def _goal(self) -> dict[str, float]:
        if self.offload_rate is not None:
            return {"offload_rate": self.offload_rate}
        return super()._goal()

    # -- the fit -----------------------------------------------------------------------------

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: Validation | None = None,
        high_cost_predictions: ArrayLike | None = None,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Fit all models and find the whole frontier.

        A fitted `high_cost_model` may have seen the rows, and its accuracy on them is then too
        high. It is measured on `validation` rows, by its `high_cost_predictions`, or else by clones
        that are fitted without the rows. A model that cannot be cloned (an ONNX file, a function, a
        frozen classifier) is compared with Gatewise's own models on the same rows. A warning
        says if only memory of the rows explains its accuracy. The given model is always deployed,
        never a clone.

        Searches of scikit-learn, such as ``GridSearchCV(...).fit(X, y, groups=g)``, pass groups
        only to their splitter. Each of their fits therefore runs without groups.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Numbers, which become float32; with `blocks`, windows of shape (n, ...).
        y : array-like of shape (n,)
            Class labels.
        sample_weight : array-like of shape (n,), optional
            Weight of each row; 1 by default.
        validation : pair (X_val, y_val), or with groups (X_val, y_val, groups_val), optional
            Validation rows. By default some rows are held out; if there are few rows, models are
            cross-fitted instead.
        high_cost_predictions : array-like of shape (n, n_classes), optional
            Out-of-fold probabilities of `high_cost_model`, columns by sorted class.
        groups : array-like of shape (n,), optional
            Subject, machine or recording of each row. Every split keeps groups whole, and
            `max_loss` and a guarantee are about new groups. A `high_cost_model` that splits rows
            itself, such as a grid search, gets no groups.
        time : array-like of shape (n,), optional
            Numbers or dates. The latest fifth of the rows are validation rows.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If data, prices, settings or a model cannot be used; the message says which and why.
        """
        return self._fit_rows(
            FitArguments(
                X, y, sample_weight, validation, high_cost_predictions, groups=groups, time=time
            )
        )

    def _with_high_cost_model(self, problem: FitProblem, table: TrainingTable) -> FitProblem:
        """Add the answers of the high-cost model to a problem, after training it if needed."""
        model = self._high_cost_model
        # a fixed model is used as it is; any other model is trained
        is_fixed = model is not None and (is_given(model) or is_fitted(model))
        self._may_have_seen_rows = is_fixed and table.validation is None
        if problem.calibration is not None:
            self._check_can_certify(**self._goal())
        find_answers = self._use_given_model if is_fixed else self._train_high_cost
        high_cost = find_answers(problem, table)
        # the best shape of trees on raw windows need not be the best on features
        tree_shape = None if self._cloud_reads_windows else high_cost.tree_shape
        return replace(problem, high_cost=high_cost, tree_shape=tree_shape)

    def _train_high_cost(self, problem: FitProblem, table: TrainingTable) -> UnseenAnswers:
        """Train a high-cost model, or fit the user's unfitted model."""
        if table.high_cost_probabilities is not None:
            raise InputError(
                "high_cost_predictions are the answers of a fitted high_cost_model: give it as well"
            )
        problem.report_progress(0, 1, "high-cost model")
        trained_model = train_high_cost_model(
            problem.cloud_split,
            problem.n_classes,
            template=self._high_cost_model,
            classes=self.classes_,
            names=getattr(self, "feature_names_in_", None),
            allow_missing=self.allow_missing,
            seed=problem.seed,
            report_step=lambda step_name: problem.report_progress(0, 1, step_name),
        )
        if self.high_cost_model is not None and trained_model.model.estimator is not None:
            check_conversion(
                trained_model.model, problem.cloud_split.x, allow_missing=self.allow_missing
            )
        return UnseenAnswers(
            trained_model.model,
            trained_model.labels,
            trained_model.probabilities,
            tree_shape=trained_model.shape,
        )

    def _use_given_model(self, problem: FitProblem, table: TrainingTable) -> UnseenAnswers:
        """Get answers of a given model, which is never refitted, on rows that it has not seen."""
        split = problem.cloud_split
        model = HighCostModel.from_model(
            self._high_cost_model,
            self.classes_,
            split.x.shape[1],
            getattr(self, "feature_names_in_", None),
            self.signal_input_.shape if self._cloud_reads_windows else None,
        )
        if model.estimator is not None:
            check_conversion(model, split.x, allow_missing=self.allow_missing)
        # use predictions, validation rows or clones, or else a comparison
        if table.high_cost_probabilities is not None:
            return self._use_predictions(model, problem, table, table.high_cost_probabilities)
        if table.validation is not None:
            return UnseenAnswers(model, *model.answers(split.x[split.validation_rows]))
        if not can_be_cloned(self._high_cost_model):
            return self._use_own_answers(model, problem, "it cannot be cloned")
        try:
            return self._predict_by_clones(model, problem)
        except Exception as error:  # a fit of the user's classifier may raise anything
            clone_problem = f"clones of it cannot be fitted ({one_line(error)})"
        return self._use_own_answers(model, problem, clone_problem)

    def _use_predictions(
        self,
        model: HighCostModel,
        problem: FitProblem,
        table: TrainingTable,
        predictions: NDArray[np.float64],
    ) -> UnseenAnswers:
        """Use the user's out-of-fold probabilities of the training rows."""
        split = problem.cloud_split
        rows = split.validation_rows
        if table.validation is not None:
            labels, validation_predictions = model.answers(split.x[len(table.x) :])
            predictions = np.concatenate([predictions, validation_predictions])
        else:
            labels = np.asarray(predictions[rows].argmax(axis=1), np.int64)
        calibration = problem.calibration
        calibration_labels = None
        if calibration is not None and calibration.high_cost_probabilities is not None:
            calibration_labels = np.asarray(
                calibration.high_cost_probabilities.argmax(axis=1), np.int64
            )
        return UnseenAnswers(model, labels, predictions[rows], predictions, calibration_labels)

    def _predict_by_clones(self, model: HighCostModel, problem: FitProblem) -> UnseenAnswers:
        """Use the answers of clones that are fitted without the rows and without class weights."""
        split = problem.cloud_split.without_class_weights()
        labels, class_probabilities, calibration_labels = unseen_answers(
            split,
            self._high_cost_model,
            self.classes_,
            problem.cloud_calibration,
            report_step=lambda step_name: problem.report_progress(0, 1, step_name),
        )
        row_probabilities = None
        if len(split.folds) > 1:
            row_probabilities = np.empty_like(class_probabilities)
            row_probabilities[split.validation_rows] = class_probabilities
        return UnseenAnswers(
            model, labels, class_probabilities, row_probabilities, calibration_labels
        )

    def _use_own_answers(
        self, model: HighCostModel, problem: FitProblem, clone_problem: str
    ) -> UnseenAnswers:
        """Use the model's own answers; warn if only memory of the rows explains their accuracy."""
        split = problem.cloud_split
        rows = split.validation_rows
        all_labels, class_probabilities = model.answers(split.x)
        labels = all_labels[rows]
        problem.report_progress(0, 1, "reference for high_cost_model")
        accuracy = find_suspicious_accuracy(
            split, labels, allow_missing=self.allow_missing, seed=problem.seed
        )
        if accuracy is not None:
            warn_caller(
                f"high_cost_model is right on {accuracy.of_model:.1%} of these rows, and the best "
                f"of Gatewise's models on {accuracy.of_reference:.1%} of rows that it has not "
                f"seen: it may remember them, and {clone_problem}. If it does, all accuracies are "
                "too high, and too few instances are answered on the device. Give rows that it has "
                "not seen, validation=(X_val, y_val), or its out-of-fold probabilities, "
                "high_cost_predictions="
            )
        return UnseenAnswers(model, labels, class_probabilities[rows], class_probabilities)

    # -- the fitted system -------------------------------------------------------------------

    def offload(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Mark the rows that go to the high-cost model.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of bool, shape (n,)
        """
        return np.equal(self.exit_stage(X), len(self.stages_))

    def _choose(self, **goal: float | None) -> OperatingPoint:
        if self.calibration_ is not None:
            self._check_can_certify(**goal)
        return super()._choose(**goal)

    def _check_can_certify(self, **goal: float | None) -> None:
        """Refuse bounds on the answers if the high-cost model may have seen the rows."""
        bounds_answers = goal.get("max_loss") is not None or bool(self.class_bounds_)
        if self._may_have_seen_rows and bounds_answers:
            raise InputError(
                "guarantee: a fitted high_cost_model may have seen the rows that would certify "
                "max_loss, min_recall or min_precision; give validation=(X_val, y_val) with rows "
                "that it has not seen, give the model unfitted, or bound budget or offload_rate"
            )


@dataclass(eq=False, repr=False, kw_only=True)
class WindowSettings:
    """Settings of cascades that can compute features from windows of a signal, or pictures.

    Parameters
    ----------
    blocks : sequence of Block, optional
        Blocks that compute features from windows of a signal, or pictures
        (:mod:`gatewise_signals`). Each block has a price, or is measured at the fit in
        microseconds. Rows are an array, such as (n, samples, channels), or a list of arrays
        or DataFrames of equal length.
    high_cost_input : {"features", "window"}, default "features"
        Input of the high-cost model if there are `blocks`. With "window", a classifier reads
        flattened windows, and an ONNX graph reads windows in their shape. A request then carries
        the raw window in its type (at most 128 KiB), and no block is computed for it.
    """

    blocks: Sequence[Block] | None = None
    high_cost_input: Literal["features", "window"] = "features"

    _parameter_constraints: ClassVar[Constraints] = {
        "high_cost_input": [StrOptions({"features", "window"})]
    }

    def _check_settings(self) -> None:
        # the method of the estimator class that follows in the MRO
        super()._check_settings()  # type: ignore[misc]
        if self.high_cost_input != "features" and self.blocks is None:
            raise InputError(
                f"high_cost_input={self.high_cost_input!r} needs blocks: rows are not windows"
            )
