"""Accuracy against bytes of the system and of other policies."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
system = gw.StagedCascade(
    forest, n_stages=2, families=("linear",), effort="low", offload_rate=0.15, random_state=0
)
bundle = gw.pack(system.fit(X[:300], y[:300]), "bundle-policies", sample=X[:32])
report = gw.simulate(bundle, X[300:], y[300:], devices=200, link="4g").report

_, ax = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for policy in report.policies:
    n_bytes = policy.bytes.up.value + policy.bytes.down.value
    accuracy = policy.accuracy
    error_lengths = [[accuracy.value - accuracy.low], [accuracy.high - accuracy.value]]
    ax.errorbar(n_bytes, accuracy.value, yerr=error_lengths, fmt="o", label=policy.name)
ax.set(xlabel="bytes per instance, in both directions", ylabel="accuracy, 95 % interval")
ax.grid(alpha=0.25)
ax.legend(frameon=False)
plt.savefig("policies.svg")
