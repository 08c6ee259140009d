"""A stage of a cascade: the features that it acquires, its model and its stop score."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import AcquiredMask, Acquisition
from gatewise.decision import STOP_RULES, Link, Score, split_outputs
from gatewise.errors import InputError
from gatewise.formats import byte_size, plural
from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble

FlatModel = TreeEnsemble | LinearModel | KernelModel


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """A stage of a cascade.

    `model` reads a float32 matrix of the columns `features`, (n_inputs,), and `link` converts its
    margins to probabilities. `score` names the stop rule. With `acquisition` "stage", a row that
    visits the stage acquires all features of the stage. With "node", it acquires only the features
    on its paths through the trees.
    """

    model: FlatModel | GraphModel
    features: NDArray[np.intp]
    link: Link
    score: Score = "margin"
    acquisition: Acquisition = "stage"

    def __post_init__(self) -> None:
        if self.acquisition == "node" and not isinstance(self.model, TreeEnsemble):
            raise InputError("only a stage of trees can acquire features node by node")

    @classmethod
    def from_model(
        cls,
        model: FlatModel,
        link: Link,
        score: Score = "margin",
        acquisition: Acquisition = "stage",
    ) -> Stage:
        """Make a stage from a model of all columns, with only the columns that the model uses."""
        compact_model, used_features = model.compact()
        return cls(compact_model, used_features, link, score, acquisition)

    def without_gate(self) -> Stage:
        """Return a copy without the gate's output; its stop score is the margin."""
        if not STOP_RULES[self.score].n_score_outputs:
            return self
        if not isinstance(self.model, TreeEnsemble | LinearModel):
            raise InputError("only trees and linear models have the score of a gate as an output")
        compact_model, used_features = self.model.without_last_output().compact()
        return replace(
            self, model=compact_model, features=self.features[used_features], score="margin"
        )

    def __repr__(self) -> str:
        features = plural(len(self.features), "feature")
        return f"Stage({self.model_name}, {features}, {byte_size(self.nbytes)})"

    @property
    def model_name(self) -> str:
        """Description of the model: ``35 trees``, ``linear``, ``kernels`` or ``graph``."""
        if isinstance(self.model, TreeEnsemble):
            return plural(self.n_trees, "tree")
        kind = type(self.model)
        return {LinearModel: "linear", KernelModel: "kernels", GraphModel: "graph"}[kind]

    @property
    def n_margins(self) -> int:
        """Number of outputs that are class margins."""
        return self.model.n_outputs - STOP_RULES[self.score].n_score_outputs

    @property
    def nbytes(self) -> int:
        """Size of the model's flat arrays or graph in bytes."""
        return self.model.nbytes

    @property
    def n_trees(self) -> int:
        """Number of trees; 0 for other models."""
        return self.model.n_trees if isinstance(self.model, TreeEnsemble) else 0

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Compute the outputs of the stage for instances with all features.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        return self.model.margins(x[:, self.features])

    def acquired(self, x: NDArray[np.float32]) -> AcquiredMask:
        """Compute the mask of the columns that rows acquire, (n_features,) or (n, n_features).

        Shapes: `x` (n, n_features).
        """
        if self.acquisition == "node" and isinstance(self.model, TreeEnsemble):
            acquired_mask = np.zeros(x.shape, bool)
            acquired_mask[:, self.features] = self.model.visited_features(x[:, self.features])
            return acquired_mask
        return self.feature_mask(x.shape[1])

    def feature_mask(self, n_features: int) -> AcquiredMask:
        """Compute the mask of the columns that the stage may acquire, shape (n_features,)."""
        mask = np.zeros(n_features, bool)
        mask[self.features] = True
        return mask

    def run(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Compute class margins, (n, 1) or (n, n_classes), and stop scores, (n,)."""
        return split_outputs(self.margins(x), self.score)
