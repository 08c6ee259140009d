"""Policy that acquires the features of an instance in the order in which a fitted system does.

AFABench asks a policy for one action at a time, but a system decides about whole stages. The policy
therefore starts again at the first stage for each action. An instance ends with the answer and the
features that the system itself would give it, which a test compares.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import FeatureCosts
from gatewise.decision import probabilities, stop_mask

#: The action that ends an instance; action k acquires selection k - 1, as AFABench defines.
STOP = 0


class AcquisitionPolicy:
    """Actions and class probabilities of partly observed instances.

    Parameters
    ----------
    system : fitted cascade or budgeted model
        Its active operating point decides. It may be replaced between two calls.
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

    def choose_actions(
        self, rows: NDArray[np.float32], is_observed: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Choose the next action of each row; also return probabilities of the last possible model.

        Parameters
        ----------
        rows : ndarray of shape (n, n_features)
            Features that are not observed may have any value.
        is_observed : ndarray of bool, shape (n, n_features)
        """
        actions = np.full(len(rows), STOP, np.int64)
        class_probabilities = np.tile(self.class_shares, (len(rows), 1))
        undecided_rows = np.arange(len(rows))
        for model_features, run_model in self._iterate_models():
            # A row with missing features acquires the first of them. Any order costs the same,
            # because a model needs all its features.
            is_missing = ~is_observed[np.ix_(undecided_rows, model_features)]
            is_incomplete = is_missing.any(axis=1)
            if is_incomplete.any():
                next_features = model_features[is_missing[is_incomplete].argmax(axis=1)]
                selections = self.selection_of_feature[next_features]
                actions[undecided_rows[is_incomplete]] = 1 + selections
            # other rows run the model, then stop or continue with the next model
            undecided_rows = undecided_rows[~is_incomplete]
            if not len(undecided_rows):
                break
            class_probabilities[undecided_rows], is_answered = run_model(rows[undecided_rows])
            undecided_rows = undecided_rows[~is_answered]
        return actions, class_probabilities

    def _iterate_models(self) -> Iterator[tuple[NDArray[np.intp], Any]]:
        """Yield each stage that a row can reach, then the high-cost model if rows may reach it.

        Each is a pair: the features of the model, and a function that returns the probabilities of
        rows and whether each row is answered. The last model answers every row.
        """
        system = self.system
        last_exit = system.last_exit_
        for stage_index, stage in enumerate(system.stages_[: last_exit + 1]):
            threshold = system.operating_point_.thresholds[stage_index]

            # defaults bind the values of this turn of the loop
            def run_stage(
                rows: NDArray[np.float32],
                stage: Any = stage,
                threshold: float | None = threshold,
                is_last: bool = stage_index == last_exit,
            ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
                margins, stop_scores = stage.run(rows)
                is_answered = (
                    np.ones(len(rows), bool) if is_last else stop_mask(stop_scores, threshold)
                )
                return probabilities(margins, stage.link), is_answered

            yield np.asarray(stage.features), run_stage
        high_cost_model = system.high_cost_model_
        # the exit after the last stage is the offload, which a bound on the cost may exclude
        if high_cost_model is not None and last_exit >= len(system.stages_):
            yield (
                np.asarray(high_cost_model.features),
                lambda rows: (high_cost_model.predict_proba(rows), np.ones(len(rows), bool)),
            )


def make_feature_costs(
    selection_of_feature: NDArray[np.intp], prices: NDArray[np.float64]
) -> FeatureCosts:
    """Make the feature costs of selections with one price each.

    A selection of several features is a group whose shared price is that of the selection. The
    features of a group have no price of their own, so an instance pays for a selection once.
    """
    n_features_of_selection = np.bincount(selection_of_feature, minlength=len(prices))
    is_in_group = n_features_of_selection[selection_of_feature] > 1
    return FeatureCosts(
        np.where(is_in_group, 0.0, prices[selection_of_feature]),
        group=[
            int(selection) if has_group else None
            for selection, has_group in zip(selection_of_feature, is_in_group, strict=True)
        ],
        shared={
            int(selection): float(prices[selection])
            for selection in np.unique(selection_of_feature[is_in_group])
        },
    )
