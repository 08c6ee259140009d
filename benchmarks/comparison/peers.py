"""All methods of the comparison by name, of this project and of peers.

Every method gets the same training and validation rows (:class:`.ValidationSplit`), the same
capacity and one thread. It returns operating points.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cache import code_version
from benchmarks.comparison import peer_catboost, peer_cegb, peer_forest, peer_static
from benchmarks.comparison.method import (
    Method,
    is_user_method,
    list_checked_points,
    load_user_method,
)
from benchmarks.comparison.record import BYTE_BOUNDS, Point, pareto_points
from benchmarks.comparison.systems import own_choice, system_points
from benchmarks.data.folds import Fold, LabelledRows, Truth
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training import methods as library
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.model_families import family_of

#: Loss of accuracy for which a system chooses its own point, as in :mod:`.summary`.
MAX_LOSS = 0.01


@dataclass(frozen=True, eq=False)
class Task:
    """Problem, fold and seed that a method is run on."""

    problem: Problem
    fold: Fold
    seed: int
    n_fits: int  # number of models in a sweep
    #: Calls a function, or reads its result from a cache by name.
    read_or_fit: Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True, eq=False)
class Outcome:
    """Result of a method on a fold."""

    points: list[Point]  # sorted by validation cost
    chosen_point: Point | None  # the system's choice within 1 % of its high-cost model, if any
    seconds: float  # CPU time of fits and measurements
    about: dict[str, Any]


#: Peers that fit single models for a range of penalties or depths.
SWEEPS: dict[str, Callable[[Problem, Fold, ValidationSplit, int, int], list[Point]]] = {
    "cegb-coupled": peer_cegb.coupled_points,
    "cegb-lazy": peer_cegb.lazy_points,
    "catboost": peer_catboost.catboost_points,
    "entropy-forest": peer_forest.limited_depth_points,
}

#: Modules of the peers by name; f0 applies the high-cost model to every instance.
PEERS = {
    **dict.fromkeys(("f0", "static", *peer_static.SCORES), peer_static.__name__),
    **{name: sweep.__module__ for name, sweep in SWEEPS.items()},
}


#: Methods of this project with other settings: within a bound of bytes, and Adapt with the gate of
#: its paper. By default, Adapt chooses between the gate and the margin of f1 on validation rows.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"staged-{name}": ("staged", {"max_bytes": n_bytes})
        for name, n_bytes in BYTE_BOUNDS.items()
    },
    "adapt-gbrt-gate": ("adapt-gbrt", {"stop": "gate"}),
    "adapt-lin-gate": ("adapt-lin", {"stop": "gate"}),
}


def methods() -> tuple[str, ...]:
    """List the names of the library's methods, their variants and the peers, in this order."""
    return (*library.names(), *VARIANTS, *PEERS)


def code_hash(name: str) -> str:
    """Hash of the code of a method and of all project modules that it imports."""
    if is_user_method(name):
        return hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()
    module = PEERS[name] if name in PEERS else type(_make_system(name)).__module__
    return code_version(module)


def ignores_seed(method: str, problem: Problem) -> bool:
    """Return whether the seed has no effect, as for LightGBM without sampling on a fixed split."""
    return method in ("static", "cegb-coupled", "cegb-lazy") and not problem.split_depends_on_seed


def run_method(name: str, task: Task) -> Outcome:
    """Fit a method on a fold and measure its points."""
    start_time = time.process_time()
    method: Method
    if is_user_method(name):
        method = load_user_method(name, task.seed)
    else:
        method = Peer(name, task) if name in PEERS else LibraryMethod(name, task)
    method.fit(*task.fold.train, task.problem.costs, task.fold.validation)
    points = list_checked_points(name, method.points(task.fold.test[0], task.fold.test_truth))
    chosen_point = method.own_choice() if isinstance(method, LibraryMethod) else None
    # cached models count with the time of their fits, not with the time to load them
    cached_fit_seconds = method.cached_fit_seconds if isinstance(method, Peer) else 0.0
    details = method.details if isinstance(method, LibraryMethod | Peer) else {}
    seconds = cached_fit_seconds + time.process_time() - start_time
    return Outcome(pareto_points(points, task.fold), chosen_point, seconds, details)


