"""Routes of the answers, and accuracy, during an outage of the cloud of ten minutes."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_breast_cancer(return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
system = gw.StagedCascade(
    forest, n_stages=2, families=("linear",), effort="low", offload_rate=0.3, random_state=0
)
bundle = gw.pack(system.fit(X[:300], y[:300]), "bundle-outage", sample=X[:32])
run = gw.simulate(
    bundle, X[300:], y[300:], link="wifi", outage=("cloud:+20min-+30min",), baselines=False
)

intervals = run.report.policies[0].timeline
minutes = [interval.begin / 60 for interval in intervals]
_, (share_ax, accuracy_ax) = plt.subplots(
    2, 1, sharex=True, figsize=(6.4, 4.2), layout="constrained"
)
routes = ("edge", "cloud", "fallback")
route_shares = [
    [getattr(interval, route) / interval.instances for interval in intervals] for route in routes
]
share_ax.stackplot(minutes, route_shares, labels=routes, step="post")
share_ax.set(ylabel="share of answers", ylim=(0, 1))
share_ax.legend(loc="lower left", ncols=3)
accuracy_ax.step(minutes, [interval.accuracy for interval in intervals], where="post")
accuracy_ax.set(ylabel="accuracy", xlabel="minutes")
plt.savefig("outage.svg")
