"""A device decides as the estimator it was packed from: same stage, same label, same cost."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge import Device, InProcessLink
from gatewise_export import pack
from gatewise_training import AdaptGBRT, FeatureCosts, StagedCascade

K = 10
LINEAR_OR_BOOSTING = StagedCascade(
    families=("linear", "boosting"), n_stages=3, max_trees=30, effort="low"
)
ADAPT = AdaptGBRT(p_full=(0.3,), penalties=(1e-3, 1e-2), n_rounds=20, warm_up=5)
NODE_BY_NODE = StagedCascade(acquisition="node", n_stages=2, max_trees=30)


@pytest.mark.parametrize(
    ("cascade", "classes"),
    [
        # weaker than f0, so that some go up
        pytest.param(LINEAR_OR_BOOSTING, 2, id="StagedCascade-2", marks=pytest.mark.slow),
        pytest.param(LINEAR_OR_BOOSTING, 3, id="StagedCascade-3", marks=pytest.mark.slow),
        pytest.param(ADAPT, 3, id="AdaptGBRT-3", marks=pytest.mark.slow),
        pytest.param(NODE_BY_NODE, 2, id="node-2"),
        pytest.param(NODE_BY_NODE, 3, id="node-3"),
    ],
)
def test_device_agrees_with_the_estimator(cascade, classes, tmp_path):
    X, y = make_classification(
        800, K, n_informative=6, n_classes=classes, flip_y=0.02, random_state=0
    )
    X = (X + 1e4).astype(np.float32)  # an offset makes float32 matter
    costs = FeatureCosts(
        np.linspace(0.1, 2, K), group=["g"] * 4 + ["h"] * 3 + [None] * 3, shared={"g": 3, "h": 1.7}
    )
    system = clone(cascade).set_params(
        high_cost_model=make_pipeline(StandardScaler(), SVC(C=10.0)),
        feature_costs=costs,
        random_state=0,
    )
    system.fit(X[:600], y[:600])
    rows = X[600:]
    bundle = pack(system, tmp_path / "bundle", sample=X[:32])
    link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    points = system.frontier_.points
    routes = set()
    hungriest = max(points, key=lambda p: p.offload_rate)
    assert hungriest.offload_rate > 0.05
    tried = (points[0], points[len(points) // 2], points[-1], hungriest)
    for budget in {point.cost for point in tried}:
        chosen = system.at(budget=budget)
        wanted = chosen.operating_point_
        thresholds = [(p.thresholds, p.chain) for p in bundle.manifest.operating_points]
        active = bundle.with_active(thresholds.index((wanted.thresholds, wanted.chain)))
        with Device(active, link=link, deadline_ms=10_000) as device:
            answers = [device.answer(row) for row in rows]
        assert [a.stage for a in answers] == chosen.exit_stage(rows).tolist()
        assert [a.label for a in answers] == chosen.predict(rows).tolist()
        assert [a.cost for a in answers] == chosen.cost(rows).tolist()
        routes |= {a.route for a in answers}
    assert routes == {"edge", "cloud"}
