"""Explanation of one answer: features, price and stop decision of each stage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels, probabilities, stop_mask
from gatewise.errors import InputError
from gatewise.formats import threshold as threshold_text
from gatewise_training.data.frames import as_pandas
from gatewise_training.views.summary import feature_labels, high_cost_name, join_first

#: Largest number of features that a line lists by name.
MAX_NAMES = 8


@dataclass(frozen=True)
class ExplainedStage:
    """A stage, or the high-cost model, that an instance visited."""

    name: str  # "stage 0", ..., or "high-cost model"
    model: str  # such as "35 trees"
    acquired: tuple[str, ...]  # features that no earlier stage acquired
    price: float  # price of these features and of a request
    label: Any  # answer of the stage, even if it did not stop
    probability: float  # probability of that label
    score: float | None  # stop score, or None for the high-cost model
    threshold: float | None  # smallest score that stops, or None if none does
    has_stopped: bool  # whether the system answers with this label
    blocks: tuple[str, ...] = ()  # labels of the blocks that compute these features of a signal

    @property
    def why(self) -> str:
        """Comparison of the score with the threshold as text."""
        if self.score is None:
            return "no stage was sure enough"
        if np.isnan(self.score):
            return "no score: continues"
        if self.threshold is None:
            return f"score {self.score:.4g}, never stops here: continues"
        limit = threshold_text(self.threshold)
        if limit == "always":
            return "always stops here" if self.has_stopped else "continues"
        if self.has_stopped:
            return f"score {self.score:.4g} >= {limit}: stops"
        return f"score {self.score:.4g} < {limit}: continues"

    @property
    def features(self) -> str:
        """Names of the first acquired features and the number of the others."""
        return join_first(self.blocks or self.acquired, MAX_NAMES) or "nothing new"


@dataclass(frozen=True)
class Explanation:
    """Answer to an instance and the stages that it visited; printed with one line per stage."""

    label: Any
    probability: float
    stage: int  # number of the stage that answered; `n_stages` for the high-cost model
    n_stages: int
    cost: float  # total, in the unit of the feature costs
    cost_of_offload: float | None  # None without a high-cost model
    steps: tuple[ExplainedStage, ...]

    @property
    def is_offloaded(self) -> bool:
        """Whether the high-cost model answered."""
        return self.stage == self.n_stages

    @property
    def headline(self) -> str:
        """Answer, model and cost as text."""
        model = "the high-cost model"
        comparison = ""
        if not self.is_offloaded:
            model = f"stage {self.stage} (of {self.n_stages})"
            if self.cost_of_offload is not None:
                comparison = f" (offloaded: {self.cost_of_offload:.4g})"
        return (
            f"{str(self.label)!r} with probability {self.probability:.3f}, answered by {model}; "
            f"cost {self.cost:.4g}{comparison}"
        )

    def __str__(self) -> str:
        lines = [self.headline]
        for step in self.steps:
            location = ", in the cloud" if step.score is None else ""
            lines.append(
                f"  {step.name} ({step.model}{location}) acquired {step.features} for "
                f"{step.price:.4g}; {str(step.label)!r} {step.probability:.3f}; {step.why}"
            )
        return "\n".join(lines)

    __repr__ = __str__


def _make_row(system: Any, instance: Any) -> Any:
    """Make a table of one row from an instance, with the column names of the system, if any."""
    if hasattr(system, "signal_input_"):
        return [instance] if hasattr(instance, "columns") else np.asarray(instance)[np.newaxis]
    instance = as_pandas(instance)
    names = list(getattr(system, "feature_names_in_", ()))
    if isinstance(instance, Mapping) or (
        hasattr(instance, "to_dict") and getattr(instance, "ndim", 2) == 1
    ):
        missing_names = [name for name in system.feature_names_ if name not in instance]
        if missing_names:
            raise InputError(f"the instance lacks {missing_names[0]!r}")
        instance = [instance[name] for name in system.feature_names_]
    # `instance_` holds the shape and type of instances that are not rows of a table
    instance_spec = getattr(system, "instance_", None)
    rows = instance
    if not hasattr(instance, "columns"):
        rows = np.asarray(instance, np.float32 if instance_spec is None else None)
        instance_ndim = 1 if instance_spec is None else len(instance_spec.shape)
        if rows.ndim == instance_ndim:
            rows = rows[np.newaxis]
    if len(rows) != 1:
        raise InputError(f"explain takes one instance, not {len(rows)}")
    if names and instance_spec is None and not hasattr(rows, "columns"):
        import pandas as pd

        if rows.shape[1] != len(names):
            raise InputError(f"the instance has {rows.shape[1]} features; {len(names)} are needed")
        rows = pd.DataFrame(rows, columns=names)
    return rows


def explain(system: Any, x: Any) -> Explanation:
    """Explain a fitted system's answer to one instance; see :meth:`.BudgetedClassifier.explain`."""
    row = system._rows(_make_row(system, x))
    path = _InstancePath(system, row)
    for stage_number in range(len(system.stages_)):
        path.visit_stage(stage_number)
        if path.steps[-1].has_stopped:
            break
    if not path.steps[-1].has_stopped:
        path.offload()
    answer = path.steps[-1]
    is_offloaded = answer.score is None
    has_cloud = system.high_cost_model_ is not None
    return Explanation(
        label=answer.label,
        probability=answer.probability,
        stage=len(system.stages_) if is_offloaded else len(path.steps) - 1,
        n_stages=len(system.stages_),
        cost=path.cost_so_far,
        cost_of_offload=float(path.exit_costs[-1]) if has_cloud else None,
        steps=tuple(path.steps),
    )


