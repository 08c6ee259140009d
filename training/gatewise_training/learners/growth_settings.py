"""Settings of the growth of boosted trees, with defaults by the number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
from sklearn.utils._param_validation import Interval

from gatewise.errors import InputError
from gatewise.models.trees import TreeEnsemble
from gatewise_training.data.input_checks import AT_LEAST_1, Constraints
from gatewise_training.learners.boosting import MAX_SMALL_ROWS

#: Smallest number of leaves on more than 5,000 rows if the number of rounds is fixed, because
#: smaller trees would need more rounds. With 100 rounds on CIFAR-10, the log loss of validation
#: rows is .241 with 31 leaves, .258 with 15 and .310 with 127. On Letters it is .053 with 127
#: leaves and .069 with 63. With early stopping, 15 leaves are best on CIFAR-10 and 63 on Letters.
MIN_LEAVES_OF_FIXED_ROUNDS = 31

#: Number of leaves on up to 5,000 rows.
LEAVES_OF_SMALL_TABLES = 31


@dataclass(eq=False, repr=False, kw_only=True)
class Growth:
    """Settings of growth, which are parameters of all boosted estimators."""

    n_rounds: int = 100  # each round grows one tree for every output
    num_leaves: int | None = None  # None: depends on the number of rows
    max_depth: int | None = None  # None: no bound
    learning_rate: float | None = None  # None: depends on the number of rows
    newton: bool = True  # whether steps are second-order; the papers' are first-order

    _parameter_constraints: ClassVar[Constraints] = {
        "n_rounds": [AT_LEAST_1],
        "num_leaves": [Interval(Integral, 2, None, closed="left"), None],
        "max_depth": [AT_LEAST_1, None],
        "learning_rate": [Interval(Real, 0, np.inf, closed="neither"), None],
    }


def check_prefixes(prefixes: Sequence[float]) -> None:
    """Refuse prefixes that are empty, or that are not shares of the rounds in (0, 1]."""
    is_round_share = Interval(Real, 0, 1, closed="right").is_satisfied_by
    if not (len(prefixes) and all(map(is_round_share, prefixes))):
        raise InputError(f"prefixes must be shares in (0, 1], not {list(prefixes)}")


def first_rounds(trees: TreeEnsemble, round_share: float) -> TreeEnsemble:
    """Select the first rounds, the number of trees of which is nearest to a share of all trees.

    A round has trees of rising outputs, and lacks those that could not be split.
    """
    if not trees.n_trees:
        return trees
    is_last_of_round = np.append(trees.output[1:] <= trees.output[:-1], True)
    round_ends = np.flatnonzero(is_last_of_round) + 1
    n_trees = int(round_ends[np.abs(round_ends - round_share * trees.n_trees).argmin()])
    if n_trees == trees.n_trees:
        return trees
    return trees.select_trees(range(n_trees))[0]


def tree_settings(
    growth: Growth,
    n_rows: int,
    n_classes: int,
    *,
    few_leaves: int = LEAVES_OF_SMALL_TABLES,
    best_leaves: int | None = None,
) -> dict[str, Any]:
    """Choose leaves, depth and learning rate for `n_rows` rows, as LightGBM's settings.

    Up to 5,000 rows, trees have `few_leaves` leaves. With more rows trees are large, because a much
    weaker model does not come close to the accuracy of the high-cost model. The learning rate is
    0.2 for two classes. With more classes, rates above 0.1 let the loss of rare classes diverge.
    `best_leaves` is the best number of leaves with early stopping, if it is known. A fixed number
    of rounds needs twice as many.

    >>> tree_settings(Growth(), 12_000, 2)
    {'num_leaves': 127, 'max_depth': -1, 'learning_rate': 0.2}
    """
    n_leaves = few_leaves
    learning_rate = 0.1
    if n_rows > MAX_SMALL_ROWS:
        n_leaves, learning_rate = (127, 0.2) if n_classes == 2 else (63, 0.1)
        if best_leaves is not None:
            n_leaves = min(n_leaves, max(2 * best_leaves, MIN_LEAVES_OF_FIXED_ROUNDS))
    return {
        "num_leaves": n_leaves if growth.num_leaves is None else growth.num_leaves,
        "max_depth": -1 if growth.max_depth is None else growth.max_depth,
        "learning_rate": learning_rate if growth.learning_rate is None else growth.learning_rate,
    }
