"""PairCascade: two given models, and a threshold on the margin of the low-cost model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_feature_names, check_is_fitted

from gatewise.columns.value_ranges import TrainingRanges
from gatewise.costs import CloudPrices, FeatureCosts, request_bytes
from gatewise.errors import InputError, one_line
from gatewise.formats import plural
from gatewise.models.instances import InstanceSpec
from gatewise.models.stage import Stage
from gatewise.operating_point import OperatingPoint
from gatewise_training.cascades.budgeted_model import MAX_LOSS
from gatewise_training.cascades.cascade import CascadeClassifier
from gatewise_training.cascades.pair_models import check_class_order, read_pair_models
from gatewise_training.cascades.recording import LabelledRows
from gatewise_training.data.input_checks import (
    check_costs,
    check_labels_known,
    feature_names,
    index_labels,
)
from gatewise_training.data.neighbouring_rows import warn_of_similar_neighbours
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.learners.given_models.given_classifiers import check_fitted
from gatewise_training.learners.given_models.raw_boosters import as_classifier
from gatewise_training.learners.high_cost_model import HighCostModel, is_given
from gatewise_training.operating_points.candidate_points import CalibrationRecords
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.frontier import Frontier
from gatewise_training.operating_points.group_losses import with_group_errors
from gatewise_training.operating_points.risk_tests import exact_interval

#: Smallest number of rows: half choose thresholds, the other half measure them.
MIN_ROWS = 40

#: Number of instances per call of the high-cost model, which limits its memory.
BATCH_ROWS = 256


@dataclass(eq=False, repr=False, kw_only=True)
class PairCascade(CascadeClassifier):
    """Two given models of any kind; an instance with a narrow low-cost margin is offloaded.

    Nothing is refitted. The stop score is the difference of the low-cost model's two largest
    margins or, for a binary model, the absolute value of its margin. Thresholds are learned on rows
    that neither model was trained on, labelled or not. Half of the rows, drawn at random, choose
    the thresholds. The other half measures cost, offload rate and accuracy of each threshold, with
    an exact (Clopper-Pearson) 95 % interval of the accuracy. These figures are therefore valid for
    new rows. Without labels, accuracy is the agreement with the high-cost model, and
    ``operating_point_.measured`` is "agreement".

    Parameters
    ----------
    low_cost_model, high_cost_model : fitted classifier, or path, bytes or OnnxModel of an ONNX file
        For boosters and their files see :class:`StagedCascade`. A classifier with the interface of
        scikit-learn gets flattened instances. An ONNX graph reads one tensor of numbers, with
        channels first or last, and returns logits or probabilities. These may be one column for two
        classes. A high-cost graph may return labels only. A graph must scale pixels itself. A
        high-cost model may also be a function or an import path, as for :class:`StagedCascade`.
    classes : array-like of shape (n_classes,), optional
        Labels in the order of the graphs' scores. They are needed if no model has labels and they
        are not 0, 1, ...
    feature_costs : FeatureCosts, optional
        Prices of the values of an instance; by default all values together cost 1.
    cloud_prices : CloudPrices, optional
        Prices of the cloud; by default a request costs 1.
    guarantee : float, optional
        Confidence of the bounds, which are certified on the rows that measure thresholds. For the
        bounds see :class:`.CascadeClassifier`.
    random_state : int, RandomState or None
        Source of the random split of the rows.
    allow_missing : bool, default False
        Whether both models accept NaN.
    class_weight : None
        Must be None, because nothing is fitted; use `min_recall` instead.

    Attributes
    ----------
    instance_ : InstanceSpec
        Shape and type of instances.
    low_cost_bytes_, request_bytes_ : int
        Sizes of the low-cost model and of a request with one instance.
    labelled_ : bool
        Whether the fit had labels. Otherwise accuracy is an agreement.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_digits(return_X_y=True)
    >>> small = LogisticRegression(C=0.01, max_iter=200).fit(X[:400], y[:400])
    >>> big = RandomForestClassifier(50, random_state=0).fit(X[:800], y[:800])
    >>> pair = PairCascade(low_cost_model=small, high_cost_model=big, random_state=0)
    >>> pair = pair.fit(X[800:])
    >>> pair.operating_point_.measured
    'agreement'
    >>> bool(pair.at(offload_rate=0.2).offload(X[800:]).mean() < 0.25)
    True
    """

    high_cost_model: Any = field(default=None, kw_only=True)
    low_cost_model: Any = None
    classes: Any = None
    allow_missing: bool = False

    # -- fit -------------------------------------------------------------------------------

    def fit(  # type: ignore[override]  # needs no labels, and takes no weights
        self,
        X: ArrayLike,
        y: ArrayLike | None = None,
        *,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Learn the frontier of thresholds; neither model is refitted.

        Parameters
        ----------
        X : array-like of shape (n, ...)
            Rows that neither model was trained on, at least 40.
        y : array-like of shape (n,), optional
            Their labels.
        groups : array-like of shape (n,), optional
            Subject, machine or recording of each row. Each group either chooses or measures
            thresholds, which makes the figures valid for new groups.
        time : array-like of shape (n,), optional
            Numbers or dates. Earlier rows choose thresholds, later rows measure them.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If a model cannot be used, or does not match the rows or the other model, or if a label
            is not among the classes.
        """
        self._check_settings()
        if self.class_weight is not None:
            raise InputError("class_weight is for fits, but a pair fits no model: use min_recall")
        # check and read the models
        self._low_cost_model = as_classifier(self.low_cost_model, "low_cost_model")
        check_fitted(self._low_cost_model, "low_cost_model")
        if self._high_cost_model is None or not is_given(self._high_cost_model):
            check_fitted(self._high_cost_model, "high_cost_model")
        check_labels_known(y)
        x = self._read_fit_rows(X)
        models = read_pair_models(
            self._low_cost_model,
            self._high_cost_model,
            x,
            y,
            shape=self.instance_.shape,
            classes=self.classes,
            feature_names=getattr(self, "feature_names_in_", None),
            allow_missing=self.allow_missing,
        )
        self.classes_ = models.classes
        self.high_cost_model_ = high_cost_model = models.high_cost_model
        stage = models.stage
        self.class_weights_ = None
        self._set_bounds()
        self._check_prices()
        # split the rows: half tune the thresholds, half measure them
        splitter = RowSplitter.from_arrays(len(x), groups, time)
        shuffled_rows = splitter.order(check_random_state(self.random_state))
        tuning_rows, measuring_rows = splitter.cut(shuffled_rows, 1, 2)
        # without labels, the answers of the high-cost model are the truth
        self.labelled_ = y is not None
        class_indices = (
            _label_in_batches(high_cost_model, x) if y is None else self._index_labels(y, len(x))
        )
        self._check_guarantee(class_indices[measuring_rows], splitter.take(measuring_rows))
        reference_labels = class_indices if y is None else _label_in_batches(high_cost_model, x)
        if models.assumes_order and y is not None:
            check_class_order(models.classes, reference_labels, class_indices)
        if splitter.is_random and y is not None:  # without labels, rows sorted by class would warn
            warn_of_similar_neighbours(x, class_indices)
        outputs = stage.margins(x)

        def record_rows(rows: NDArray[np.intp]) -> CascadeRecord:
            labelled_rows = LabelledRows(
                class_indices[rows], np.ones(len(rows)), reference_labels[rows], splitter.take(rows)
            )
            acquired_features = stage.acquired(x[rows])
            return self._record_cascade(
                (stage,), (outputs[rows],), (acquired_features,), labelled_rows
            )

        self._measure_thresholds(stage, record_rows(tuning_rows), record_rows(measuring_rows))
        return self

    def _measure_thresholds(
        self, stage: Stage, tuning_record: CascadeRecord, measuring_record: CascadeRecord
    ) -> None:
        """Choose thresholds on the tuning record; measure them on the measuring record."""
        self.__dict__.pop("operating_point_", None)
        self.chains_ = ((stage,),)
        points = self._tune_points([tuning_record])
        frontier = Frontier.from_points(points, **self._make_reference_fields(tuning_record))
        max_loss = self._goal().get("max_loss", MAX_LOSS)
        self._tuned_frontier = with_group_errors(frontier, points, [tuning_record], max_loss)
        self._measured_points = {
            point: self._measure(measuring_record, point.thresholds)
            for point in self._tuned_frontier.all_points
        }
        points = [self._measured_points[point] for point in self._tuned_frontier.points]
        self.frontier_ = Frontier(tuple(points), **self._make_reference_fields(measuring_record))
        self.calibration_ = None
        if self.guarantee is not None:
            self.calibration_ = CalibrationRecords(
                (tuning_record,), (measuring_record,), self.guarantee
            )
        self._activate(self._choose_by_settings())

    def _measure(self, record: CascadeRecord, thresholds: Sequence[float | None]) -> OperatingPoint:
        """Measure thresholds as an operating point, with the interval of its accuracy."""
        point = record.measure(thresholds)
        n_rows = len(record.weights)
        # the exact interval of independent rows, widened if groups differ more
        low, high = exact_interval(round(point.accuracy * n_rows), n_rows)
        if (n_groups := record.splitter.n_groups) is not None and n_groups > 1:
            correctness = record.correctness[record.exits(point.thresholds), np.arange(n_rows)]
            # convert the error from a normal quantile to Student's quantile
            accuracy_error = record.splitter.clustered_error(
                (correctness - point.accuracy) / n_rows
            )
            accuracy_error *= stats.t.ppf(0.975, n_groups - 1) / stats.t.ppf(
                stats.norm.cdf(1.0), n_groups - 1
            )
            low = min(low, max(point.accuracy - float(accuracy_error), 0.0))
            high = max(high, min(point.accuracy + float(accuracy_error), 1.0))
        return msgspec.structs.replace(point, interval=(low, high), measured=self._measured_figure)

    @property
    def _measured_figure(self) -> Literal["accuracy", "agreement"]:
        return "accuracy" if self.labelled_ else "agreement"

    def _choose(self, **goal: float | None) -> OperatingPoint:
        """Pick a threshold by its figures on tuning rows; return its point on measuring rows."""
        if self.calibration_ is not None:
            point = self._find_certified_point(self._tuned_frontier, self.calibration_, **goal)
            return msgspec.structs.replace(point, measured=self._measured_figure)
        tuned_point, self.choice_ = self._tuned_frontier.choose(
            self.class_bounds_, self.max_bytes_, slack=self.slack_, **goal
        )
        return self._measured_points[tuned_point]

    def _cap_cost(self, max_cost: float) -> None:
        self._tuned_frontier = self._tuned_frontier.within_cost(max_cost)
        points = tuple(self._measured_points[point] for point in self._tuned_frontier.points)
        self.frontier_ = replace(self.frontier_, points=points)
        self.max_instance_cost_ = float(max_cost)

    # -- rows ------------------------------------------------------------------------------

    def _read_fit_rows(self, X: Any) -> NDArray[np.float32]:
        """Read the rows of the fit, and set the shape and type of instances from them."""
        self.instance_, x = InstanceSpec.of_rows(X, allow_missing=self.allow_missing)
        if len(x) < MIN_ROWS:
            row_count = plural(len(x), "row")
            raise InputError(
                f"{row_count}, but a threshold needs at least {MIN_ROWS}: give more rows"
            )
        spec = self.instance_
        self.n_features_in_ = x.shape[1]
        # all values of an array have one range
        is_array = len(spec.shape) > 1 or spec.dtype != "float32"
        self.training_ranges_ = TrainingRanges.of_rows(x.reshape(-1, 1) if is_array else x)
        self._check_names(X, reset=True)
        self.feature_names_ = feature_names(self) if len(spec.shape) == 1 else tuple(spec.names)
        return x

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        if hasattr(X, "columns"):
            self._check_names(X, reset=False)
        return self.instance_.flat(X, allow_missing=self.allow_missing)

    def _check_names(self, X: Any, *, reset: bool) -> None:
        """Set the names of the columns with `reset`, or else check their names and order."""
        try:
            _check_feature_names(self, X, reset=reset)
        except (TypeError, ValueError) as error:
            raise InputError(one_line(error)) from None

    def _check_prices(self) -> None:
        """Set the prices of the values and of the cloud; by default each of the two costs 1."""
        n_features = self.n_features_in_
        names = self.feature_names_
        price_of_instance = FeatureCosts(
            [0.0] * n_features, group=["instance"] * n_features, shared={"instance": 1.0}
        )
        has_names = hasattr(self, "feature_names_in_")
        self.feature_costs_ = check_costs(
            price_of_instance if self.feature_costs is None else self.feature_costs,
            names,
            has_names,
        )
        prices = self.cloud_prices or CloudPrices(request=1.0)
        self.cloud_prices_ = msgspec.structs.replace(prices, item_size=self.instance_.item_size)

    def _index_labels(self, y: ArrayLike, n_rows: int) -> NDArray[np.int64]:
        label_list = np.asarray(y).ravel().tolist()
        if len(label_list) != n_rows:
            raise InputError(
                f"X has {n_rows} rows but y has {len(label_list)} labels: give one for each row"
            )
        return index_labels(
            label_list,
            self.classes_,
            "y has the label {}, which is not a class of the models: "
            f"{self.classes_.tolist()[:8]}; classes= names them in the order of their scores",
        )

    @property
    def low_cost_bytes_(self) -> int:
        """Bytes of the low-cost model."""
        return self.stages_[0].nbytes

    @property
    def request_bytes_(self) -> int:
        """Bytes of a request with one instance, before compression."""
        return request_bytes(self.n_features_in_, item_size=self.instance_.item_size)


def _label_in_batches(high_cost_model: HighCostModel, x: NDArray[np.float32]) -> NDArray[np.int64]:
    """Get the class indices of the high-cost model, (n,), in batches."""
    return np.concatenate(
        [
            high_cost_model.labels(x[start : start + BATCH_ROWS])
            for start in range(0, len(x), BATCH_ROWS)
        ]
    )
