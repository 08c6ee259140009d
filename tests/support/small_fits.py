"""Fast settings of all methods, for tests of commands that fit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_training import methods

SMALL_FOREST = {"high_cost_model": ExtraTreesClassifier(10, random_state=0)}
STAGED = SMALL_FOREST | {"n_stages": 2, "effort": "low"}
#: Settings of each method with few stages, trees and penalties.
FAST_SETTINGS: dict[str, dict[str, Any]] = {
    "staged": STAGED,
    "adapt-gbrt": SMALL_FOREST | {"p_full": (0.3,), "penalties": (0.01,), "n_rounds": 10},
    "adapt-lin": SMALL_FOREST | {"p_full": (0.3,), "penalties": (0.05,), "n_starts": 1},
    "confidence": SMALL_FOREST | {"low_cost_model": "linear", "n_subsets": 3},
    "cegb": {"penalties": (0.001,), "n_rounds": 15},
    "greedy-miser": {"penalties": (0.02,), "n_rounds": 20},
}


@contextmanager
def fast_fits() -> Iterator[None]:
    """Use the fast settings for all fits in this process."""
    make = methods.make
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            methods,
            "make",
            lambda name, **parameters: make(name, **(FAST_SETTINGS.get(name, {}) | parameters)),
        )
        patch.setattr("gatewise_training.data.validation_split.N_FOLDS", 2)
        yield
