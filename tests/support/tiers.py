"""A small system with stages on the device, on a gateway and in the cloud, and its bundle."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

from gatewise_export import Bundle, pack
from gatewise_training import CloudPrices, FeatureCosts, StagedCascade

K = 8


def two_classes() -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """900 rows of K features, two classes; the first 500 are for training."""
    X, y = make_classification(
        900, K, n_informative=4, n_redundant=2, class_sep=0.8, flip_y=0.05, random_state=0
    )
    return X.astype(np.float32), y


def make_tiered(folder: Path) -> SimpleNamespace:
    """A system with a stage on each tier, its bundle, and the rows that it has not seen."""
    X, y = two_classes()
    tiers = {"device": 1, "gateway": 1, "cloud": None}
    system, path = pack_tiers(folder / "bundle", X, y, tiers)
    return SimpleNamespace(system=system, rows=X[500:], truth=y[500:], bundle=Bundle.open(path))


def pack_tiers(
    path: Path, X: NDArray[np.float32], y: NDArray[np.int64], tiers: Mapping[str, int | None]
) -> tuple[StagedCascade, Path]:
    """Make a system with three stages on these tiers, of which each answers some rows; pack it."""
    system = StagedCascade(
        ExtraTreesClassifier(40, random_state=0),
        FeatureCosts([1, 2, 0.5, 1, 3, 1, 0.25, 4]),
        cloud_prices=CloudPrices(request=1.5, byte=0.01, evaluation=30.0, gateway=0.25),
        tiers=tiers,
        n_stages=3,
        families=("linear",),
        effort="low",
        random_state=0,
    ).fit(X[:500], y[:500])
    longest = max(system.frontier_.points, key=lambda p: len(system.chains_[p.chain]))
    stages = system.chains_[longest.chain]
    assert len(stages) == 3
    # A third of the rows stops on each stage that it comes to, so that all tiers have work.
    halves = tuple(float(np.quantile(stage.run(X)[1], 0.66)) for stage in stages)
    chosen = system.at(budget=1e9)
    chosen.operating_point_ = replace(longest, thresholds=halves)
    pack(chosen, path, sample=X[:32])
    manifest = json.loads((path / "manifest.json").read_text())
    points = manifest["operating_points"]
    wanted = [p.chain for p in system.frontier_.points]
    manifest["active"] = next(
        i for i, p in enumerate(points) if wanted[i] == longest.chain and len(p["thresholds"]) == 3
    )
    points[manifest["active"]]["thresholds"] = [float(np.float32(t)) for t in halves]
    (path / "manifest.json").write_text(json.dumps(manifest))
    return chosen, path
