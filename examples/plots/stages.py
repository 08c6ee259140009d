"""Which stage answers how many instances, and what it costs to get there."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(return_X_y=True)
f0 = ExtraTreesClassifier(30, random_state=0)
system = gw.StagedCascade(
    f0, n_stages=4, families=("linear",), effort="low", max_loss=0.01, random_state=0
)
system.fit(X[:600], y[:600]).plot_stages()
plt.savefig("stages.svg")
