"""Latency and load of one worker by the number of devices, with all instances offloaded."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(return_X_y=True)
f0 = ExtraTreesClassifier(30, random_state=0)
system = gw.StagedCascade(f0, n_stages=1, families=("linear",), effort="low", random_state=0)
bundle = gw.pack(system.fit(X[:600], y[:600]), "bundle-fleet", sample=X[:32])

sizes = [200, 500, 1000, 1500, 2000]
p95 = []
utilisation = []
for devices in sizes:
    run = gw.simulate(
        bundle, X[600:], y[600:], devices=devices, time="2s", workload="poisson:2/s",
        link="wifi", policy="cloud-only", baselines=False,
    )  # fmt: skip
    policy = run.report.policies[0]
    p95.append(policy.latency_ms["p95"].value)
    utilisation.append(policy.utilisation)

_, (latency, load) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 4.2), layout="constrained")
latency.plot(sizes, p95, "o-")
latency.set(ylabel="p95 latency, ms", yscale="log")
load.plot(sizes, utilisation, "o-")
load.set(ylabel="utilisation of the worker", xlabel="devices", ylim=(0, 1.05))
plt.savefig("fleet_size.svg")
