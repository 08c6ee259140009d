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
from gatewise_training.data.frames import as_pandas
from gatewise_training.views.summary import high_cost_name, named

MOST_NAMED = 8
"""Features that a line names."""


@dataclass(frozen=True)
class ExplainedStage:
    """What one stage, or the high-cost model, did with an instance."""

    name: str  # "stage 0", ..., or "high-cost model"
    model: str  # what it is, as "35 trees"
    acquired: tuple[str, ...]  # features that it acquired and no stage before
    price: float  # of these, and of leaving the device
    label: Any  # its answer, right or not
    probability: float  # of that label
    score: float | None  # the stop score; None of the high-cost model
    threshold: float | None  # that the score had to reach; None never stops
    stopped: bool  # whether the answer is this one
    blocks: tuple[str, ...] = ()  # labels of the blocks that compute these features of a signal

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
    """Why an instance got its answer; prints as a few lines."""

    label: Any
    probability: float
    stage: int  # that answered; the number of stages: the high-cost model
    n_stages: int
    cost: float  # in all, in the unit of the feature costs
    cost_of_offload: float | None  # of an offloaded instance; None without a high-cost model
    steps: tuple[ExplainedStage, ...]  # those that the instance came by, in order

    @property
    def offloaded(self) -> bool:
        """Whether the high-cost model answered."""
        return self.stage == self.n_stages

    @property
    def headline(self) -> str:
        """The answer, by which model, at which cost."""
        who = "the high-cost model"
        saved = ""
        if not self.offloaded:
            who = f"stage {self.stage} (of {self.n_stages})"
            if self.cost_of_offload is not None:
                saved = f" (offloaded: {self.cost_of_offload:.4g})"
        return (
            f"{str(self.label)!r} with probability {self.probability:.3f}, answered by {who}; "
            f"cost {self.cost:.4g}{saved}"
        )

    def __str__(self) -> str:
        lines = [self.headline]
        for step in self.steps:
            place = ", in the cloud" if step.score is None else ""
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
    x = as_pandas(x)
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
    by_exit = np.asarray(system._exit_costs(acquired)).reshape(-1)
    f0 = system.high_cost_model_
    known, paid, steps = np.zeros(len(acquired[0]), bool), 0.0, []

    def step(
        model: str, reads: NDArray[np.bool_], index: int, chances: NDArray[np.float64], **more: Any
    ) -> ExplainedStage:
        names = tuple(system.feature_names_[k] for k in np.flatnonzero(reads & ~known).tolist())
        words, label = named(system, names), system.classes_[index]
        return ExplainedStage(
            model=model,
            acquired=names,
            label=label.item() if hasattr(label, "item") else label,  # as Python has it
            probability=float(chances[index]),
            blocks=() if words is names else tuple(words),
            **more,
        )

    for s, (stage, limit) in enumerate(zip(stages, thresholds, strict=True)):
        margins, score = split(stage.margins(row), stage.score)
        stopped = bool(stops(score, limit)[0]) or (f0 is None and s == len(stages) - 1)
        steps.append(
            step(
                stage.model_name,
                acquired[s],
                int(labels(margins)[0]),
                probabilities(margins, stage.link)[0],
                name=f"stage {s}",
                price=float(by_exit[s]) - paid,
                score=float(score[0]),
                threshold=None if limit is None else float(limit),
                stopped=stopped,
            )
        )
        known, paid = known | acquired[s], float(by_exit[s])
        if stopped:
            break
    if not steps[-1].stopped:
        steps.append(
            step(
                high_cost_name(f0),
                system.feature_costs_.mask(f0.features),
                int(f0.labels(row)[0]),
                f0.predict_proba(row)[0],
                name="high-cost model",
                price=float(by_exit[-1]) - paid,
                score=None,
                threshold=None,
                stopped=True,
            )
        )
        paid = float(by_exit[-1])
    end = steps[-1]
    return Explanation(
        label=end.label,
        probability=end.probability,
        stage=len(stages) if end.score is None else len(steps) - 1,
        n_stages=len(stages),
        cost=paid,
        cost_of_offload=None if f0 is None else float(by_exit[-1]),
        steps=tuple(steps),
    )
