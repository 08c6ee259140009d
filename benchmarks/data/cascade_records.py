"""Records of fitted cascades on rows that they were not fitted on."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels, split_outputs
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ExitAnswers


def cascade_record(
    system: Any, chain: int, rows: NDArray[np.float32], row_classes: NDArray[np.int64]
) -> CascadeRecord:
    """Record scores, answers and costs of one candidate of a cascade on labelled rows."""
    stages, high_cost_model, prices = (
        system.chains_[chain],
        system.high_cost_model_,
        system.feature_costs_,
    )
    margins_and_scores = [split_outputs(stage.margins(rows), stage.score) for stage in stages]
    answers = np.stack(
        [*(labels(margins) for margins, _ in margins_and_scores), high_cost_model.labels(rows)]
    )
    class_numbers = np.searchsorted(system.classes_, row_classes)
    is_acquired = np.zeros(prices.n_features, bool)
    exit_costs = []
    for features in (*(stage.features for stage in stages), high_cost_model.features):
        is_acquired = is_acquired | prices.mask(features)
        exit_costs.append(prices.price(is_acquired))
    weights = system.class_weights_
    return CascadeRecord(
        scores=np.stack([score for _, score in margins_and_scores]),
        correctness=(answers == class_numbers).astype(np.float64),
        exit_costs=np.array(exit_costs),
        weights=np.ones(len(row_classes)),
        splitter=RowSplitter(len(row_classes)),
        class_weights=None if weights is None else weights[class_numbers],
        exit_answers=ExitAnswers(class_numbers, answers, len(system.classes_)),
    )
