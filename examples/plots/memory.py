"""What a device of less memory gives up: the frontier, and its part within fewer bytes."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
system = gw.StagedCascade(
    n_stages=2, families=("boosting",), effort="low", max_bytes=64_000, random_state=0
)
system.fit(X, y).plot_frontier()
plt.savefig("memory.svg")
