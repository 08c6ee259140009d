"""Latency and load of one worker by the number of devices, with all instances offloaded."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
system = gw.StagedCascade(forest, n_stages=1, families=("linear",), effort="low", random_state=0)
bundle = gw.pack(system.fit(X[:300], y[:300]), "bundle-fleet", sample=X[:32])

fleet_sizes = [500, 1000, 1500, 2000]
p95_latencies_ms = []
utilisations = []
for devices in fleet_sizes:
    run = gw.simulate(
        bundle, X[300:], y[300:], devices=devices, time="2s", workload="poisson:2/s",
        link="wifi", policy="cloud-only", baselines=False,
    )  # fmt: skip
    policy = run.report.policies[0]
    p95_latencies_ms.append(policy.latency_ms["p95"].value)
    utilisations.append(policy.utilisation)

_, (latency_ax, load_ax) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 4.2), layout="constrained")
latency_ax.plot(fleet_sizes, p95_latencies_ms, "o-")
latency_ax.set(ylabel="p95 latency, ms", yscale="log")
load_ax.plot(fleet_sizes, utilisations, "o-")
load_ax.set(ylabel="utilisation of the worker", xlabel="devices", ylim=(0, 1.05))
plt.savefig("fleet_size.svg")
