"""Explanation of one answer: stage by stage what was acquired, at which price, and why it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.console import html_table
from gatewise.decision import labels, probabilities, split, stops
from gatewise.errors import InputError
from gatewise.formats import threshold as threshold_text
from gatewise_training.views.summary import high_cost_name, named

MOST_NAMED = 8
"""Features that a line names."""


@dataclass(frozen=True)
class ExplainedStage:
    """What one stage, or the high-cost model, did with an instance.

    Attributes
    ----------
    name : str
        ``stage 0``, ..., or ``high-cost model``.
    model : str
        What it is, as "35 trees".
    tier : str
        Where it runs.
    acquired : tuple of str
        Features that it acquired and no stage before.
    price : float
        What that cost, and what leaving the device there cost.
    label : object
        Its answer, right or not.
    probability : float
        Of that label.
    score, threshold : float or None
        The stop score, and the threshold that it had to reach; None of the high-cost model, and
        of a threshold that never stops.
    stopped : bool
        Whether the answer is this one.
    blocks : tuple of str
        Labels of the blocks of these features, where they are computed from a signal.
    """

    name: str
    model: str
    tier: str
    acquired: tuple[str, ...]
    price: float
    label: Any
    probability: float
    score: float | None
    threshold: float | None
    stopped: bool
    blocks: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The comparison that decided."""
        if self.score is None:
            return "no stage was sure enough"
        if np.isnan(self.score):
            return "no score: goes on"
        if self.threshold is None:
            return f"score {self.score:.4g}, never stops here: goes on"
        limit = threshold_text(self.threshold)
        if limit == "always":
            return "always stops here" if self.stopped else "goes on"
        sign, then = (">=", "stops") if self.stopped else ("<", "goes on")
        return f"score {self.score:.4g} {sign} {limit}: {then}"

    @property
    def features(self) -> str:
        """The features acquired, of many the first."""
        listed = self.blocks or self.acquired
        more = len(listed) - MOST_NAMED
        names = ", ".join(listed[:MOST_NAMED]) + f" and {more} more" * (more > 0)
        return names or "nothing new"


@dataclass(frozen=True)
class Explanation:
    """Why an instance got its answer; prints as a few lines.

    Attributes
    ----------
    label : object
    probability : float
        Of the label.
    stage : int
        That answered; the number of stages: the high-cost model.
    n_stages : int
    cost : float
        In all, in the unit of the feature costs.
    cost_of_offload : float or None
        What an offloaded instance costs; None without a high-cost model.
    steps : tuple of ExplainedStage
        Those that the instance came by, in order.
    """

    label: Any
    probability: float
    stage: int
    n_stages: int
    cost: float
    cost_of_offload: float | None
    steps: tuple[ExplainedStage, ...]

    @property
    def offloaded(self) -> bool:
        """Whether the high-cost model answered."""
        return self.stage == self.n_stages

    @property
    def headline(self) -> str:
        """The answer, by which model, at which cost."""
        if self.offloaded:
            who = "the high-cost model"
        else:
            who = f"stage {self.stage} (of {self.n_stages})"
        saved = ""
        if self.cost_of_offload is not None and not self.offloaded:
            saved = f" (offloaded: {self.cost_of_offload:.4g})"
        return (
            f"{str(self.label)!r} with probability {self.probability:.3f}, answered by {who}; "
            f"cost {self.cost:.4g}{saved}"
        )

    def __str__(self) -> str:
        lines = [self.headline]
        for step in self.steps:
            place = "" if step.tier == "device" else f", in the {step.tier}"
            lines.append(
                f"  {step.name} ({step.model}{place}) acquired {step.features} for "
                f"{step.price:.4g}; {str(step.label)!r} {step.probability:.3f}; {step.why}"
            )
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (s.name, s.model, s.features, f"{s.price:.4g}", f"{s.label} {s.probability:.3f}", s.why)
            for s in self.steps
        ]
        header = ("", "model", "acquired", "price", "answer", "why")
        return html_table(self.headline, header, rows)


