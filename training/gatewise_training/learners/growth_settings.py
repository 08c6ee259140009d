"""Settings of boosted trees' growth, with defaults by the size of the data."""

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
from gatewise_training.learners.boosting import LARGE_ROWS

FEWEST_LEAVES = 31
"""On more than 5,000 rows, where the rounds are given: trees of fewer leaves would need more. On
CIFAR-10 100 rounds of 31 are better than of 15 or 127 (log loss of validation rows .241, .258,
.310), on Letters binary of 127 than of 63 (.053, .069). Boosting that validation rows end is best
with 15 and 63."""


@dataclass(eq=False, repr=False, kw_only=True)
class Growth:
    """Settings that all boosted estimators share, as their parameters."""

    n_rounds: int = 100  # each grows a tree for every output
    num_leaves: int | None = None  # None: by the number of rows, as the learning rate
    max_depth: int | None = None  # no bound if None
    learning_rate: float | None = None
    newton: bool = True  # second-order steps, or the papers' first-order ones

    _parameter_constraints: ClassVar[Constraints] = {
        "n_rounds": [AT_LEAST_1],
        "num_leaves": [Interval(Integral, 2, None, closed="left"), None],
        "max_depth": [AT_LEAST_1, None],
        "learning_rate": [Interval(Real, 0, np.inf, closed="neither"), None],
    }


def check_prefixes(prefixes: Sequence[float]) -> None:
    """Refuse shares of a fit's rounds that are not in (0, 1]."""
    is_share = Interval(Real, 0, 1, closed="right").is_satisfied_by
    if not (len(prefixes) and all(map(is_share, prefixes))):
        raise InputError(f"prefixes must be shares in (0, 1], not {list(prefixes)}")


def first_rounds(trees: TreeEnsemble, share: float) -> TreeEnsemble:
    """Take the trees of a share of a fit's rounds, at least of one."""
    n_rounds = trees.n_trees / trees.n_outputs
    n_trees = max(1, round(share * n_rounds)) * trees.n_outputs
    if n_trees >= trees.n_trees:
        return trees
    return trees.select_trees(range(n_trees))[0]


def tree_settings(
    growth: Growth,
    n_rows: int,
    n_classes: int,
    *,
    few_leaves: int = 31,
    best_leaves: int | None = None,
) -> dict[str, Any]:
    """LightGBM's settings for `n_rows` rows; up to 5,000 rows, trees have `few_leaves`.

    A low-cost model that is much weaker than the high-cost model never comes near its
    accuracy: above 5,000 rows trees are large. For two classes they learn fast; with more
    classes, at rates above 0.1, the losses of rare ones run away. `best_leaves`, where known, are
    the best for boosting that validation rows end; a fixed number of rounds needs twice as many.

    >>> tree_settings(Growth(), 12_000, 2)
    {'num_leaves': 127, 'max_depth': -1, 'learning_rate': 0.2}
    """
    leaves = few_leaves
    rate = 0.1
    if n_rows > LARGE_ROWS:
        leaves, rate = (127, 0.2) if n_classes == 2 else (63, 0.1)
        if best_leaves is not None:
            leaves = min(leaves, max(2 * best_leaves, FEWEST_LEAVES))
    return {
        "num_leaves": leaves if growth.num_leaves is None else growth.num_leaves,
        "max_depth": -1 if growth.max_depth is None else growth.max_depth,
        "learning_rate": rate if growth.learning_rate is None else growth.learning_rate,
    }
