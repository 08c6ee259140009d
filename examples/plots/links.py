"""Simulated latency of offloaded instances by link, from the median to the 95th percentile."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(return_X_y=True)
f0 = ExtraTreesClassifier(30, random_state=0)
system = gw.StagedCascade(
    f0, n_stages=2, families=("linear",), effort="low", offload_rate=0.2, random_state=0
)
bundle = gw.pack(system.fit(X[:600], y[:600]), "bundle-links", sample=X[:32])

links = ["wifi", "4g", "3g", "nb-iot", "satellite"]
_, ax = plt.subplots(figsize=(6.4, 3.2), layout="constrained")
for i, link in enumerate(links):
    run = gw.simulate(bundle, X[600:], y[600:], link=link, deadline_ms=10_000, baselines=False)
    latency = run.report.policies[0].latency_ms
    ends = [latency["offloaded_p50"].value, latency["offloaded_p95"].value]
    ax.plot(ends, [i, i], "o-", color="C0")
ax.set(xscale="log", xlabel="latency of offloaded instances, ms (p50 to p95)")
ax.set_yticks(range(len(links)), links)
ax.grid(axis="x", alpha=0.25)
plt.savefig("links.svg")
