"""All methods by name: the project's own, and the peers.

Every method gets the same training and validation rows (:class:`.ValidationSplit`), the same
capacity and one thread, and returns operating points.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.comparison import peer_catboost, peer_cegb, peer_static
from benchmarks.comparison.record import BYTE_BOUNDS, Point, finished
from benchmarks.comparison.systems import own_choice, system_points
from benchmarks.data.folds import Fold
from benchmarks.data.problems import Problem
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

    def plan(self) -> ValidationSplit:
        """Deal the rows into fitting and judging rows."""
        x, y = self.fold.train
        ones = np.ones(len(y))
        return ValidationSplit.choose(x, y, ones, validation=self.fold.validation, seed=self.seed)


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
}
"""Peers, and the module that holds each; f0 is the high-cost model for every instance."""


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


def module_of(method: str) -> str:
    """Module whose code, with all that it imports, decides what a method does."""
    if method in PEERS:
        return PEERS[method]
    return type(_make(method)).__module__


def same_for_all_seeds(method: str, problem: Problem) -> bool:
    """Whether seeds make no difference: LightGBM without sampling, on a split that is fixed."""
    return method in ("static", "cegb-coupled", "cegb-lazy") and not problem.drawn


def solve(method: str, task: Task) -> Outcome:
    """Solve a fold by a method."""
    start = time.process_time()
    outcome = _solve(method, task)
    points = finished(outcome.points, task.fold)
    return replace(outcome, points=points, seconds=outcome.seconds + time.process_time() - start)


def _solve(method: str, task: Task) -> Outcome:
    problem, fold, seed, fits = task.problem, task.fold, task.seed, task.fits
    if method not in PEERS:
        return _system(method, task)
    plan = task.plan()
    if method in ("cegb-coupled", "cegb-lazy", "catboost"):
        run = {
            "cegb-coupled": peer_cegb.coupled,
            "cegb-lazy": peer_cegb.lazy,
            "catboost": peer_catboost.first_use,
        }[method]
        return Outcome(run(problem, fold, plan, seed, fits), None, 0.0, {})
    seconds = 0.0
    details: dict[str, Any] = {}
    f0, peer_points = None, []
    if method != "static":
        f0 = task.keep("cloud", lambda: peer_static.cloud(problem, fold, plan, seed))
        seconds += f0.seconds
        details["f0"] = f0.kind
    if method != "f0":
        peer_points = task.keep(
            "subsets", lambda: peer_static.subsets(problem, fold, plan, seed, fits)
        )
        seconds += sum(s.seconds for s in peer_points)
    if f0 is None:
        points = peer_static.single(peer_points, plan, fold, problem.costs)
    elif not peer_points:
        points = peer_static.cloud_only(f0, plan, fold, problem.costs)
    else:
        points = peer_static.two_stage(peer_points, f0, method, plan, fold, problem.costs)
    # what was kept is counted at what it cost when it was made, not at what it took to load
    return Outcome(points, None, seconds, details)


def _system(method: str, task: Task) -> Outcome:
    system = _make(
        method, feature_costs=task.problem.costs, max_loss=MAX_LOSS, random_state=task.seed
    )
    system.fit(*task.fold.train, validation=task.fold.validation)
    details = {
        "f0": None if system.high_cost_model_ is None else system.high_cost_model_.kind,
        "families": list(getattr(system, "families_", ())),
        "stage_features": [[len(s.features) for s in chain] for chain in system.chains_],
        "reference_accuracy": system.frontier_.reference_accuracy,
    }
    own_point = own_choice(system, task.fold, MAX_LOSS)
    return Outcome(system_points(system, task.fold), own_point, 0.0, details)


def _make(method: str, **params: Any) -> Any:
    name, bounds = VARIANTS.get(method, (method, {}))
    return library.make(name, **bounds, **params)
