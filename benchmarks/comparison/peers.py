"""All methods by name: the project's own, and the peers.

Every method gets the same training and validation rows (:class:`.ValidationSplit`), the same
capacity and one thread, and returns operating points.
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
from benchmarks.comparison.method import Method, checked_points, is_own, load_own
from benchmarks.comparison.record import BYTE_BOUNDS, Point, finished
from benchmarks.comparison.systems import own_choice, system_points
from benchmarks.data.folds import Fold, Table, Truth
from benchmarks.data.problems import Problem
from gatewise.costs import FeatureCosts
from gatewise_training import methods as library
from gatewise_training.data.validation_split import ValidationSplit

MAX_LOSS = 0.01


@dataclass(frozen=True, eq=False)
class Task:
    """A fold to be solved."""

    problem: Problem
    fold: Fold
    seed: int
    fits: int  # models of a sweep
    #: Cache of a function's results by name, for one fold.
    keep: Callable[[str, Callable[[], Any]], Any]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a method made of a fold."""

    points: list[Point]  # sorted by validation's cost
    own: Point | None  # its own choice within 1 % of its high-cost model, where it can
    seconds: float  # CPU, of fits, choices and measuring
    about: dict[str, Any]


PEERS = {
    "f0": "benchmarks.comparison.peer_static",
    "static": "benchmarks.comparison.peer_static",
    "two-stage": "benchmarks.comparison.peer_static",
    "sedna-cross-entropy": "benchmarks.comparison.peer_static",
    "sedna-threshold": "benchmarks.comparison.peer_static",
    "cegb-coupled": "benchmarks.comparison.peer_cegb",
    "cegb-lazy": "benchmarks.comparison.peer_cegb",
    "catboost": "benchmarks.comparison.peer_catboost",
    "entropy-forest": "benchmarks.comparison.peer_forest",
}
"""Peers, and the module that holds each; f0 is the high-cost model for every instance."""

SWEEPS: dict[str, Callable[[Problem, Fold, ValidationSplit, int, int], list[Point]]] = {
    "cegb-coupled": peer_cegb.coupled,
    "cegb-lazy": peer_cegb.lazy,
    "catboost": peer_catboost.first_use,
    "entropy-forest": peer_forest.early_stopped,
}
"""Peers that are single models under a sweep: of penalties, or of depths."""


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{f"staged-{name}": ("staged", {"max_bytes": most}) for name, most in BYTE_BOUNDS.items()},
    "adapt-gbrt-gate": ("adapt-gbrt", {"stop": "gate"}),
    "adapt-lin-gate": ("adapt-lin", {"stop": "gate"}),
}
"""Our own methods fitted for so much room on the device, all stages together; and Adapt as in its
paper, where by default validation chooses between the gate and f1's margin."""


def methods() -> tuple[str, ...]:
    """Names of all methods: the library's, their variants, then the peers."""
    return (*library.names(), *VARIANTS, *PEERS)


def code_of(name: str) -> str:
    """Hash of the code that decides what a method does, with all of ours that it imports."""
    if is_own(name):
        return hashlib.sha256(Path(name.rpartition(":")[0]).read_bytes()).hexdigest()
    module = PEERS[name] if name in PEERS else type(_make_system(name)).__module__
    return code_version(module)


def same_for_all_seeds(method: str, problem: Problem) -> bool:
    """Whether seeds make no difference: LightGBM without sampling, on a split that is fixed."""
    return method in ("static", "cegb-coupled", "cegb-lazy") and not problem.drawn


def solve(name: str, task: Task) -> Outcome:
    """Solve a fold by a method."""
    start = time.process_time()
    method = make_method(name, task)
    method.fit(*task.fold.train, task.problem.costs, task.fold.validation)
    points = checked_points(name, method.points(task.fold.test[0], task.fold.truth))
    own_point = method.own_choice() if isinstance(method, LibraryMethod) else None
    # what was kept is counted at what it cost when it was made, not at what it took to load
    kept_seconds = method.kept_seconds if isinstance(method, Peer) else 0.0
    details = method.details if isinstance(method, LibraryMethod | Peer) else {}
    seconds = kept_seconds + time.process_time() - start
    return Outcome(finished(points, task.fold), own_point, seconds, details)


