"""Test that fits on clusters and in other processes equal local fits in every bit."""

from __future__ import annotations

import os

import joblib
import numpy as np
import pytest
from joblib._parallel_backends import MultiprocessingBackend
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from gatewise_training import BudgetForest, StagedCascade
from gatewise_training.data.parallel_fits import parallel_results

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]


class ForeignBackend(MultiprocessingBackend):
    """A backend of processes like that of Ray, with standard pickles and without generators."""


@pytest.fixture(scope="module", params=["foreign", "dask", "ray"])
def backend(request):
    """Name of the joblib backend of two processes."""
    if request.param == "foreign":
        joblib.register_parallel_backend("foreign", ForeignBackend)
        yield "foreign"
    elif request.param == "dask":
        import distributed

        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=None
            ) as workers,
            distributed.Client(workers),
        ):
            yield "dask"
    else:
        ray = pytest.importorskip("ray", reason="ray is not installed: pip install ray")
        from ray.util.joblib import register_ray

        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
        register_ray()
        yield "ray"
        ray.shutdown()


SYSTEMS = [
    StagedCascade(
        LogisticRegression(C=10.0, solver="liblinear"), n_stages=2, families=("linear",),
        effort="low", random_state=0,
    ),
    BudgetForest(n_estimators=3, random_state=0),
]  # fmt: skip


def test_fits_on_a_cluster_equal_local_fits(backend):
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x[:200, :6].astype(np.float32), y[:200]
    for system in SYSTEMS:
        local_system = clone(system).fit(x, y)
        with joblib.parallel_config(backend, n_jobs=2):
            parallel_system = clone(system).fit(x, y)
        assert parallel_system.frontier_ == local_system.frontier_
        for parallel_stage, local_stage in zip(
            sum(parallel_system.chains_, ()), sum(local_system.chains_, ()), strict=True
        ):
            np.testing.assert_array_equal(parallel_stage.features, local_stage.features)
            np.testing.assert_array_equal(parallel_stage.margins(x), local_stage.margins(x))


class CountedRows:
    """Rows that count how often they are pickled."""

    n_sent = 0

    def __reduce__(self):
        CountedRows.n_sent += 1
        return list, ([1, 2, 3],)


def add_to_sum(rows: list[int], number: int) -> tuple[int, int]:
    """Add a number to the sum of the rows; return the total and the process."""
    return sum(rows) + number, os.getpid()


def test_shared_rows_are_sent_once_and_results_of_other_processes_keep_their_order(backend):
    CountedRows.n_sent = 0
    fits = (joblib.delayed(add_to_sum)(number) for number in range(12))
    with joblib.parallel_config(backend, n_jobs=2):
        totals_and_processes = list(parallel_results(fits, shared_data=CountedRows()))
    totals = [total for total, _ in totals_and_processes]
    assert totals == [6 + number for number in range(12)]  # 6 is the sum of the rows 1, 2 and 3
    assert os.getpid() not in {pid for _, pid in totals_and_processes}
    assert CountedRows.n_sent == 1 or backend == "foreign"


def test_results_keep_their_order_under_the_backends_of_joblib():
    for backend in ("threading", "loky"):
        with joblib.parallel_config(backend, n_jobs=2):
            squares = parallel_results(joblib.delayed(pow)(number, 2) for number in range(5))
            assert list(squares) == [0, 1, 4, 9, 16]