class LibraryMethod:
    """Cascade or budgeted model of the library."""

    def __init__(self, name: str, task: Task) -> None:
        self._name = name
        self._task = task

    def fit(
        self,
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
        prices: FeatureCosts,
        validation: LabelledRows | None,
    ) -> None:
        """Fit the system; see :class:`.Method`."""
        self._system = _make_system(
            self._name, feature_costs=prices, max_loss=MAX_LOSS, random_state=self._task.seed
        )
        self._system.fit(rows, labels, validation=validation)

    def points(self, rows: NDArray[np.float32], truth: Truth) -> list[Point]:
        """Measure the points of the system's frontier."""
        return system_points(self._system, replace(self._task.fold, test=(rows, truth.y)))

    def own_choice(self) -> Point:
        """Measure the point that the system chooses within :data:`MAX_LOSS`."""
        return own_choice(self._system, self._task.fold, MAX_LOSS)

    @property
    def details(self) -> dict[str, Any]:
        """Models and features that the fit chose."""
        system = self._system
        return {
            "f0": None if system.high_cost_model_ is None else system.high_cost_model_.kind,
            "families": [family_of(stage) for stage in system.stages_],
            "stage_features": [
                [len(stage.features) for stage in chain] for chain in system.chains_
            ],
            "reference_accuracy": system.frontier_.reference_accuracy,
        }


class Peer:
    """Method of a peer, which fits its models when it measures points.

    A sweep needs the cost of each fit to choose the next one. Peers share the high-cost model and
    the static subsets, which the first of them fits.
    """

    def __init__(self, name: str, task: Task) -> None:
        self._name = name
        self._task = task
        self.cached_fit_seconds = 0.0
        self.details: dict[str, Any] = {}

    def fit(
        self,
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
        prices: FeatureCosts,
        validation: LabelledRows | None,
    ) -> None:
        """Split the rows into fitting and validation rows."""
        self._plan = ValidationSplit.choose(
            rows, labels, np.ones(len(labels)), validation=validation, seed=self._task.seed
        )

    def points(self, rows: NDArray[np.float32], truth: Truth) -> list[Point]:
        """Fit the models and measure their points."""
        task, plan = self._task, self._plan
        fold = replace(task.fold, test=(rows, truth.y))
        sweep = SWEEPS.get(self._name)
        if sweep is not None:
            return sweep(task.problem, fold, plan, task.seed, task.n_fits)
        cloud_answers = None if self._name == "static" else self._fit_cloud(fold)
        subsets = [] if self._name == "f0" else self._fit_subsets(fold)
        costs = task.problem.costs
        if cloud_answers is None:
            return peer_static.single_model_points(subsets, plan, fold, costs)
        if self._name == "f0":
            return peer_static.cloud_only_points(cloud_answers, plan, fold, costs)
        return peer_static.two_stage_points(subsets, cloud_answers, self._name, plan, fold, costs)

    def _fit_cloud(self, fold: Fold) -> peer_static.CloudAnswers:
        task = self._task
        cloud_answers: peer_static.CloudAnswers = task.read_or_fit(
            "cloud", lambda: peer_static.fit_cloud(task.problem, fold, self._plan, task.seed)
        )
        self.cached_fit_seconds += cloud_answers.seconds
        self.details["f0"] = cloud_answers.kind
        return cloud_answers

    def _fit_subsets(self, fold: Fold) -> list[peer_static.Subset]:
        task = self._task
        subsets: list[peer_static.Subset] = task.read_or_fit(
            "subsets",
            lambda: peer_static.fit_subsets(task.problem, fold, self._plan, task.seed, task.n_fits),
        )
        self.cached_fit_seconds += sum(subset.seconds for subset in subsets)
        return subsets


def _make_system(name: str, **settings: Any) -> Any:
    method, variant_settings = VARIANTS.get(name, (name, {}))
    return library.make(method, **variant_settings, **settings)
