"""Test fits under joblib backends that return no generators and use standard pickles."""

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

pytestmark = pytest.mark.usefixtures("two_folds")


class ForeignBackend(MultiprocessingBackend):
    """A backend of processes like that of Ray, with standard pickles and without generators."""


@pytest.fixture(autouse=True)
def foreign_backend():
    """Registration of the backend, which joblib keeps by name."""
    joblib.register_parallel_backend("foreign", ForeignBackend)


SYSTEMS = [
    StagedCascade(LogisticRegression(), n_stages=2, families=("linear",), effort="low"),
    BudgetForest(n_estimators=3),
    BudgetPrune(n_estimators=3),
]


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: type(system).__name__)
def test_fits_under_a_foreign_backend_equal_local_fits(system):
    x, y = load_iris(return_X_y=True)
    system = clone(system).set_params(random_state=0)
    local_system = clone(system).fit(x, y)
    with joblib.parallel_config("foreign", n_jobs=2):
        parallel_system = clone(system).fit(x, y)
    assert parallel_system.frontier_ == local_system.frontier_
    np.testing.assert_array_equal(parallel_system.predict(x), local_system.predict(x))


@pytest.mark.slow
def test_results_keep_their_order_under_any_backend():
    for backend in ("foreign", "threading", "loky"):
        with joblib.parallel_config(backend, n_jobs=2):
            squares = parallel_results(joblib.delayed(pow)(number, 2) for number in range(5))
            assert list(squares) == [0, 1, 4, 9, 16]