def make_method(name: str, task: Task) -> Method:
    """Make a method by name: the library's, a peer, or a user's own."""
    if is_own(name):
        return load_own(name, task.seed)
    return Peer(name, task) if name in PEERS else LibraryMethod(name, task)


class LibraryMethod:
    """A system or a budgeted model of the library."""

    def __init__(self, name: str, task: Task) -> None:
        self._name = name
        self._task = task

    def fit(
        self,
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
        prices: FeatureCosts,
        validation: Table | None,
    ) -> None:
        """Fit the system, as :class:`.Method` says."""
        self._system = _make_system(
            self._name, feature_costs=prices, max_loss=MAX_LOSS, random_state=self._task.seed
        )
        self._system.fit(rows, labels, validation=validation)

    def points(self, rows: NDArray[np.float32], truth: Truth) -> list[Point]:
        """Measure the points of the system's frontier."""
        return system_points(self._system, replace(self._task.fold, test=(rows, truth.y)))

    def own_choice(self) -> Point:
        """Measure the point that the system itself takes within :data:`MAX_LOSS`."""
        return own_choice(self._system, self._task.fold, MAX_LOSS)

    @property
    def details(self) -> dict[str, Any]:
        """What the fit chose."""
        system = self._system
        return {
            "f0": None if system.high_cost_model_ is None else system.high_cost_model_.kind,
            "families": list(getattr(system, "families_", ())),
            "stage_features": [[len(s.features) for s in chain] for chain in system.chains_],
            "reference_accuracy": system.frontier_.reference_accuracy,
        }


class Peer:
    """A method of others. A sweep places its fits by their costs, so it fits and measures in one.

    What several peers share (the high-cost model, static subsets) is made by the first of them.
    """

    def __init__(self, name: str, task: Task) -> None:
        self._name = name
        self._task = task
        self.kept_seconds = 0.0
        self.details: dict[str, Any] = {}

    def fit(
        self,
        rows: NDArray[np.float32],
        labels: NDArray[np.int64],
        prices: FeatureCosts,
        validation: Table | None,
    ) -> None:
        """Deal the rows into fitting and judging rows."""
        self._plan = ValidationSplit.choose(
            rows, labels, np.ones(len(labels)), validation=validation, seed=self._task.seed
        )

    def points(self, rows: NDArray[np.float32], truth: Truth) -> list[Point]:
        """Fit the sweep's models and measure them."""
        task, plan = self._task, self._plan
        fold = replace(task.fold, test=(rows, truth.y))
        sweep = SWEEPS.get(self._name)
        if sweep is not None:
            return sweep(task.problem, fold, plan, task.seed, task.fits)
        f0 = None if self._name == "static" else self._high_cost_model(fold)
        subsets = [] if self._name == "f0" else self._subsets(fold)
        costs = task.problem.costs
        if f0 is None:
            return peer_static.single(subsets, plan, fold, costs)
        if self._name == "f0":
            return peer_static.cloud_only(f0, plan, fold, costs)
        return peer_static.two_stage(subsets, f0, self._name, plan, fold, costs)

    def _high_cost_model(self, fold: Fold) -> peer_static.Cloud:
        task = self._task
        f0: peer_static.Cloud = task.keep(
            "cloud", lambda: peer_static.cloud(task.problem, fold, self._plan, task.seed)
        )
        self.kept_seconds += f0.seconds
        self.details["f0"] = f0.kind
        return f0

    def _subsets(self, fold: Fold) -> list[peer_static.Subset]:
        task = self._task
        subsets: list[peer_static.Subset] = task.keep(
            "subsets",
            lambda: peer_static.subsets(task.problem, fold, self._plan, task.seed, task.fits),
        )
        self.kept_seconds += sum(subset.seconds for subset in subsets)
        return subsets


def _make_system(name: str, **params: Any) -> Any:
    method, bounds = VARIANTS.get(name, (name, {}))
    return library.make(method, **bounds, **params)
