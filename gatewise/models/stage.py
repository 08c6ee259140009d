"""One step of a cascade: the features it acquires, the small model it runs, its stop score."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gatewise.acquisition import Acquired, Acquisition
from gatewise.console import html_table
from gatewise.decision import STOP_RULES, Link, Score, split
from gatewise.errors import InputError
from gatewise.formats import byte_size, plural
from gatewise.models.graph_model import GraphModel
from gatewise.models.kernel_machine import KernelModel
from gatewise.models.linear import LinearModel
from gatewise.models.trees import TreeEnsemble

FlatModel = TreeEnsemble | LinearModel | KernelModel


@dataclass(frozen=True, eq=False, repr=False)
class Stage:
    """A stage as the device runs it.

    `model` reads a float32 matrix of the columns `features`, (n_inputs,), in its order, and `link`
    makes probabilities of its margins. `score` says whether the stop score is computed from the
    margins or is the last output, `acquisition` whether a row that visits the stage acquires all
    its features ("stage"), or only those on the paths that it takes through the trees ("node").
    """

    model: FlatModel | GraphModel
    features: NDArray[np.intp]
    link: Link
    score: Score = "margin"
    acquisition: Acquisition = "stage"

    def __post_init__(self) -> None:
        if self.acquisition == "node" and not isinstance(self.model, TreeEnsemble):
            raise InputError("only a stage of trees can acquire node by node")

    @classmethod
    def from_model(
        cls,
        model: FlatModel,
        link: Link,
        score: Score = "margin",
        acquisition: Acquisition = "stage",
    ) -> Stage:
        """Make a stage of a model over all columns; it keeps the columns that the model uses."""
        compact_model, used = model.compact()
        return cls(compact_model, used, link, score, acquisition)

    def without_gate(self) -> Stage:
        """Make a stage of the class margins alone, which are also its stop score."""
        if not STOP_RULES[self.score].n_score_outputs:
            return self
        if not isinstance(self.model, TreeEnsemble | LinearModel):
            raise InputError("only trees and linear models carry a gate's score as a column")
        compact_model, used = self.model.without_last_output().compact()
        return replace(self, model=compact_model, features=self.features[used], score="margin")

    def __repr__(self) -> str:
        return f"Stage({', '.join(self._parts())})"

    def _repr_html_(self) -> str:
        rows = [("link", self.link), ("stop score", self.score), ("acquires by", self.acquisition)]
        return html_table(f"Stage: {', '.join(self._parts())}", ("", ""), rows)

    def _parts(self) -> list[str]:
        features = plural(len(self.features), "feature")
        return [self.model_name, features, byte_size(self.nbytes)]

    @property
    def model_name(self) -> str:
        """Description of the model: ``35 trees``, ``linear``, ``kernels`` or ``graph``."""
        if isinstance(self.model, TreeEnsemble):
            return plural(self.n_trees, "tree")
        kind = type(self.model)
        return {LinearModel: "linear", KernelModel: "kernels", GraphModel: "graph"}[kind]

    @property
    def n_margins(self) -> int:
        """Outputs that are class margins."""
        return self.model.n_outputs - STOP_RULES[self.score].n_score_outputs

    @property
    def nbytes(self) -> int:
        """Bytes of the model's flat arrays or graph, which a device must hold."""
        return self.model.nbytes

    @property
    def n_trees(self) -> int:
        """Trees that one decision of the stage evaluates; 0 for models without any."""
        return self.model.n_trees if isinstance(self.model, TreeEnsemble) else 0

    def margins(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Outputs of the stage for whole instances.

        Shapes: `x` (n, n_features); returns (n, n_outputs).
        """
        return self.model.margins(x[:, self.features])

    def acquired(self, x: NDArray[np.float32]) -> Acquired:
        """Columns of the instance that the stage acquires for rows that visit it.

        Shapes: `x` (n, n_features); returns (n_features,).
        """
        if self.acquisition == "node" and isinstance(self.model, TreeEnsemble):
            acquired = np.zeros(x.shape, bool)
            acquired[:, self.features] = self.model.visited(x[:, self.features])
            return acquired
        return self.at_most(x.shape[1])

    def at_most(self, n_features: int) -> Acquired:
        """Columns that the stage may acquire for some row, as a mask of shape (n_features,)."""
        acquired = np.zeros(n_features, bool)
        acquired[self.features] = True
        return acquired

    def run(self, x: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Class margins, shape (n, 1) or (n, n_classes), and stop scores, shape (n,)."""
        return split(self.margins(x), self.score)
