"""The project's own methods, whatever cascade or budgeted model has a name in the library."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems import Fold
from benchmarks.record import Point
from gatewise_training.decision import ALWAYS_STOP, exit_stages, labels, split

__all__ = ["own_choice", "stage_bytes", "system_points"]


def system_points(system: Any, fold: Fold) -> list[Point]:
    """Measure every operating point of a fitted system on test rows.

    The stages run once, not once a point. The figures are those that ``system.at(...)`` would
    give with ``predict`` and ``cost``; a test holds them to that.

    Parameters
    ----------
    system : a fitted budgeted model or cascade
        Fitted on class indices.
    fold : Fold
    """
    x, y = fold.test
    f0 = system.high_cost_model_
    answers = None if f0 is None else system.classes_[f0.labels(x)]
    points: list[Point] = []
    for number, stages in enumerate(system.chains_):
        parts = [split(stage.margins(x), stage.score) for stage in stages]
        said = [system.classes_[labels(margins)] for margins, _ in parts]
        right = np.stack([a == y for a in (*said, said[-1] if answers is None else answers)])
        union, paper = _exit_costs(system, stages)
        sizes = np.cumsum([stage_bytes(stage) for stage in stages])
        for point in system.frontier_.points:
            if point.chain != number:
                continue
            exits = exit_stages([score for _, score in parts], point.thresholds)
            if f0 is None:
                exits = np.minimum(exits, len(stages) - 1)
            last = next(
                (s for s, t in enumerate(point.thresholds) if t is not None and t <= ALWAYS_STOP),
                len(stages) - 1,
            )
            points.append(
                Point(
                    point.accuracy,
                    point.cost,
                    float(right[exits, np.arange(len(y))].mean()),
                    float(union[exits].mean()),
                    float(paper[exits].mean()),
                    float((exits == len(stages)).mean()),
                    int(sizes[last]),
                )
            )
    return points


def own_choice(system: Any, fold: Fold, max_loss: float) -> Point:
    """Measure the point that the system itself takes for ``at(max_loss=...)``."""
    x, y = fold.test
    chosen = system.at(max_loss=max_loss)
    point = chosen.operating_point_
    return Point(
        point.accuracy,
        point.cost,
        float(np.mean(chosen.predict(x) == y)),
        float(chosen.cost(x).mean()),
        float(chosen.cost(x, accounting="paper").mean()),
        float(np.mean(chosen.exit_stage(x) == len(chosen.stages_))),
        sum(stage_bytes(stage) for stage in chosen.stages_),
    )


def stage_bytes(stage: Any) -> int:
    """Size of a stage's model as the flat arrays that it is."""
    arrays = (getattr(stage.model, f.name) for f in fields(stage.model))
    return sum(int(np.asarray(a).nbytes) for a in arrays if isinstance(a, np.ndarray))


def _exit_costs(system: Any, stages: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cost of leaving at each stage and of being offloaded: with the union, as in the paper."""
    costs, f0 = system.feature_costs_, system.high_cost_model_
    bought = np.zeros(costs.n_features, bool)
    here = []
    for stage in stages:
        bought = bought | costs.mask(stage.features)
        here.append(costs.of(bought))
    if f0 is None:
        return np.array([*here, here[-1]]), np.array([*here, here[-1]])
    request = system.cloud_prices_.of_offload(len(f0.features))
    asked = costs.mask(f0.features)
    union = costs.of(bought | asked) + request
    return np.array([*here, union]), np.array([*here, costs.of(asked) + request])
