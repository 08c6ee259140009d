"""A sweep under joblib's dask backend: other processes fit it, and nothing else changes."""

from __future__ import annotations

import os

import distributed
import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

from gatewise_training import AdaptLin, StagedCascade


@pytest.fixture(scope="module")
def client():
    """Two worker processes of one thread each, gone when the tests are done."""
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None,
            memory_limit=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):  # fmt: skip
        assert len(set(client.run(os.getpid).values()) - {os.getpid()}) == 2
        yield client
    assert cluster.status.name == "closed"
    assert not cluster.workers


def executed(client):
    """Tasks that the workers have run so far."""
    return sum(client.run(lambda dask_worker: dask_worker.state.executed_count).values())


F0 = LogisticRegression(C=10.0, solver="liblinear")
SYSTEMS = [
    AdaptLin(F0, p_full=(0.2, 0.8), penalties=(0.5,), n_starts=0, random_state=0),
    StagedCascade(F0, n_stages=2, families=("linear",), effort="low", random_state=0),
]


@pytest.mark.slow
@pytest.mark.parametrize("system", SYSTEMS, ids=lambda s: type(s).__name__)
def test_a_path_fitted_by_a_cluster_is_the_one_fitted_here(system, client):
    x, y = load_breast_cancer(return_X_y=True)
    x, y = x[:200, :6].astype(np.float32), y[:200]
    alone = clone(system).fit(x, y)
    before = executed(client)
    with joblib.parallel_config("dask"):
        spread = clone(system).fit(x, y)
    assert executed(client) > before + 3  # the workers fitted the path, not this process
    assert spread.frontier_ == alone.frontier_
    for ours, theirs in zip(sum(spread.chains_, ()), sum(alone.chains_, ()), strict=True):
        np.testing.assert_array_equal(ours.features, theirs.features)
        np.testing.assert_array_equal(ours.margins(x), theirs.margins(x))
