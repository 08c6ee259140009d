"""Frontiers of a system for devices with different amounts of memory."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
system = gw.StagedCascade(
    forest, n_stages=2, families=("boosting",), effort="low", max_bytes=64_000, random_state=0
)
system.fit(X[:300], y[:300] >= 5)

_, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for max_bytes in (64_000, 16_000, 4_000):
    points = system.frontier_.within_bytes(max_bytes).hull().points
    costs = [point.cost for point in points]
    ax.plot(costs, [point.accuracy for point in points], ".-", label=f"{max_bytes} bytes")
ax.set(xlabel="mean cost per instance", ylabel="accuracy on validation data")
ax.legend(frameon=False)
plt.savefig("memory.svg")
