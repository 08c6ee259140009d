"""Fits under joblib backends that other libraries derive: no generators, plain pickles."""

from __future__ import annotations

import joblib
import numpy as np
import pytest
from joblib._parallel_backends import MultiprocessingBackend
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from gatewise_training import BudgetForest, BudgetPrune, StagedCascade
from gatewise_training.data.parallel_fits import parallel_results


class ForeignBackend(MultiprocessingBackend):
    """As Ray's backend: processes, standard pickles, no results one by one."""


@pytest.fixture(autouse=True)
def foreign_backend():
    joblib.register_parallel_backend("foreign", ForeignBackend)


SYSTEMS = [
    StagedCascade(LogisticRegression(), n_stages=2, families=("linear",), effort="low"),
    BudgetForest(n_estimators=3),
    BudgetPrune(n_estimators=3),
]


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
def test_a_fit_under_a_foreign_backend_is_the_usual_one(system):
    x, y = load_iris(return_X_y=True)
    system = clone(system).set_params(random_state=0)
    alone = clone(system).fit(x, y)
    with joblib.parallel_config("foreign", n_jobs=2):
        spread = clone(system).fit(x, y)
    assert spread.frontier_ == alone.frontier_
    np.testing.assert_array_equal(spread.predict(x), alone.predict(x))


@pytest.mark.slow
def test_results_keep_their_order_under_any_backend():
    for backend in ("foreign", "threading", "loky"):
        with joblib.parallel_config(backend, n_jobs=2):
            squares = parallel_results(joblib.delayed(pow)(n, 2) for n in range(5))
            assert list(squares) == [0, 1, 4, 9, 16]
