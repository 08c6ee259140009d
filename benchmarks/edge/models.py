"""Bundles for the edge benchmark: models of 50 trees, and cascades on Letters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison import peers
from benchmarks.data import problems
from gatewise_export import Bundle, pack
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier

PROBLEM = "letter-bin"
#: Size of the tree models on the 16 features of Letters.
N_TREES = 50
MAX_DEPTH = 4
#: Rows of each part of the fold with ``--quick``.
QUICK_ROWS = 1500
#: Bound on the flat arrays of the small cascade's operating point.
MAX_FLAT_BYTES = 2**16
#: Bound on the tables in C of the stages that it may fit. The same stages take more bytes in flat
#: arrays, which MAX_FLAT_BYTES bounds.
MAX_C_TABLE_BYTES = 2**14


@dataclass(frozen=True)
class PackedModel:
    """Packed model, and test rows of Letters of shape (n, 16)."""

    title: str
    bundle: Bundle
    rows: NDArray[np.float32]
    figures: dict[str, Any]  # sizes, and figures of the model on those rows


class _Specification(NamedTuple):
    title: str
    method: str
    params: Mapping[str, Any]
    choose_point: Callable[[BudgetedClassifier], BudgetedClassifier] = lambda system: system


def make_models(folder: Path, is_quick: bool) -> dict[str, PackedModel]:
    """Fit the models on Letters, N-Z against A-M, and pack them into a folder."""
    problem = problems.get(PROBLEM)
    fold = problem.make_folds(0)[0]
    if is_quick:
        fold = fold.sample(QUICK_ROWS)
    # max_loss 0 selects the penalty that keeps all trees
    tree_params = {
        "n_rounds": N_TREES,
        "max_depth": MAX_DEPTH,
        "num_leaves": 2**MAX_DEPTH,
        "penalties": (0.0,),
        "max_loss": 0.0,
    }
    cascade_params = {"max_loss": peers.MAX_LOSS}

    def select_all_trees(system: BudgetedClassifier) -> BudgetedClassifier:
        return system.at(budget=problem.costs.total)

    specifications = {
        "trees-50": _Specification(
            f"{N_TREES} trees of depth {MAX_DEPTH}, one graph",
            "greedy-miser",
            tree_params,
            select_all_trees,
        ),
        "lazy-50": _Specification(
            f"{N_TREES} trees of depth {MAX_DEPTH}, acquired node by node",
            "cegb",
            tree_params,
            select_all_trees,
        ),
        "letters": _Specification(
            "Letters' cascade, within 1 % of its high-cost model", "staged", cascade_params
        ),
        "letters-64kb": _Specification(
            f"its most accurate point within {MAX_FLAT_BYTES // 1024} KB of flat arrays",
            "staged",
            cascade_params | {"max_bytes": MAX_C_TABLE_BYTES},
            _select_small_point,
        ),
    }
    models = {}
    for name, specification in specifications.items():
        fitted_system = methods.make(
            specification.method,
            feature_costs=problem.costs,
            random_state=0,
            **specification.params,
        )
        fitted_system.fit(*fold.train, validation=fold.validation)
        system = specification.choose_point(fitted_system)
        # a small sample, because each start of a device runs the self-test on all its rows
        bundle = pack(system, folder / name, sample=fold.test[0][:32])
        rows = np.ascontiguousarray(fold.test[0], np.float32)
        exits = system.exit_stage(rows)
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
            "accuracy": round(float(np.mean(system.predict(rows) == fold.test[1])), 4),
            "mean_cost": round(float(system.cost(rows).mean()), 3),
        }
        models[name] = PackedModel(specification.title, bundle, rows, figures)
    return models


def _select_small_point(system: BudgetedClassifier) -> BudgetedClassifier:
    """Select the operating point within MAX_FLAT_BYTES that is most accurate on validation rows."""
    points = [point for point in system.frontier_.points if point.nbytes <= MAX_FLAT_BYTES]
    best_point = max(points, key=lambda point: (point.accuracy, -point.cost))
    return system.at(budget=best_point.cost)
