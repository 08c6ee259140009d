"""CEGBRanker: boosted trees that rank the documents of a query under feature cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_random_state

from gatewise.errors import InputError
from gatewise_training.cegb.base import ScoredModel
from gatewise_training.cegb.objectives import RankingTarget
from gatewise_training.data.input_checks import check_values
from gatewise_training.data.metrics import average_precision_at
from gatewise_training.data.row_splitter import check_row_values
from gatewise_training.data.validation_split import unit_folds, validation_after_training


@dataclass(eq=False, repr=False, kw_only=True)
class CEGBRanker(ScoredModel):
    """Cost-efficient gradient boosting for ranking, by Average Precision@5.

    Peter, Diego, Hamprecht & Nadler, NIPS 2017, section 3.

    The ranker works like :class:`CEGBClassifier`, but uses the paper's Average Precision@5
    (:func:`gatewise_training.data.metrics.average_precision_at`) instead of accuracy. `frontier_`
    relates it to the mean cost per document of the validation queries, and `max_loss` is a loss of
    Average Precision@5. The trees learn the grades by squared error, as in the paper. A document is
    relevant if its grade is above 0. All documents of a query are in the same fold.

    Parameters
    ----------
    feature_costs, accounting, coupled_costs, budget, budget_counts, max_loss, penalty_split
        As for :class:`CEGBClassifier`.
    penalties, n_penalties, prefixes, growth
        As for :class:`CEGBClassifier`.
    n_rounds, patience, num_leaves, max_depth, learning_rate, newton
        As for :class:`CEGBClassifier`. The defaults are 15 leaves and a learning rate of 0.1 for
        any number of rows, because grades are noisy.
    allow_missing, random_state
        As for :class:`CEGBClassifier`.

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
