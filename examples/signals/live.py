"""Helpers of the examples: data files, fits, and a live run over a real broker."""

import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.model_selection import StratifiedGroupKFold

import gatewise as gw
from gatewise_cloud import MosquittoBroker

DATA_FOLDER = Path(os.environ.get("GATEWISE_DATA", "../shared/data"))
#: Parameters of a search of a few seconds. The default search is slower and better.
SEARCH = {
    "high_cost_model": LGBMClassifier(n_estimators=60, num_leaves=15, n_jobs=1, verbose=-1),
    "n_stages": 2, "effort": "low", "families": ("linear", "boosting"), "random_state": 0,
}  # fmt: skip


def load_arrays(name):
    """Load NAME.npz from the folder GATEWISE_DATA, or exit with a message."""
    path = DATA_FOLDER / f"{name}.npz"
    if not path.is_file():
        sys.exit(f"{path} does not exist: set GATEWISE_DATA to its folder")
    with np.load(path) as file:
        return {key: file[key] for key in file.files}  # decompress each array once


def thin_rows(groups, max_rows):
    """Choose at most `max_rows` rows of each group, at equal distances."""
    rows_by_group = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    return np.sort(np.concatenate([rows[:: -(-len(rows) // max_rows)] for rows in rows_by_group]))


def fit_cascade(blocks, windows, y, groups=None, **settings):
    """Fit a cascade on four fifths of the groups; the others choose stages and thresholds.

    By default a cascade uses all windows for both, by cross-fitting, which needs six times as many
    fits.
    """
    groups = np.arange(len(y)) if groups is None else groups
    train_rows, validation_rows = next(StratifiedGroupKFold(5).split(windows, y, groups))
    system = gw.StagedCascade(blocks=blocks, **SEARCH, **settings)
    validation = windows[validation_rows], y[validation_rows], groups[validation_rows]
    return system.fit(
        windows[train_rows], y[train_rows], groups=groups[train_rows], validation=validation
    )


def print_report(system, windows, y):
    """Print the system's accuracy and cost on windows of new groups; return its labels."""
    predicted_labels = system.predict(windows)
    accuracy = (predicted_labels == y).mean()
    mean_cost = system.cost(windows).mean()
    total_cost = system.feature_costs_.total
    print(system.summary())
    print(
        f"new groups: accuracy {accuracy:.3f}, {mean_cost:.0f} of {total_cost:.0f} "
        f"us of features per window; {system.offload(windows).mean():.1%} offloaded"
    )
    return predicted_labels


def answer_live(system, sample, windows, folder):
    """Pack a system, and answer windows by a device and a worker over mosquitto."""
    bundle = gw.pack(system, Path(folder) / "bundle", sample=sample)
    with MosquittoBroker() as broker:
        link = gw.MqttLink(broker.url, device="example")
        device = gw.Device(bundle, link=link, deadline_ms=2000)
        with gw.Worker(bundle, broker.url), device:
            link.connect(5.0)
            answers = [device.answer(window) for window in windows]
    routes = Counter(answer.route for answer in answers)
    latencies_ms = np.array([answer.latency_ms for answer in answers])
    median_ms, slowest_ms = np.median(latencies_ms), latencies_ms.max()
    print(f"live: {dict(routes)}; median {median_ms:.2f} ms, slowest {slowest_ms:.1f} ms")
    return answers
