"""Routes of the answers, and accuracy, during an outage of the cloud of ten minutes."""

from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(return_X_y=True)
f0 = ExtraTreesClassifier(30, random_state=0)
system = gw.StagedCascade(
    f0, n_stages=2, families=("linear",), effort="low", offload_rate=0.3, random_state=0
)
bundle = gw.pack(system.fit(X[:600], y[:600]), "bundle-outage", sample=X[:32])
run = gw.simulate(
    bundle, X[600:], y[600:], link="wifi", outage=("cloud:+20min-+30min",), baselines=False
)

bins = run.report.policies[0].timeline
minutes = [part.begin / 60 for part in bins]
_, (shares, accuracy) = plt.subplots(2, 1, sharex=True, figsize=(6.4, 4.2), layout="constrained")
routes = ("edge", "cloud", "fallback")
answers = [[getattr(part, route) / part.instances for part in bins] for route in routes]
shares.stackplot(minutes, answers, labels=routes, step="post")
shares.set(ylabel="share of answers", ylim=(0, 1))
shares.legend(loc="lower left", ncols=3)
accuracy.step(minutes, [part.accuracy for part in bins], where="post")
accuracy.set(ylabel="accuracy", xlabel="minutes")
plt.savefig("outage.svg")