class _InstancePath:
    """Path of one instance through the stages, with its features and costs so far."""

    def __init__(self, system: Any, row: NDArray[np.float32]) -> None:
        self.steps: list[ExplainedStage] = []
        self.cost_so_far = 0.0
        self._system = system
        self._row = row
        self._acquired_by_stage = [
            np.atleast_2d(stage.acquired(row))[0] for stage in system.stages_
        ]
        self._offload_features = system._features_of_offload(row)
        costs = system._exit_costs(self._acquired_by_stage, offload_features=self._offload_features)
        self.exit_costs = np.asarray(costs).reshape(-1)
        self._is_acquired = np.zeros(len(self._acquired_by_stage[0]), np.bool_)

    def visit_stage(self, stage_number: int) -> None:
        """Add a stage; without a high-cost model the last stage always stops."""
        system = self._system
        stage = system.stages_[stage_number]
        threshold = system.operating_point_.thresholds[stage_number]
        margins, score = stage.run(self._row)
        is_last = system.high_cost_model_ is None and stage_number == len(system.stages_) - 1
        self._add(
            self._acquired_by_stage[stage_number],
            int(labels(margins)[0]),
            probabilities(margins, stage.link)[0],
            float(self.exit_costs[stage_number]),
            name=f"stage {stage_number}",
            model=stage.model_name,
            score=float(score[0]),
            threshold=None if threshold is None else float(threshold),
            has_stopped=bool(stop_mask(score, threshold)[0]) or is_last,
        )

    def offload(self) -> None:
        """Add the high-cost model."""
        high_cost_model = self._system.high_cost_model_
        inputs = self._system.feature_costs_.mask(high_cost_model.features)
        if self._offload_features is not None:
            inputs = np.atleast_2d(self._offload_features)[0]
        self._add(
            inputs,
            int(high_cost_model.labels(self._row)[0]),
            high_cost_model.predict_proba(self._row)[0],
            float(self.exit_costs[-1]),
            name="high-cost model",
            model=high_cost_name(high_cost_model),
            score=None,
            threshold=None,
            has_stopped=True,
        )

    def _add(
        self,
        inputs: NDArray[np.bool_],
        class_index: int,
        class_probabilities: NDArray[np.float64],
        exit_cost: float,
        **fields: Any,
    ) -> None:
        """Add a step with the mask of its inputs, its answer and the cost at its exit."""
        system = self._system
        features = np.flatnonzero(inputs & ~self._is_acquired).tolist()
        names = tuple(system.feature_names_[k] for k in features)
        block_labels = feature_labels(system, names)
        label = system.classes_[class_index]
        self.steps.append(
            ExplainedStage(
                acquired=names,
                price=exit_cost - self.cost_so_far,
                label=label.item() if hasattr(label, "item") else label,  # Python's own type
                probability=float(class_probabilities[class_index]),
                blocks=() if block_labels is names else tuple(block_labels),
                **fields,
            )
        )
        self._is_acquired |= inputs
        self.cost_so_far = exit_cost
