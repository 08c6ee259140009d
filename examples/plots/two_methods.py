"""Accuracy against cost of two methods."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
staged_cascade = gw.StagedCascade(
    forest, n_stages=3, families=("linear",), effort="low", random_state=0
)
confidence_cascade = gw.ConfidenceCascade(
    forest, low_cost_model="linear", n_subsets=4, random_state=0
)

_, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for system in (staged_cascade, confidence_cascade):
    system.fit(X, y).plot_frontier(ax=ax)
plt.savefig("two_methods.svg")
