"""A gate that is learned behind a fixed low-cost model: boosted trees on its margins.

Adapt's gate with the low-cost model fixed finds the instances that this model gets wrong and the
high-cost model right. The gate's trees become part of the low-cost model's graph.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier

from gatewise.decision import stop_score
from gatewise.errors import InputError
from gatewise.models.graph_model import GraphModel
from gatewise.models.stage import Stage
from gatewise.models.tree_attributes import ML_DOMAIN, attributes_of
from gatewise.models.trees import TreeEnsemble
from gatewise_training.learners.given_models.flat_forms import flat_trees
from gatewise_training.learners.given_models.graph_files import GraphTail

LEAST_ROWS = 10
"""Smallest number of rows to offload, and of rows to answer, for a gate."""


def with_learned_gate(
    stage: Stage,
    x: NDArray[np.float32],
    margins: NDArray[np.float32],
    wrong: NDArray[np.bool_],
    columns: NDArray[np.intp],
) -> Stage:
    """Fit a gate on the margins and some columns, and append it to the stage's graph.

    Shapes: `x` (n, n_features); `margins` (n, n_outputs) of the stage; `wrong` (n,): rows that
    should be offloaded.
    """
    if not isinstance(stage.model, GraphModel):
        raise InputError(
            "gate='learned' takes an ONNX file or a classifier that becomes one as "
            "low_cost_model, no forest or boosted trees: they have gate='threshold'"
        )
    if not LEAST_ROWS <= int(wrong.sum()) <= len(wrong) - LEAST_ROWS:
        raise InputError(
            f"the low-cost model is wrong and the high-cost model right on {wrong.sum()} of "
            f"{len(wrong)} rows: too few to learn a gate; give more rows, or gate='threshold'"
        )
    fitted = HistGradientBoostingClassifier(
        max_iter=60, max_leaf_nodes=8, learning_rate=0.08, early_stopping=False, random_state=0
    ).fit(np.column_stack([stop_score(margins), margins, x[:, columns]]), wrong)
    trees = flat_trees(fitted)
    assert trees is not None
    return Stage(_appended(stage.model, trees[0], columns), stage.features, stage.link, "column")


def _appended(model: GraphModel, gate: TreeEnsemble, columns: NDArray[np.intp]) -> GraphModel:
    """Append the gate's trees; their negated output becomes the last output of the graph."""
    tail = GraphTail(model.content)
    for node in tail.model.graph.node:
        node.output[:] = ["gw_margins" if name == "margins" else name for name in node.output]
    # the stop score: |margin|, or the difference of the two largest margins
    if model.n_outputs == 1:
        score = tail.add("Abs", ["gw_margins"])
    else:
        largest = ["gw_margins", tail.value([2], np.int64)]
        two = tail.add("TopK", largest, n_outputs=2, axis=1)
        largest_margin, second_margin = (
            tail.add("Gather", [two, tail.value([i], np.int64)], axis=1) for i in (0, 1)
        )
        score = tail.add("Sub", [largest_margin, second_margin])
    # the gate's trees read the score, the margins and columns of the instance
    inputs = [score, "gw_margins"]
    if len(columns):
        inputs.append(tail.add("Gather", ["x", tail.value(columns, np.int64)], axis=1))
    read = tail.add("Concat", inputs, axis=1)
    odds = tail.add("TreeEnsembleRegressor", [read], domain=ML_DOMAIN, **attributes_of(gate))
    tail.add("Concat", ["gw_margins", tail.add("Neg", [odds])], "margins", axis=1)
    return tail.finish(model.n_features, model.n_outputs + 1)
