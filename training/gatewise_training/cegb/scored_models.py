"""CEGBRegressor and CEGBRanker: boosted trees of values and of rankings under feature cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from threadpoolctl import threadpool_limits

from gatewise.console import progress
from gatewise.costs import CloudPrices
from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise.operating_point import OperatingPoint
from gatewise_training.cegb.base import CostEfficientModel
from gatewise_training.cegb.objectives import RankingTarget, Target, ValueTarget
from gatewise_training.cegb.sweep import Folds
from gatewise_training.data.input_checks import Validation, check_values
from gatewise_training.data.metrics import average_precision_at
from gatewise_training.data.row_splitter import check_row_values, check_splits
from gatewise_training.data.validation_split import (
    default_folds,
    unit_folds,
    validation_after_training,
)
from gatewise_training.operating_points.frontier import Frontier


class ScoredModel(CostEfficientModel):
    """Base class of the regressor and the ranker; `accuracy` of their points is the score."""

    high_cost_model_ = None
    cloud_prices_ = CloudPrices()

    def _fit_frontier(
        self,
        x: NDArray[np.float32],
        target: Target,
        folds: Folds,
        seed: int,
        groups: NDArray[np.int64] | None = None,
    ) -> None:
        """Fit the models of all penalties, and keep the models on the frontier."""
        self._measure_ranges(x, x)
        self._check_costs()
        title = f"fit {type(self).__name__}"
        # one thread per fit, because joblib runs several fits at a time
        with threadpool_limits(1), progress(title) as report_progress:
            fits = self._sweep(x, target, folds, self.feature_costs_, seed, report_progress)
        points = [
            OperatingPoint(
                thresholds=(ALWAYS_STOP,),
                cost=fit.cost + self._counts_splits * fit.evaluation_cost,
                accuracy=fit.score,
                offload_rate=0.0,
                accuracy_error=fit.error_against(fits[-1], groups),
                validation_groups=None if groups is None else len(np.unique(groups)),
                trees=float(fit.stage.n_trees),
                nbytes=fit.stage.nbytes,
                chain=index,
            )
            for index, fit in enumerate(fits)
        ]
        frontier = Frontier.from_points(points, reference_accuracy=fits[-1].score)
        self._set_frontier([(fit.stage,) for fit in fits], frontier)
        self.operating_point_ = self._choose_by_settings()

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Get the index of the stage that answers each row, which is always 0.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of int64, shape (n,)
        """
        return np.zeros(len(self._rows(X)), np.int64)

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:
        """Predict the value of each row or, when ranking, the score of each document.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self.stages_[0].margins(self._rows(X))[:, 0].astype(np.float64)

    def cost(self, X: ArrayLike) -> NDArray[np.float64]:
        """Compute the cost of each row, in the unit of the feature costs.

        With `budget_counts` "total" it includes the prices of splits and `coupled_costs`.

        Parameters
        ----------
        X : array-like of shape (n, n_features)

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        return self._compute_report_costs(X)


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBRegressor(RegressorMixin, ScoredModel):
    """Cost-efficient gradient boosting of measured values, by squared error.

    Peter, Diego, Hamprecht & Nadler, NIPS 2017, section 3.

    The regressor works like :class:`CEGBClassifier`, but uses R² instead of accuracy. `frontier_`
    relates R² to the mean cost on validation rows, and `max_loss` is a loss of R².

    Further parameters: :class:`.CostEfficientModel`.

    Parameters
    ----------
    penalties : sequence of float, optional
        Share of half the variance of the values that a feature of mean price must explain. By
        default the penalties are searched.
    num_leaves, learning_rate
        The defaults are 31 leaves and a learning rate of 0.1 for any number of rows.

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = CEGBRegressor(budget=5.0, penalties=(0.03,), n_rounds=20, random_state=0)
    >>> model = model.fit(X, y)
    >>> bool(model.operating_point_.cost <= 5.0 and model.operating_point_.accuracy > 0.2)
    True
    """

    num_leaves: int | None = 31
    learning_rate: float | None = 0.1

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: Validation | None = None,
        groups: ArrayLike | None = None,
        time: ArrayLike | None = None,
    ) -> Self:
        """Fit the models of all penalties and find the frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features, converted to float32.
        y : array-like of shape (n,)
            Measured values.
        sample_weight, validation, groups, time
            As for :meth:`StagedCascade.fit`.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data, prices or budget are invalid. The message names the cause.
        """
        self._check_settings()
        x, target_values = check_values(self, X, y)
        weight, validation, splitter = check_splits(x, sample_weight, groups, time, validation)
        has_weight = weight > 0
        x = x[has_weight]
        target_values = target_values[has_weight]
        weight = weight[has_weight]
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        if validation is None and splitter.is_random:
            folds = unit_folds(np.arange(len(x)), seed)
        elif validation is None:
            folds = default_folds(splitter, None, seed)
        else:
            x_val, y_val = check_values(self, *validation, reset=False)
            folds = validation_after_training(len(x), len(x_val))
            x = np.concatenate([x, x_val])
            target_values = np.concatenate([target_values, y_val])
            weight = np.concatenate([weight / weight.mean(), np.ones(len(x_val))])
        validation_groups = None
        if splitter.groups is not None:
            validation_groups = splitter.groups[np.concatenate([rows for _, rows in folds])]
        target = ValueTarget.standardised(target_values, weight)
        self._fit_frontier(x, target, folds, seed, validation_groups)
        return self


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBRanker(ScoredModel):
    """Cost-efficient gradient boosting for ranking, by Average Precision@5.

    Peter, Diego, Hamprecht & Nadler, NIPS 2017, section 3.

    The ranker works like :class:`CEGBClassifier`, but uses the paper's Average Precision@5
    (:func:`gatewise_training.data.metrics.average_precision_at`) instead of accuracy. `frontier_`
    relates it to the mean cost per document of the validation queries, and `max_loss` is a loss of
    Average Precision@5. The trees learn the grades by squared error, as in the paper. A document is
    relevant if its grade is above 0. All documents of a query are in the same fold.

    Further parameters: :class:`.CostEfficientModel`.

    Parameters
    ----------
    num_leaves, learning_rate
        The defaults are 15 leaves and a learning rate of 0.1 for any number of rows, because grades
        are noisy.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, qid = rng.normal(size=(400, 6)), np.repeat(np.arange(40), 10)
    >>> y = (X[:, 0] + X[:, 1] + rng.normal(size=400) > 0.5).astype(int)
    >>> ranker = CEGBRanker(budget=4.0, penalties=(0.05,), n_rounds=20, random_state=0)
    >>> ranker = ranker.fit(X, y, qid=qid)
    >>> bool(ranker.score(X, y, qid=qid) > 0.4)
    True
    """

    num_leaves: int | None = 15
    learning_rate: float | None = 0.1

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        *,
        qid: ArrayLike | None = None,
        validation: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit the models of all penalties and find the frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Features of the documents, converted to float32.
        y : array-like of shape (n,)
            Relevance grades: whole numbers, where 0 means irrelevant.
        qid : array-like of shape (n,)
            Query of each document. The documents of a query need not be adjacent.
        validation : triple (X_val, y_val, qid_val), optional
            Validation queries. By default, up to 5,000 documents are cross-fitted in five folds,
            and every query is used for validation. If there are more documents, a fifth of the
            queries is used for validation.

        Returns
        -------
        self

        Raises
        ------
        InputError
            If the data, queries, prices or budget are invalid. The message names the cause.
        """
        self._check_settings()
        x, grades = check_values(self, X, y)
        queries = _number_queries(len(x), qid)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        # the documents of a query become adjacent
        rows_by_query = np.argsort(queries, kind="stable")
        x = x[rows_by_query]
        grades = grades[rows_by_query]
        queries = queries[rows_by_query]
        if validation is not None:
            if not isinstance(validation, tuple | list) or len(validation) != 3:
                raise InputError("validation must be a triple (X_val, y_val, qid_val)")
            x_val, grades_val = check_values(self, *validation[:2], reset=False)
            queries_val = _number_queries(len(x_val), validation[2])
            validation_rows = np.argsort(queries_val, kind="stable")
            folds = validation_after_training(len(x), len(x_val))
            x = np.concatenate([x, x_val[validation_rows]])
            grades = np.append(grades, grades_val[validation_rows])
            queries = np.append(queries, queries.max() + 1 + queries_val[validation_rows])
        else:
            folds = unit_folds(queries, seed)
        target = RankingTarget.of_grades(_check_grades(grades), queries)
        self._fit_frontier(x, target, folds, seed)
        return self

    def score(self, X: ArrayLike, y: ArrayLike, *, qid: ArrayLike | None = None) -> float:
        """Compute the Average Precision@5, averaged over queries.

        Parameters
        ----------
        X, y, qid
            As for :meth:`fit`.

        Returns
        -------
        float
        """
        scores = self.predict(X)
        return average_precision_at(scores, np.asarray(y) > 0, _number_queries(len(scores), qid))


def _number_queries(n_rows: int, qid: ArrayLike | None) -> NDArray[np.int64]:
    """Number the queries from 0; return the number of each document's query, shape (n,)."""
    if qid is None:
        raise InputError("a ranking needs queries: give qid, the query of each document")
    if np.shape(qid) != (n_rows,):
        raise InputError(f"qid must have shape ({n_rows},), not {np.shape(qid)}")
    query_names = check_row_values("qid", qid, n_rows)
    return np.unique(query_names, return_inverse=True)[1].astype(np.int64)


def _check_grades(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Convert relevance grades to integers, and refuse invalid ones."""
    is_invalid = (values < 0) | (values != np.floor(values))
    if is_invalid.any():
        raise InputError(
            f"relevance must be whole numbers of at least 0, not {values[is_invalid][0]:g}"
        )
    return values.astype(np.int64)
