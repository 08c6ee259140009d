"""Bundles for the edge benchmark: models of 50 trees, and cascades on Letters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison import peers
from benchmarks.data import problems
from gatewise_export import Bundle, pack
from gatewise_training import methods

PROBLEM = "letter-bin"
#: Size of the tree models on the 16 features of Letters.
TREES, DEPTH = 50, 4
QUICK_ROWS = 1500
SMALL_BYTES = 2**16


@dataclass(frozen=True)
class Model:
    """Packed model, and test rows of Letters of shape (n, 16)."""

    title: str
    bundle: Bundle
    rows: NDArray[np.float32]
    figures: dict[str, Any]  # sizes, and figures of the model on those rows


def make_models(folder: Path, is_quick: bool) -> dict[str, Model]:
    """Fit the models on Letters, N-Z against A-M, and pack them into a folder."""
    problem = problems.get(PROBLEM)
    fold = problem.make_folds(0)[0]
    if is_quick:
        fold = fold.sample(QUICK_ROWS)
    trees = {"n_rounds": TREES, "max_depth": DEPTH, "num_leaves": 2**DEPTH, "penalties": (0.0,)}
    specifications: dict[str, tuple[str, str, dict[str, Any]]] = {
        "trees-50": (f"{TREES} trees of depth {DEPTH}, one graph", "greedy-miser", trees),
        "lazy-50": (f"{TREES} trees of depth {DEPTH}, acquired node by node", "cegb", trees),
        "letters": ("Letters' cascade, within 1 % of its high-cost model", "staged", {}),
        "letters-64kb": (
            "its most accurate point within 64 KB of flat arrays",
            "staged",
            {"max_bytes": 2**14},
        ),
    }
    models = {}
    for name, (title, method, params) in specifications.items():
        if name.startswith("letters"):
            params = params | {"max_loss": peers.MAX_LOSS}
        else:
            # A loss of 0 selects the point with all trees.
            params = params | {"max_loss": 0.0}
        system: Any = methods.make(method, feature_costs=problem.costs, random_state=0, **params)
        system.fit(*fold.train, validation=fold.validation)
        if not name.startswith("letters"):
            system = system.at(budget=problem.costs.total)
        elif name.endswith("64kb"):
            system = _within_bytes(system, SMALL_BYTES)
        bundle = pack(system, folder / name, sample=fold.test[0][:32])
        x = np.ascontiguousarray(fold.test[0], np.float32)
        exits = np.asarray(system.exit_stage(x)) if hasattr(system, "exit_stage") else np.zeros(1)
        stages = bundle.manifest.stages
        figures = {
            "stages": len(stages),
            "kinds": [stage.kind for stage in stages],
            "file_bytes": sum(stage.bytes for stage in stages),
            "flat_bytes": system.operating_point_.nbytes,
            "first_stage_features": len(stages[0].inputs),
            "first_stage_stops": round(float((exits == 0).mean()), 4),
            "offload_rate": round(float((exits == len(stages)).mean()), 4)
            if bundle.manifest.cloud
            else 0.0,
            "accuracy": round(float(np.mean(system.predict(x) == fold.test[1])), 4),
            "mean_cost": round(float(system.cost(x).mean()), 3),
        }
        models[name] = Model(title, bundle, x, figures)
    return models


def _within_bytes(system: Any, max_bytes: int) -> Any:
    """System at its most accurate operating point, by validation, within `max_bytes`."""
    points = [p for p in system.frontier_.points if p.nbytes <= max_bytes]
    best_point = max(points, key=lambda p: (p.accuracy, -p.cost))
    return system.at(budget=best_point.cost)
