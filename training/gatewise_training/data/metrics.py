"""Average Precision@k of a ranking, as the papers on feature cost define it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError


def average_precision_at(
    scores: ArrayLike, relevant: ArrayLike, qid: ArrayLike, k: int = 5
) -> float:
    """Compute Average Precision@k from the position of the first irrelevant document.

    The documents of a query are ranked by falling score. If the first irrelevant document has
    position j <= k, the query earns (j - 1) / k, and otherwise 1. This is the measure of BudgetRF
    (ICML 2015, section 3), BudgetPrune, CEGB and Adapt, and not the average of precisions with the
    same name.

    Documents with equal scores have a random order, and the query earns the exact expectation. In a
    tie of R relevant and I irrelevant documents, the first t are relevant with probability
    ``C(R, t) / C(R + I, t)``.

    `scores`, `relevant` and `qid` have shape (n,).

    >>> average_precision_at([3, 2, 1], [True, True, False], [7, 7, 7], k=5)
    0.4
    >>> average_precision_at([1, 1], [True, False], [7, 7], k=1)  # a coin decides
    0.5
    """
    return float(average_precisions_at(scores, relevant, qid, k).mean())


def average_precisions_at(
    scores: ArrayLike, relevant: ArrayLike, qid: ArrayLike, k: int = 5
) -> NDArray[np.float64]:
    """Compute :func:`average_precision_at` of each query, shape (n_queries,).

    >>> average_precisions_at([3, 2, 1, 4], [True, True, False, False], [7, 7, 7, 8])
    array([0.4, 0. ])
    """
    scores, is_relevant, query = _check_ranking(scores, relevant, qid, k)
    order = np.lexsort((-scores, query))
    scores = scores[order]
    is_relevant = is_relevant[order]
    query = query[order]

    # a tie is a run of documents with the same query and score
    is_first_of_tie = np.append(True, (query[1:] != query[:-1]) | (scores[1:] != scores[:-1]))
    tie_starts = np.flatnonzero(is_first_of_tie)
    tie_size = np.diff(np.append(tie_starts, len(order)))
    n_relevant = np.add.reduceat(is_relevant.astype(np.int64), tie_starts)
    tie_query = query[tie_starts]

    # the first tie of each query with an irrelevant document, and the number of documents above it
    impure_ties = np.flatnonzero(n_relevant < tie_size)
    decided_queries, first_indices = np.unique(tie_query[impure_ties], return_index=True)
    deciding_tie = impure_ties[first_indices]
    query_starts = np.flatnonzero(np.append(True, query[1:] != query[:-1]))
    n_above = tie_starts[deciding_tie] - query_starts[decided_queries]

    # expected number of relevant documents before the first irrelevant one, at most k
    precision = np.ones(len(query_starts))  # without an irrelevant document
    expected_relevant = np.minimum(n_above, k).astype(np.float64)
    probability = np.ones(len(deciding_tie))  # C(R, t) / C(R + I, t), for t = n_drawn = 0
    for n_drawn in range(k):
        probability = (
            probability
            * np.maximum(n_relevant[deciding_tie] - n_drawn, 0)
            / np.maximum(tie_size[deciding_tie] - n_drawn, 1)
        )
        expected_relevant += np.where(n_above + n_drawn < k, probability, 0.0)
    precision[decided_queries] = expected_relevant / k
    return precision


def _check_ranking(
    scores: ArrayLike, relevant: ArrayLike, qid: ArrayLike, k: int
) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[Any]]:
    """Check a ranking; return scores, relevance and the number of each document's query."""
    score_array = np.asarray(scores, np.float64)
    is_relevant = np.asarray(relevant).astype(bool)
    query_ids = np.asarray(qid)
    if not score_array.ndim == is_relevant.ndim == query_ids.ndim == 1 or not (
        len(score_array) == len(is_relevant) == len(query_ids)
    ):
        raise InputError(
            f"scores {score_array.shape}, relevant {is_relevant.shape} and qid {query_ids.shape} "
            "must be of one length"
        )
    if not len(score_array):
        raise InputError("there are no documents to rank")
    if np.isnan(score_array).any():
        raise InputError(f"score {int(np.isnan(score_array).argmax())} is NaN, which has no rank")
    if k < 1:
        raise InputError(f"k must be at least 1, not {k}")
    return score_array, is_relevant, np.unique(query_ids, return_inverse=True)[1].ravel()
