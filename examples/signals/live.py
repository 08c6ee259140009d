"""What the examples share: data files, and a device and a worker that talk over a real broker."""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.model_selection import StratifiedGroupKFold

import gatewise as gw
from gatewise_cloud import MosquittoBroker

# A search of some seconds; without these settings it is longer and better.
SEARCH = {
    "high_cost_model": LGBMClassifier(n_estimators=60, num_leaves=15, n_jobs=1, verbose=-1),
    "n_stages": 2, "effort": "low", "families": ("linear", "boosting"), "random_state": 0,
}  # fmt: skip


def arrays(name):
    """Load NAME.npz from the folder GATEWISE_DATA, or end with what is missing."""
    folder = Path(os.environ.get("GATEWISE_DATA", "../shared/data"))
    path = folder / f"{name}.npz"
    if not path.is_file():
        sys.exit(f"{path} is not there: set GATEWISE_DATA to the folder that holds it")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}  # each read once: they are compressed


def thinned(groups, most):
    """Rows, at most so many of each group, drawn evenly."""
    parts = [np.flatnonzero(groups == g) for g in np.unique(groups)]
    return np.sort(np.concatenate([p[:: -(-len(p) // most)] for p in parts]))


def fitted(blocks, windows, y, groups=None, **settings):
    """Fit a cascade on four groups of five of each class; the fifth chooses stages and thresholds.

    Left to itself a cascade uses all windows for both, by cross-fitting: six times as many fits.
    """
    groups = np.arange(len(y)) if groups is None else groups
    train, choose = next(StratifiedGroupKFold(5).split(windows, y, groups))
    system = gw.StagedCascade(blocks=blocks, **SEARCH, **settings)
    validation = windows[choose], y[choose], groups[choose]
    return system.fit(windows[train], y[train], groups=groups[train], validation=validation)


def report(system, windows, y):
    """Print the system's accuracy and time on windows of new groups; returns its labels."""
    found, cost = system.predict(windows), system.cost(windows).mean()
    total = system.feature_costs_.total
    print(system.summary())
    print(
        f"new groups: {(found == y).mean():.3f} right, {cost:.0f} us of features a window where "
        f"all take {total:.0f}; {system.offload(windows).mean():.1%} offloaded"
    )
    return found


def talk(system, sample, windows, folder):
    """Pack a system; let a device and a worker answer windows over mosquitto."""
    bundle = gw.pack(system, Path(folder) / "bundle", sample=sample)
    with MosquittoBroker() as broker:
        link = gw.MqttLink(broker.url, device="example")
        device = gw.Device(bundle, link=link, deadline_ms=2000)
        with gw.Worker(bundle, broker.url), device:
            link.connect(5.0)
            answers = [device.answer(window) for window in windows]
    routes = Counter(answer.route for answer in answers)
    times = np.array([answer.latency_ms for answer in answers])
    print(f"live: {dict(routes)}; median {np.median(times):.2f} ms, slowest {times.max():.1f} ms")
    return answers
