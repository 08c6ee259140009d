"""A device decides like the packed estimator, and acquires the features that training charged.

For every estimator, each row has the same stage, label and cost at several operating points.

The sensors count their reads independently of the device's meter. The own prices of the features
are powers of two and the shared prices of the groups are fractions, so that equal costs mean equal
sets of features.
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
#: Parameters for short fits.
FAST_PARAMETERS = {
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
    # The most expensive features are the most informative, so that cheap models do not answer
    # everything. The offset makes the rounding to float32 matter.
    return np.ascontiguousarray(X[:, ::-1] + 1e4, np.float32), y


class CountingSensors:
    """Sensors that return the values of `row` and count their reads."""

    def __init__(self) -> None:
        self.row = np.zeros(K, np.float32)
        self.reads: Counter[str] = Counter()

    def feature(self, k: int):
        """Make the sensor of a feature."""

        def read() -> float:
            self.reads[f"x{k}"] += 1
            return float(self.row[k])

        return read

    def group(self, name: str):
        """Make the sensor of a group."""

        def read() -> list[float]:
            self.reads[name] += 1
            return self.row[list(GROUPS[name])].tolist()

        return read

    def price(self) -> float:
        """Compute the cost of the features that were read, without FeatureCosts."""
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
def test_device_decides_and_acquires_as_in_training(name, classes, tmp_path):
    X, y = rows(classes)
    params = {"feature_costs": COSTS, "random_state": 0} | FAST_PARAMETERS.get(name, {})
    if name in methods.cascades():
        params["high_cost_model"] = make_pipeline(StandardScaler(), SVC(C=10.0))
    system = methods.make(name, **params).fit(X[:450], y[:450])
    bundle = pack(system, tmp_path / "bundle", sample=X[:16])
    X_test = X[450:570]
    link = None
    if bundle.manifest.cloud is not None:
        link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    points = system.frontier_.points
    settings = [(p.thresholds, p.chain) for p in bundle.manifest.operating_points]
    outcomes = set()
    for budget in sorted({points[0].cost, points[len(points) // 2].cost, points[-1].cost}):
        cheaper = system.at(budget=budget)
        point = cheaper.operating_point_
        active = bundle.with_active(settings.index((point.thresholds, point.chain)))
        expected = (cheaper.exit_stage(X_test), cheaper.predict(X_test), cheaper.cost(X_test))
        # First with a sensor for each feature, then with sensors for groups.
        for has_groups in (False, True):
            counting = CountingSensors()
            single_features = range(5, K) if has_groups else range(K)
            sensors = Sensors(
                {f"x{k}": counting.feature(k) for k in single_features},
                groups={g: counting.group(g) for g in GROUPS} if has_groups else None,
            )
            with Device(active, link=link, sensors=sensors, deadline_ms=60_000) as device:
                for row, stage, label, cost in zip(X_test, *expected, strict=True):
                    counting.row = row
                    counting.reads = Counter()
                    answer = device.answer()
                    assert (answer.stage, answer.label, answer.cost) == (stage, label, cost)
                    assert answer.route in ("edge", "cloud")
                    acquired = set(answer.acquired)
                    if has_groups:
                        read = {k for k in single_features if counting.reads[f"x{k}"]}
                        assert read == acquired & set(single_features)
                        read_groups = {g for g in GROUPS if counting.reads[g]}
                        assert read_groups == {g for g in GROUPS if acquired & set(GROUPS[g])}
                        assert set(counting.reads.values()) <= {1}
                    else:
                        assert counting.price() == cost
                        assert {f"x{k}" for k in acquired} == set(counting.reads)
                    outcomes.add((answer.route, answer.acquired))
    assert len(outcomes) > 1, "the test needs rows with different sets of features"