def _one_row(system: Any, x: Any) -> Any:
    """Make one instance rows of shape (1, n_features), with names where the system has them."""
    if hasattr(system, "signal_input_"):
        return [x] if hasattr(x, "columns") else np.asarray(x)[np.newaxis]
    names = list(getattr(system, "feature_names_in_", ()))
    if isinstance(x, Mapping) or (hasattr(x, "to_dict") and getattr(x, "ndim", 2) == 1):
        missing = [name for name in system.feature_names_ if name not in x]
        if missing:
            raise InputError(f"the instance lacks {missing[0]!r}")
        x = [x[name] for name in system.feature_names_]
    spec = getattr(system, "instance_", None)  # of instances of any shape, as they are
    if hasattr(x, "columns"):
        rows = x
    else:
        rows = np.asarray(x) if spec is not None else np.asarray(x, np.float32)
        one = 1 if spec is None else len(spec.shape)
        rows = rows[None] if rows.ndim == one else rows
    if len(rows) != 1:
        raise InputError(f"explain takes one instance, not {len(rows)}")
    if names and spec is None and not hasattr(rows, "columns"):
        import pandas as pd

        if rows.shape[1] != len(names):
            raise InputError(f"the instance has {rows.shape[1]} features; {len(names)} are needed")
        rows = pd.DataFrame(rows, columns=names)
    return rows


def explain(system: Any, x: Any) -> Explanation:
    """Explain a fitted system's answer to one instance; see :meth:`.BudgetedClassifier.explain`."""
    row = system._rows(_one_row(system, x))
    stages, thresholds = system.stages_, system.operating_point_.thresholds
    acquired = [np.atleast_2d(stage.acquired(row))[0] for stage in stages]
    by_exit = np.asarray(system._exit_costs(acquired, [s.tier for s in stages])).reshape(-1)
    has_cloud = system.high_cost_model_ is not None
    known, paid, steps = np.zeros(len(acquired[0]), bool), 0.0, []
    for s, (stage, limit) in enumerate(zip(stages, thresholds, strict=True)):
        margins, score = split(stage.margins(row), stage.score)
        last = not has_cloud and s == len(stages) - 1
        chance, index = probabilities(margins, stage.link)[0], int(labels(margins)[0])
        stopped = bool(stops(score, limit)[0]) or last
        steps.append(
            ExplainedStage(
                name=f"stage {s}",
                model=stage.model_name,
                tier=stage.tier,
                **_names(system, acquired[s] & ~known),
                price=float(by_exit[s]) - paid,
                label=_plain(system.classes_[index]),
                probability=float(chance[index]),
                score=float(score[0]),
                threshold=None if limit is None else float(limit),
                stopped=stopped,
            )
        )
        known, paid = known | acquired[s], float(by_exit[s])
        if stopped:
            break
    if not steps[-1].stopped:
        steps.append(_high_cost_step(system, row, known, float(by_exit[-1]) - paid))
        paid = float(by_exit[-1])
    end = steps[-1]
    return Explanation(
        label=end.label,
        probability=end.probability,
        stage=len(stages) if end.score is None else len(steps) - 1,
        n_stages=len(stages),
        cost=paid,
        cost_of_offload=float(by_exit[-1]) if has_cloud else None,
        steps=tuple(steps),
    )


def _high_cost_step(
    system: Any, row: NDArray[np.float32], known: NDArray[np.bool_], price: float
) -> ExplainedStage:
    f0 = system.high_cost_model_
    index, chances = int(f0.labels(row)[0]), f0.predict_proba(row)[0]
    asked = system.feature_costs_.mask(f0.asked)
    return ExplainedStage(
        name="high-cost model",
        model=high_cost_name(f0),
        tier="cloud",
        **_names(system, asked & ~known),
        price=price,
        label=_plain(system.classes_[index]),
        probability=float(chances[index]),
        score=None,
        threshold=None,
        stopped=True,
    )


def _names(system: Any, chosen: NDArray[np.bool_]) -> dict[str, tuple[str, ...]]:
    names = tuple(system.feature_names_[k] for k in np.flatnonzero(chosen).tolist())
    words = named(system, names)
    return {"acquired": names, "blocks": () if words is names else tuple(words)}


def _plain(label: Any) -> Any:
    """A label as Python has it."""
    return label.item() if hasattr(label, "item") else label
