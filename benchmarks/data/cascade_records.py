"""Records of fitted cascades on rows that they were not fitted on."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gatewise.decision import labels
from gatewise.errors import InputError
from gatewise_training import StagedCascade
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord
from gatewise_training.operating_points.class_figures import ExitAnswers


def cascade_record(
    system: StagedCascade, chain: int, rows: NDArray[np.float32], row_classes: NDArray[np.int64]
) -> CascadeRecord:
    """Record scores, answers and costs of one candidate of a cascade on labelled rows.

    Raises InputError for a class that the cascade was not fitted on: it has no number.
    """
    unknown_classes = np.setdiff1d(row_classes, system.classes_)
    if len(unknown_classes):
        raise InputError(f"the cascade was not fitted on the classes {unknown_classes.tolist()}")
    stages, high_cost_model, prices = (
        system.chains_[chain],
        system.high_cost_model_,
        system.feature_costs_,
    )
    margins_and_scores = [stage.run(rows) for stage in stages]
    answers = np.stack(
        [*(labels(margins) for margins, _ in margins_and_scores), high_cost_model.labels(rows)]
    )
    class_numbers = np.searchsorted(system.classes_, row_classes)
    # An exit pays for the features of its own stage and of all earlier ones, each feature once.
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
        weights=np.ones(len(row_classes)),  # rows of a random sample count equally
        splitter=RowSplitter(len(row_classes)),
        class_weights=None if weights is None else weights[class_numbers],
        exit_answers=ExitAnswers(class_numbers, answers, len(system.classes_)),
    )
