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

N_FEATURES = 8
GROUPS = {"left": (0, 1, 2), "right": (3, 4)}
UNGROUPED_FEATURES = set(range(N_FEATURES)) - {
    feature for members in GROUPS.values() for feature in members
}
SHARED_PRICES = {"left": 0.25, "right": 0.5}
COSTS = FeatureCosts(
    2.0 ** np.arange(N_FEATURES),
    group=["left"] * 3 + ["right"] * 2 + [None] * 3,
    shared=SHARED_PRICES,
)
#: Parameters for short fits.
FAST_PARAMETERS = {
    "staged": {"families": ("linear", "boosting"), "n_stages": 2, "effort": "low"},
    "adapt-gbrt": {"p_full": (0.3,), "penalties": (0.01, 0.1), "n_rounds": 10, "warm_up": 2},
    "adapt-lin": {"p_full": (0.3,), "penalties": (0.3,), "n_starts": 1},
    "adapt-lstsq": {"p_full": (0.3,), "penalties": (0.3,), "n_starts": 1},
    "cegb": {"penalties": (0.001, 0.01), "n_rounds": 15},
    "budget-forest": {"n_estimators": 6},
    "budget-prune": {"n_estimators": 6},
    "confidence": {"low_cost_model": "linear", "n_subsets": 4},
    "greedy-miser": {"n_rounds": 15},
}


@cache
def make_rows(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Make 480 rows: 300 to train with, 120 to validate with, and 60 to test with."""
    X, y = make_classification(
        480,
        N_FEATURES,
        n_informative=6,
        n_redundant=1,
        n_classes=n_classes,
        flip_y=0.05,
        random_state=3,
    )
    # The most expensive features are the most informative, so that cheap models do not answer
    # everything. The offset makes the rounding to float32 matter.
    return np.ascontiguousarray(X[:, ::-1] + 1e4, np.float32), y


class CountingSensors:
    """Sensors that return the values of `row` and count their reads."""

    def __init__(self) -> None:
        self.row = np.zeros(N_FEATURES, np.float32)
        #: Number of reads by the name of the sensor.
        self.read_counts: Counter[str] = Counter()

    def sensor_of_feature(self, feature: int):
        """Make the sensor of a feature."""

        def read_feature() -> float:
            self.read_counts[f"x{feature}"] += 1
            return float(self.row[feature])

        return read_feature

    def sensor_of_group(self, name: str):
        """Make the sensor of a group."""

        def read_group() -> list[float]:
            self.read_counts[name] += 1
            return self.row[list(GROUPS[name])].tolist()

        return read_group

    def cost_of_reads(self) -> float:
        """Compute the cost of the features that were read, without FeatureCosts."""
        own_price = sum(
            2.0**feature for feature in range(N_FEATURES) if self.read_counts[f"x{feature}"]
        )
        read_groups = [
            group
            for group, members in GROUPS.items()
            if any(self.read_counts[f"x{feature}"] for feature in members)
        ]
        return own_price + sum(SHARED_PRICES[group] for group in read_groups)

    def make_sensors(self, uses_group_sensors: bool) -> Sensors:
        """Make sensors for all features, or for the groups and the features without a group."""
        if not uses_group_sensors:
            return Sensors(
                {f"x{feature}": self.sensor_of_feature(feature) for feature in range(N_FEATURES)}
            )
        return Sensors(
            {f"x{feature}": self.sensor_of_feature(feature) for feature in UNGROUPED_FEATURES},
            groups={group: self.sensor_of_group(group) for group in GROUPS},
        )

    def assert_reads(self, acquired: set[int], uses_group_sensors: bool) -> None:
        """Assert that the sensors of the acquired features were read once, and no others."""
        expected_reads = {f"x{feature}" for feature in acquired}
        if uses_group_sensors:
            expected_reads = {f"x{feature}" for feature in acquired & UNGROUPED_FEATURES}
            expected_reads |= {group for group in GROUPS if acquired & set(GROUPS[group])}
        assert self.read_counts == Counter(expected_reads)


METHODS_AND_CLASS_COUNTS = [(name, 3) for name in methods.names()]
METHODS_AND_CLASS_COUNTS += [(name, 2) for name in ("staged", "adapt-gbrt")]


@pytest.mark.parametrize(
    ("method", "n_classes"),
    [
        pytest.param(*case, marks=[] if case[0] == "cegb" else pytest.mark.slow)
        for case in METHODS_AND_CLASS_COUNTS
    ],
)
def test_device_decides_and_acquires_as_in_training(method, n_classes, tmp_path):
    X, y = make_rows(n_classes)
    parameters = {"feature_costs": COSTS, "random_state": 0} | FAST_PARAMETERS.get(method, {})
    if method in methods.cascades():
        parameters["high_cost_model"] = make_pipeline(StandardScaler(), SVC(C=10.0))
    system = methods.make(method, **parameters)
    system.fit(X[:300], y[:300], validation=(X[300:420], y[300:420]))
    bundle = pack(system, tmp_path / "bundle", sample=X[:16])
    X_test = X[420:]
    link = None
    if bundle.manifest.cloud is not None:
        link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    points = system.frontier_.points
    point_settings = [(point.thresholds, point.chain) for point in bundle.manifest.operating_points]
    outcomes = set()
    budgets = sorted({points[0].cost, points[len(points) // 2].cost, points[-1].cost})
    # Sensors of features and of groups in turn.
    for budget, uses_group_sensors in zip(budgets, (False, True, False), strict=False):
        budget_system = system.at(budget=budget)
        operating_point = budget_system.operating_point_
        active_bundle = bundle.with_active(
            point_settings.index((operating_point.thresholds, operating_point.chain))
        )
        expected_outcomes = (
            budget_system.exit_stage(X_test),
            budget_system.predict(X_test),
            budget_system.cost(X_test),
        )
        counting_sensors = CountingSensors()
        sensors = counting_sensors.make_sensors(uses_group_sensors)
        with Device(active_bundle, link=link, sensors=sensors, deadline_ms=60_000) as device:
            for row, stage, label, cost in zip(X_test, *expected_outcomes, strict=True):
                counting_sensors.row = row
                counting_sensors.read_counts = Counter()
                answer = device.answer()
                assert (answer.stage, answer.label, answer.cost) == (stage, label, cost)
                assert answer.route in ("edge", "cloud")
                counting_sensors.assert_reads(set(answer.acquired), uses_group_sensors)
                if not uses_group_sensors:
                    assert counting_sensors.cost_of_reads() == cost
                outcomes.add((answer.route, answer.acquired))
    assert len(outcomes) > 1, "the test needs rows with different sets of features"
