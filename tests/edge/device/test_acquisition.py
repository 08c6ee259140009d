"""A device decides as the estimator that was packed and acquires what training charged.

Every estimator, row by row: the same stage, label and cost at several operating points.

The sensors count for themselves, apart from the device's meter. The features' own prices are
powers of two and the groups' shared prices fractions, so equal costs mean equal sets of features.
"""

from __future__ import annotations

from collections import Counter
from functools import cache

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_edge import Device, InProcessLink, Sensors
from gatewise_export import pack
from gatewise_training import FeatureCosts, methods

K = 8
GROUPS = {"left": (0, 1, 2), "right": (3, 4)}
SHARED = {"left": 0.25, "right": 0.5}
COSTS = FeatureCosts(
    2.0 ** np.arange(K),
    group=["left"] * 3 + ["right"] * 2 + [None] * 3,
    shared=SHARED,
)
SMALL = {
    "staged": {"families": ("linear", "boosting"), "n_stages": 2, "effort": "low"},
    "adapt-gbrt": {"p_full": (0.3,), "penalties": (0.01, 0.1), "n_rounds": 20, "warm_up": 5},
    "adapt-lin": {"p_full": (0.3,), "penalties": (0.3, 0.05), "n_starts": 1},
    "adapt-lstsq": {"p_full": (0.3,), "penalties": (0.3,), "n_starts": 1, "max_alternations": 20},
    "cegb": {"penalties": (0.001, 0.01), "n_rounds": 15},
    "budget-forest": {"n_estimators": 6},
    "budget-prune": {"n_estimators": 6},
    "confidence": {"low_cost_model": "linear", "n_subsets": 4},
    "greedy-miser": {"n_rounds": 15},
}


@cache
def rows(classes: int) -> tuple[np.ndarray, np.ndarray]:
    X, y = make_classification(
        700, K, n_informative=6, n_redundant=1, n_classes=classes, flip_y=0.05, random_state=3
    )
    # The dear features are the telling ones, so that cheap models do not settle everything; an
    # offset makes float32 matter.
    return np.ascontiguousarray(X[:, ::-1] + 1e4, np.float32), y


class Counted:
    """Sensors over one row at a time that note what they were asked for."""

    def __init__(self) -> None:
        self.row = np.zeros(K, np.float32)
        self.reads: Counter[str] = Counter()

    def one(self, k: int):
        def read() -> float:
            self.reads[f"x{k}"] += 1
            return float(self.row[k])

        return read

    def group(self, name: str):
        def read() -> list[float]:
            self.reads[name] += 1
            return self.row[list(GROUPS[name])].tolist()

        return read

    def price(self) -> float:
        """What the features read cost, reckoned by hand."""
        assert set(self.reads.values()) <= {1}, "a sensor was read twice for an instance"
        own = sum(2.0**k for k in range(K) if self.reads[f"x{k}"])
        touched = [g for g, members in GROUPS.items() if any(self.reads[f"x{k}"] for k in members)]
        return own + sum(SHARED[g] for g in touched)


CASES = [(name, 3) for name in methods.names()]
CASES += [(name, 2) for name in ("staged", "adapt-gbrt", "greedy-miser")]


@pytest.mark.parametrize(
    ("name", "classes"),
    [pytest.param(*case, marks=[] if case[0] == "cegb" else pytest.mark.slow) for case in CASES],
)
def test_a_device_decides_and_acquires_as_in_training(name, classes, tmp_path):
    X, y = rows(classes)
    params = {"feature_costs": COSTS, "random_state": 0} | SMALL.get(name, {})
    if name in methods.cascades():
        params["high_cost_model"] = make_pipeline(StandardScaler(), SVC(C=10.0))
    system = methods.make(name, **params).fit(X[:450], y[:450])
    bundle = pack(system, tmp_path / "bundle", sample=X[:16])
    fresh = X[450:570]
    link = None
    if bundle.manifest.cloud is not None:
        link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    points = system.frontier_.points
    settings = [(p.thresholds, p.chain) for p in bundle.manifest.operating_points]
    seen = set()
    for budget in sorted({points[0].cost, points[len(points) // 2].cost, points[-1].cost}):
        chosen = system.at(budget=budget)
        wanted = chosen.operating_point_
        active = bundle.with_active(settings.index((wanted.thresholds, wanted.chain)))
        expected = (chosen.exit_stage(fresh), chosen.predict(fresh), chosen.cost(fresh))
        # Once with a sensor for each feature, once with the groups read whole.
        for grouped in (False, True):
            counted = Counted()
            alone = range(5, K) if grouped else range(K)
            sensors = Sensors(
                {f"x{k}": counted.one(k) for k in alone},
                groups={g: counted.group(g) for g in GROUPS} if grouped else None,
            )
            with Device(active, link=link, sensors=sensors, deadline_ms=60_000) as device:
                for row, stage, label, cost in zip(fresh, *expected, strict=True):
                    counted.row, counted.reads = row, Counter()
                    answer = device.answer()
                    assert (answer.stage, answer.label, answer.cost) == (stage, label, cost)
                    assert answer.route in ("edge", "cloud")
                    if grouped:
                        read = {k for k in alone if counted.reads[f"x{k}"]}
                        assert read == {k for k in answer.acquired if k in alone}
                        touched = {g for g in GROUPS if counted.reads[g]}
                        bought = set(answer.acquired)
                        assert touched == {g for g in GROUPS if bought & set(GROUPS[g])}
                        assert set(counted.reads.values()) <= {1}
                    else:
                        assert counted.price() == cost
                        assert {f"x{k}" for k in answer.acquired} == set(counted.reads)
                    seen.add((answer.route, answer.acquired))
    assert len(seen) > 1, "one set of features for every row and point shows little"
