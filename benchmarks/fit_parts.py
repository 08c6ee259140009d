"""What `bench_fit` times: fits of the project's, and plain LightGBM fits to hold them against.

A part is a generator that stops twice: between its two stops lies what is timed. It prepares
before the first, says something about what it made at the second, and may keep things after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.comparison.boosters import Booster, booster_fit
from benchmarks.data.folds import Fold
from gatewise_training.data.validation_split import ValidationSplit

F0 = {"num_leaves": 255, "learning_rate": 0.1}
TREES = {"num_leaves": 31, "learning_rate": 0.1}
SETTING = {"p_full": 0.3, "penalty": 1e-4, "n_rounds": 100, "warm_up": 20, **TREES}
"""One of Adapt-GBRT: a round grows a tree for f1 and, after the warm-up, one for the gate."""
N_STAGES = 10

About = Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Bench:
    """What a part is given."""

    fold: Fold
    folder: Path  # where the plain f0's answers are kept for the parts that need them
    threshold_rows: int  # validation rows that thresholds are tuned on

    def plan(self) -> ValidationSplit:
        """Split rows into training and validation."""
        x, y = self.fold.train
        return ValidationSplit.choose(
            x, y, np.ones(len(y)), validation=self.fold.validation, seed=0
        )

    @property
    def answers(self) -> Path:
        """File of the plain f0's probabilities on all rows of the plan."""
        return self.folder / "f0.npy"


Part = Callable[[Bench], Iterator[About]]


def _plain(plan: ValidationSplit, params: Mapping[str, Any], rounds: int | None) -> Booster:
    """Fit plain LightGBM: so many rounds, or with None until the judging rows say stop."""
    rows, held = plan.folds[0]
    fit = booster_fit(plan, np.arange(plan.x.shape[1]), 2, params, seed=0)
    return fit(rows, held if rounds is None else None, rounds)


def _plain_f0(bench: Bench) -> Iterator[About]:
    plan = bench.plan()
    yield {}
    model = _plain(plan, F0, None)
    yield {"trees": model.rounds}
    np.save(bench.answers, model.proba(plan.x))


def _plain_rounds(bench: Bench) -> Iterator[About]:
    plan = bench.plan()
    yield {}
    yield {"trees": _plain(plan, TREES, int(SETTING["n_rounds"])).rounds}


def _plain_trees(bench: Bench) -> Iterator[About]:
    plan, trees = bench.plan(), int(2 * SETTING["n_rounds"] - SETTING["warm_up"])
    yield {}
    yield {"trees": _plain(plan, TREES, trees).rounds}


def _adapt(bench: Bench) -> Iterator[About]:
    """One setting alone, on the rows that fit; f0's loss on them is known."""
    from gatewise.costs import FeatureCosts
    from gatewise_training.adapt.sample import LOG_FLOOR, Sample

    plan = bench.plan()
    rows = plan.fit_rows
    x, y = plan.x[rows], plan.y[rows]
    loss = -np.log(np.maximum(np.load(bench.answers)[rows, y], LOG_FLOOR))
    sample = Sample(x, y, np.ones(len(y)), loss, 2, FeatureCosts.uniform(x.shape[1]))
    method = _one_setting()
    yield {}
    (stage,) = method._fit_path(sample, SETTING["p_full"], 0, (SETTING["penalty"],))
    yield {"trees": stage.n_trees, "features": len(stage.features)}


def _adapt_fit(bench: Bench) -> Iterator[About]:
    """The same through ``fit``: with judging, thresholds and frontier."""
    known = _Known(np.load(bench.answers), bench.fold.train[0].shape[1])
    method = _one_setting(high_cost_model=known)
    yield {}
    system = method.fit(*bench.fold.train, validation=bench.fold.validation)
    yield {"trees": system.stages_[0].n_trees, "points": len(system.frontier_.points)}


def _one_setting(**more: Any) -> Any:
    from gatewise_training import AdaptGBRT

    given: dict[str, Any] = {k: v for k, v in SETTING.items() if k != "penalty"}
    given |= {"p_full": (SETTING["p_full"],), "penalties": (SETTING["penalty"],)}
    return AdaptGBRT(stop="gate", prefixes=(1.0,), random_state=0, **given, **more)


class _Known:
    """A fitted f0 whose answers are known, so that asking it costs nothing."""

    def __init__(self, proba: NDArray[np.float64], n_features: int) -> None:
        self.classes_ = np.array([0, 1])
        self.n_features_in_ = n_features
        self.proba = proba

    def predict_proba(self, x: NDArray[np.float32]) -> NDArray[np.float64]:
        # asked for all rows, or for those that judge, which are the last
        return self.proba[len(self.proba) - len(x) :]

    def predict(self, x: NDArray[np.float32]) -> NDArray[np.intp]:
        return np.asarray(self.predict_proba(x).argmax(1), np.intp)


def _thresholds(bench: Bench) -> Iterator[About]:
    """The frontier of ten stages: small models that have not seen the judging rows."""
    from gatewise_training.operating_points.thresholds import CascadeRecord, frontier_points

    everything, n_judges = bench.plan(), bench.threshold_rows
    n, width = everything.x.shape
    few = np.arange(n - n_judges)
    plan = ValidationSplit(everything.x, everything.y, everything.weight, ((few, few),))
    x, y = everything.x[len(few) :], everything.y[len(few) :]
    small = {"num_leaves": 15, "learning_rate": 0.1}
    f0 = _plain(plan, small, 200)
    best = np.argsort(-f0.gains())
    sizes = np.linspace(1, width // 2, N_STAGES).astype(int)
    proba = [
        booster_fit(plan, best[:size], 2, small, seed=0)(few, None, 50).proba(x) for size in sizes
    ]
    record = CascadeRecord(
        scores=np.stack([np.abs(p[:, 1] - 0.5) for p in proba]).astype(np.float32),
        correct=np.stack([p.argmax(1) == y for p in [*proba, f0.proba(x)]]).astype(np.float64),
        exit_costs=np.append(sizes, width).astype(np.float64),
        weights=np.ones(n_judges),
    )
    yield {}
    points = frontier_points(record)
    yield {"rows": n_judges, "stages": record.n_stages, "points": len(points)}


def _staged(bench: Bench) -> Iterator[About]:
    from gatewise_training import StagedCascade

    system = StagedCascade(random_state=0)
    yield {}
    system.fit(*bench.fold.train, validation=bench.fold.validation)
    yield {
        "f0": system.high_cost_model_.kind,
        "stages of a chain": [len(chain) for chain in system.chains_],
        "points": len(system.frontier_.points),
    }


PARTS: dict[str, tuple[str, Part, int]] = {
    "plain-f0": (
        "LightGBM of f0's size: 255 leaves, rate 0.1, up to 600 rounds, early stopping",
        _plain_f0,
        3,
    ),
    "plain-rounds": ("LightGBM, 31 leaves, the rounds of Adapt-GBRT", _plain_rounds, 5),
    "plain-trees": (
        "LightGBM, 31 leaves, a tree for each of Adapt-GBRT's (the gate's first 20 are empty)",
        _plain_trees,
        5,
    ),
    "adapt": ("Adapt-GBRT, one setting: 100 rounds, 31 leaves", _adapt, 5),
    "adapt-fit": ("the same by `fit`: with judging, thresholds, frontier", _adapt_fit, 3),
    "thresholds": ("thresholds of a whole frontier", _thresholds, 3),
    "staged": ("`StagedCascade().fit`, f0 and all", _staged, 1),
}
"""Parts by name: what it is, how it runs, how often."""
