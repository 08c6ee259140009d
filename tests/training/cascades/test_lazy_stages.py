"""Cascades that acquire node by node; `test_base` counts their costs on every tree by hand."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_wine
from sklearn.linear_model import LogisticRegression

from gatewise.errors import InputError
from gatewise_training import CloudPrices, StagedCascade
from gatewise_training.methods import make
from gatewise_training.operating_points.guarantee import Promise, certify
from gatewise_training.operating_points.thresholds import CascadeRecord
from tests.support.tree_walks import priced, thirds

pytestmark = pytest.mark.slow  # fits of several seconds


@pytest.fixture(scope="module", params=[True, False], ids=["binary", "classes"])
def fitted(request, make_once):
    X, y, X_test, _ = thirds(load_breast_cancer if request.param else load_wine)
    f0 = LogisticRegression(max_iter=10_000)
    system = StagedCascade(
        f0, priced(X.shape[1]), cloud_prices=CloudPrices(request=1.5), acquisition="node",
        n_stages=4, max_loss=0.02, random_state=0,
    )  # fmt: skip
    name = f"lazy-stages-{request.param}"
    return make_once(name, lambda _: system.fit(X, y)), X_test


def test_rows_pay_less_than_for_whole_stages(fitted):
    system, X = fitted
    costs, used = system.feature_costs_, np.zeros(X.shape[1], bool)
    for stage in system.stages_:
        assert stage.acquisition == "node"
        acquired = stage.acquired(X)
        used[stage.features] = True
        assert not acquired[:, ~used].any()
        assert (costs.per_instance(acquired) <= costs.price(stage.features) + 1e-9).all()
    assert costs.per_instance(acquired).mean() < 0.95 * costs.price(stage.features)  # of the last
    assert system.families_ == ("boosting",) * len(system.stages_)
    acquired = [system.stages_[0].acquired(X)]
    for stage in system.stages_[1:]:
        acquired.append(acquired[-1] | stage.acquired(X))
    means = [costs.per_instance(b).mean() for b in acquired]
    assert means == sorted(means)
    assert means[0] < means[-1]


def test_own_validation_rows_are_charged_exactly():
    X, y, X_test, y_test = thirds()
    f0 = LogisticRegression(max_iter=10_000).fit(X, y)
    system = make("staged-lazy", high_cost_model=f0, n_stages=4, random_state=0)
    assert system.acquisition == "node"
    system.fit(X, y, validation=(X_test, y_test))
    for point in system.frontier_.points:
        moved = system.at(budget=point.cost)
        # what tuning flatters a setting by is added to a tuned point's cost, never taken off
        assert moved.cost(X_test).mean() <= moved.operating_point_.cost + 1e-9
    alone = [p for p in system.frontier_.points if sum(t is not None for t in p.thresholds) <= 1]
    exact = [system.at(budget=p.cost).cost(X_test).mean() == pytest.approx(p.cost) for p in alone]
    assert any(exact)


def test_missing_values_are_acquired_like_others():
    X, y, X_test, _ = thirds()
    rng = np.random.default_rng(0)
    X, X_test = (np.where(rng.random(x.shape) < 0.1, np.nan, x).astype(np.float32)
                 for x in (X, X_test))  # fmt: skip
    system = StagedCascade(acquisition="node", n_stages=2, allow_missing=True, random_state=0)
    system.fit(X, y)
    stage = system.stages_[-1]
    acquired = stage.acquired(X_test)
    roots = stage.features[stage.model.feature[stage.model.roots[0]]]
    assert acquired[:, roots].all()
    assert np.isnan(X_test[acquired]).any()


def test_a_budget_is_guaranteed_by_what_rows_can_cost_not_by_what_these_did():
    n = 400
    rng = np.random.default_rng(0)
    own = np.vstack([rng.choice([1.0, 2.0], n), np.full(n, 10.0)])
    scores = np.ones((1, n), np.float32)
    right = np.ones((2, n))
    record = CascadeRecord(scores, right, own, np.ones(n), cost_limits=np.array([6.0, 10.0]))
    point = record.measure((0.5,))
    assert point.cost == pytest.approx(own[0].mean())
    # every row here cost 2 at most, but a new one may cost 6: a test must decide, and it can
    certified = certify(record, [point], Promise.from_bounds(budget=2.0))
    assert certified.guarantee["method"] == "betting"
    assert certify(record, [point], Promise.from_bounds(budget=1.45)) is None
    assert (
        certify(record, [point], Promise.from_bounds(budget=10.0)).guarantee["method"] == "certain"
    )
    unknown = CascadeRecord(scores, right, own, np.ones(n))
    with pytest.raises(InputError, match="give cost_limits"):
        certify(unknown, [point], Promise.from_bounds(budget=2.0))
