"""Policy of a fitted system that chooses the next feature of an instance, or stops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import probabilities, split_outputs, stop_mask

STOP = 0
"""The action that ends an instance; action k acquires selection k - 1."""


class AcquisitionPolicy:
    """Actions and class probabilities of partly observed instances.

    Parameters
    ----------
    system : fitted cascade or budgeted model
        Its active operating point decides.
    selection_of_feature : ndarray of shape (n_features,)
        The selection that reveals each feature.
    class_shares : ndarray of shape (n_classes,)
        Probabilities for instances that have not observed all features of any stage.
    """

    def __init__(
        self, system: Any, selection_of_feature: NDArray[np.intp], class_shares: NDArray[np.float64]
    ) -> None:
        self.system = system
        self.selection_of_feature = selection_of_feature
        self.class_shares = class_shares

    def act(
        self, rows: NDArray[np.float32], is_observed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Next action of each row, and class probabilities of the last model that could run.

        Parameters
        ----------
        rows : ndarray of shape (n, n_features)
            Features that are not observed may have any value.
        is_observed : ndarray of bool, shape (n, n_features)
        """
        actions = np.full(len(rows), STOP, np.int64)
        class_probabilities = np.tile(self.class_shares, (len(rows), 1))
        open_rows = np.arange(len(rows))
        for model_features, run_model in self._models():
            # a row with missing features acquires the first of them
            is_missing = ~is_observed[np.ix_(open_rows, model_features)]
            has_missing = is_missing.any(axis=1)
            if has_missing.any():
                first_missing = model_features[is_missing[has_missing].argmax(axis=1)]
                actions[open_rows[has_missing]] = 1 + self.selection_of_feature[first_missing]
            # other rows run the model, then stop or continue with the next model
            open_rows = open_rows[~has_missing]
            if not len(open_rows):
                break
            class_probabilities[open_rows], is_answered = run_model(rows[open_rows])
            open_rows = open_rows[~is_answered]
        return actions, class_probabilities

    def _models(self) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield features and function of each stage, then of the high-cost model."""
        system = self.system
        last_exit = system.last_exit_
        for stage_index, stage in enumerate(system.stages_[: last_exit + 1]):
            threshold = system.operating_point_.thresholds[stage_index]

            def run_stage(
                rows: NDArray[np.float32],
                stage: Any = stage,
                threshold: float | None = threshold,
                is_last: bool = stage_index == last_exit,
            ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
                margins, score = split_outputs(stage.margins(rows), stage.score)
                is_answered = np.ones(len(rows), bool) if is_last else stop_mask(score, threshold)
                return probabilities(margins, stage.link), is_answered

            yield np.asarray(stage.features), run_stage
        high_cost_model = system.high_cost_model_
        if high_cost_model is not None and last_exit >= len(system.stages_):
            yield (
                np.asarray(high_cost_model.features),
                lambda rows: (high_cost_model.predict_proba(rows), np.ones(len(rows), bool)),
            )


def prices_of_selections(
    selection_of_feature: NDArray[np.intp], prices: NDArray[np.float64]
) -> FeatureCosts:
    """Costs of features whose selections have one price each."""
    sizes = np.bincount(selection_of_feature, minlength=len(prices))
    is_group = sizes[selection_of_feature] > 1
    return FeatureCosts(
        np.where(is_group, 0.0, prices[selection_of_feature]),
        group=[
            int(selection) if has_group else None
            for selection, has_group in zip(selection_of_feature, is_group, strict=True)
        ],
        shared={
            int(selection): float(prices[selection])
            for selection in np.unique(selection_of_feature[is_group])
        },
    )
