"""Simulate eight days of pumps whose sensors are replaced on the third day.

python learning_fleet.py
"""

import numpy as np

from gatewise_export import pack
from gatewise_sim import LoopRules, simulate_loop
from gatewise_sim.loop.loop_command import show_days
from gatewise_training import StagedCascade


def draw_pumps(n_rows: int, seed: int, *, has_new_sensors: bool) -> tuple[np.ndarray, np.ndarray]:
    """Draw rows of features and labels; new sensors give other values of vibration and flow."""
    X = np.random.default_rng(seed).normal(size=(n_rows, 4)).astype(np.float32)
    # The product keeps a linear model from learning the wear completely.
    wear = X[:, 0] + 0.8 * X[:, 2] * X[:, 1]
    y = np.where(wear > 0.5, "worn", "fine")
    if has_new_sensors:
        X[:, 0] = -0.5 * X[:, 0] - 1
        X[:, 2] = -X[:, 2]
    return X, y


X, y = draw_pumps(800, seed=0, has_new_sensors=False)
np.savez("train.npz", X=X, y=y)
system = StagedCascade(n_stages=2, effort="low", offload_rate=0.2, random_state=0).fit(X, y)
bundle = pack(system, "bundle", sample=X[:32])

# 1,000 instances a day: two days with the old sensors, then six with the new ones
first_days = draw_pumps(2000, seed=1, has_new_sensors=False)
later_days = draw_pumps(6000, seed=2, has_new_sensors=True)
X, y = (np.concatenate(arrays) for arrays in zip(first_days, later_days, strict=True))
rules = LoopRules(
    days=8,
    audit=0.2,
    labels=120,
    label_errors=0.02,
    refit_labels=250,
    refit={"high_cost": "new", "kept_share": 0.9},
)
report = simulate_loop(bundle, X, y, train="train.npz", rules=rules)
show_days(report)
