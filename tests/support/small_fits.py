"""Short fits by the commands: the way from a table to a bundle is tested, not the fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_training import methods

FOREST = {"high_cost_model": ExtraTreesClassifier(10, random_state=0)}
STAGED = FOREST | {"n_stages": 2, "effort": "low"}
#: Few stages, trees and penalties.
SMALL: dict[str, dict[str, Any]] = {
    "staged": STAGED,
    "adapt-gbrt": FOREST | {"p_full": (0.3,), "penalties": (0.01,), "n_rounds": 10},
    "adapt-lin": FOREST | {"p_full": (0.3,), "penalties": (0.05,), "n_starts": 1},
    "confidence": FOREST | {"low_cost_model": "linear", "n_subsets": 3},
    "cegb": {"penalties": (0.001,), "n_rounds": 15},
    "greedy-miser": {"penalties": (0.02,), "n_rounds": 20},
}


@contextmanager
def fit_little() -> Iterator[None]:
    """Fit little, whatever this process trains."""
    make = methods.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            methods, "make", lambda name, **how: make(name, **(SMALL.get(name, {}) | how))
        )
        yield
