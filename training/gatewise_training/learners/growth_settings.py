"""Settings of boosted trees' growth, with defaults by the size of the data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gatewise.errors import InputError
from gatewise_training.learners.boosting import LARGE_ROWS

__all__ = ["Growth"]


@dataclass(frozen=True)
class Growth:
    """Settings of the growth.

    Attributes
    ----------
    n_rounds : int
        Rounds; each grows a tree for every output.
    warm_up : int
        First rounds, in which every row is f1's and the gate rests.
    num_leaves : int or None
        None: by the number of rows (:meth:`on`).
    max_depth : int or None
        No bound if None.
    learning_rate : float or None
        None: what goes with these leaves.
    newton : bool
        Second-order steps, or the papers' first-order ones.
    """

    n_rounds: int
    warm_up: int
    num_leaves: int | None
    max_depth: int | None
    learning_rate: float | None
    newton: bool

    def on(self, n_rows: int, n_classes: int) -> tuple[int, float]:
        """Leaves and learning rate on so many rows.

        A low-cost model that is much weaker than the high-cost model never comes near its
        accuracy: above 5,000 rows trees are large. For two classes they learn fast; with more
        classes, at rates above 0.1, the losses of rare ones run away.

        Examples
        --------
        >>> Growth(100, 20, None, None, None, newton=True).on(12_000, 2)
        (127, 0.2)
        """
        leaves, rate = 31, 0.1
        if n_rows > LARGE_ROWS:
            leaves, rate = (127, 0.2) if n_classes == 2 else (63, 0.1)
        return (
            leaves if self.num_leaves is None else self.num_leaves,
            rate if self.learning_rate is None else self.learning_rate,
        )

    def check(self) -> None:
        """Raise InputError for settings that grow no trees."""
        if self.n_rounds < 1:
            raise InputError(f"n_rounds must be at least 1, not {self.n_rounds}")
        if self.warm_up < 0:
            raise InputError(f"warm_up must be at least 0, not {self.warm_up}")
        if self.num_leaves is not None and self.num_leaves < 2:
            raise InputError(f"num_leaves must be at least 2, not {self.num_leaves}")
        if self.max_depth is not None and self.max_depth < 1:
            raise InputError(f"max_depth must be at least 1, not {self.max_depth}")
        if self.learning_rate is not None and not 0.0 < self.learning_rate < np.inf:
            raise InputError(f"learning_rate must be above 0, not {self.learning_rate}")
