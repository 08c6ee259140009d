"""Single budgeted models go through a bundle to the device without another decision or cost."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_wine

from gatewise_edge import Device
from gatewise_export import pack
from gatewise_export.packing.verification import verify
from gatewise_training import (
    BudgetForest,
    BudgetPrune,
    CEGBClassifier,
    FeatureCosts,
    GreedyMiser,
)

pytestmark = pytest.mark.slow  # fits of several seconds

X, Y = load_wine(return_X_y=True)
X = X.astype(np.float32)
COSTS = FeatureCosts(
    np.linspace(0.2, 1.4, 13), group=["a"] * 4 + ["b"] * 3 + [None] * 6, shared={"a": 2, "b": 1}
)
MODELS = {
    "pairs": BudgetForest(COSTS, alpha=0.0, n_estimators=6, random_state=0),
    "cost-aware": BudgetForest(COSTS, criterion="entropy", mu=0.1, n_estimators=6, random_state=0),
    "pruned": BudgetPrune(COSTS, n_estimators=6, random_state=0),
    "lazy": CEGBClassifier(COSTS, penalties=(0.02, 0.1), n_rounds=15, random_state=0),
    "coupled": CEGBClassifier(
        COSTS, accounting="coupled", n_penalties=5, n_rounds=15, budget=6.0, random_state=0
    ),
    "greedy-miser": GreedyMiser(COSTS, n_rounds=15, budget=8.0, random_state=0),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_device_decides_and_pays_as_the_estimator(name, tmp_path):
    model = MODELS[name].fit(X, Y)
    bundle = pack(model, tmp_path / "bundle", sample=X[:32])
    assert bundle.manifest.cloud is None
    report = verify(model, bundle, X)
    assert report.rows == len(X)
    assert report.differing_decisions == 0
    with Device(bundle) as device:
        answers = [device.answer(row) for row in X]
    assert [a.label for a in answers] == model.predict(X).tolist()
    assert [a.cost for a in answers] == model.cost(X).tolist()
    assert {a.route for a in answers} == {"edge"}
    assert model.cost(X).mean() < COSTS.total
