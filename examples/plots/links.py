"""Simulated latency of offloaded instances by link, from the median to the 95th percentile."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
forest = ExtraTreesClassifier(30, random_state=0)
system = gw.StagedCascade(
    forest, n_stages=2, families=("linear",), effort="low", offload_rate=0.2, random_state=0
)
bundle = gw.pack(system.fit(X[:300], y[:300]), "bundle-links", sample=X[:32])

links = ["wifi", "4g", "3g", "nb-iot", "satellite"]
_, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for height, link in enumerate(links):
    run = gw.simulate(
        bundle, X[300:], y[300:], time="20min", link=link, deadline_ms=10_000, baselines=False
    )
    latency_ms = run.report.policies[0].latency_ms
    percentiles_ms = [latency_ms["offloaded_p50"].value, latency_ms["offloaded_p95"].value]
    ax.plot(percentiles_ms, [height, height], "o-", color="C0")
ax.set(xscale="log", xlabel="latency of offloaded instances, ms (p50 to p95)")
ax.set_yticks(range(len(links)), links)
ax.grid(axis="x", alpha=0.25)
plt.savefig("links.svg")
