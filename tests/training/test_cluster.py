"""Test that fits on clusters of Dask and Ray equal local fits in every bit."""

from __future__ import annotations

import os

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from gatewise_training import AdaptLin, CEGBClassifier, StagedCascade
from gatewise_training.data.parallel_fits import parallel_results

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=["dask", "ray"])
def cluster(request):
    """Name of the joblib backend of two worker processes."""
    if request.param == "dask":
        import distributed

        with (
            distributed.LocalCluster(
                n_workers=2, threads_per_worker=1, dashboard_address=None, memory_limit=None
            ) as workers,
            distributed.Client(workers),
        ):
            yield "dask"
        return
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install ray")
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    register_ray()
    yield "ray"
    ray.shutdown()


HIGH_COST_MODEL = LogisticRegression(C=10.0, solver="liblinear")
SYSTEMS = [
    AdaptLin(HIGH_COST_MODEL, p_full=(0.2, 0.8), penalties=(0.5,), n_starts=0, random_state=0),
    StagedCascade(HIGH_COST_MODEL, n_stages=2, families=("linear",), effort="low", random_state=0),
    CEGBClassifier(n_penalties=3, random_state=0),
]


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: type(system).__name__)
def test_fit_on_a_cluster_equals_the_local_fit(system, cluster):
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x[:200, :6].astype(np.float32), y[:200]
    local_system = clone(system).fit(x, y)
    with joblib.parallel_config(cluster, n_jobs=2):
        cluster_system = clone(system).fit(x, y)
    assert cluster_system.frontier_ == local_system.frontier_
    for cluster_stage, local_stage in zip(
        sum(cluster_system.chains_, ()), sum(local_system.chains_, ()), strict=True
    ):
        np.testing.assert_array_equal(cluster_stage.features, local_stage.features)
        np.testing.assert_array_equal(cluster_stage.margins(x), local_stage.margins(x))


class CountedRows:
    """Rows that count how often they are pickled."""

    n_sent = 0

    def __reduce__(self):
        CountedRows.n_sent += 1
        return list, ([1, 2, 3],)


def add_to_sum(rows: list[int], number: int) -> tuple[int, int]:
    """Add a number to the sum of the rows; return the total and the process."""
    return sum(rows) + number, os.getpid()


def test_shared_rows_are_sent_once_and_fits_run_in_other_processes(cluster):
    CountedRows.n_sent = 0
    fits = (joblib.delayed(add_to_sum)(number) for number in range(12))
    with joblib.parallel_config(cluster, n_jobs=2):
        totals_and_processes = list(parallel_results(fits, shared_data=CountedRows()))
    totals = [total for total, _ in totals_and_processes]
    assert totals == [6 + number for number in range(12)]  # 6 is the sum of the rows 1, 2 and 3
    assert os.getpid() not in {pid for _, pid in totals_and_processes}
    assert CountedRows.n_sent == 1
