"""Outcomes of systems on rows: checked scores, losses and costs as the record of a cascade."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.errors import InputError
from gatewise.operating_point import FLOAT32_MAX
from gatewise_training.data.row_splitter import RowSplitter
from gatewise_training.operating_points.cascade_record import CascadeRecord


class Outcomes:
    """Scores, losses and costs of one or several small systems and of a big system.

    The systems may be language models, detectors, regressors or people. The losses may be of any
    kind with an upper limit, such as errors (0 or 1), 1 - IoU, a clipped pinball loss, a relative
    edit distance, or the points that a grader deducts.

    Parameters
    ----------
    scores : array-like of shape (n,) or (n, n_small)
        Confidence of each small system, such as a probability, a margin, the negative entropy or
        the :func:`agreement` of several models. A small system answers if its score reaches its
        threshold. It never answers if its score is NaN.
    small_losses : array-like of shape (n,) or (n, n_small)
        Losses of the small systems' answers, from 0 to `loss_limit`.
    big_losses : array-like of shape (n,)
        Losses of the big system's answers to the same rows.
    small_cost : float or array-like of shape (n,), (n_small,) or (n, n_small)
        Cost of running each small system, the same for all rows or one per row.
    big_cost : float or array-like of shape (n,)
        Cost of the big system, in the same unit.
    loss_limit : float, default 1.0
        The largest loss that a row can have.
    is_routed : bool, default False
        Whether a router computes the score before any system runs. Then a row pays for one system.
        Otherwise a row pays for the small system and, if it does not answer, for both.
    groups : array-like of shape (n,), optional
        Conversation, patient or video of each row, if rows belong together.

    Raises
    ------
    InputError
        If shapes differ, if a value is not a number, or if a loss is outside its limits.

    Examples
    --------
    >>> table = Outcomes(
    ...     scores=[0.9, 0.2, 0.7], small_losses=[0, 1, 0], big_losses=[0, 0, 0],
    ...     small_cost=0.1, big_cost=2.0,
    ... )
    >>> table.record.exit_costs
    array([0.1, 2.1])
    """

    def __init__(
        self,
        *,
        scores: ArrayLike,
        small_losses: ArrayLike,
        big_losses: ArrayLike,
        small_cost: ArrayLike,
        big_cost: ArrayLike,
        loss_limit: float = 1.0,
        is_routed: bool = False,
        groups: ArrayLike | None = None,
    ) -> None:
        if not 0 < loss_limit < np.inf:
            raise InputError(f"loss_limit must be above 0 and finite, not {loss_limit!r}")
        # stack scores, losses and costs of the small systems, and last of the big system
        scores_by_stage = stage_scores(scores)
        n_stages, n = scores_by_stage.shape
        if is_routed and n_stages > 1:
            raise InputError("is_routed is for one small system: a router runs one of two")
        losses = _read_columns("small_losses", small_losses, n, n_stages, may_repeat=False)
        losses += _read_columns("big_losses", big_losses, n, 1, may_repeat=False)
        stacked_losses = np.stack(losses)
        _check_losses(stacked_losses, loss_limit)
        small_costs = _read_columns("small_cost", small_cost, n, n_stages)
        (big_costs,) = _read_columns("big_cost", big_cost, n, 1)
        run_costs = np.stack([*small_costs, big_costs])
        if not (run_costs >= 0).all():
            raise InputError("costs must be numbers of at least 0")
        # a row pays for all systems up to the one that answers, unless a router chooses one
        exit_costs = run_costs if is_routed else np.cumsum(run_costs, axis=0)
        if not np.ptp(exit_costs, axis=1).any():
            exit_costs = exit_costs[:, 0]
        self.loss_limit = float(loss_limit)
        self.big_cost = float(big_costs.mean())
        # a cascade's record counts right answers; here an answer is right by 1 - loss / limit
        self.record = CascadeRecord(
            scores=scores_by_stage,
            correctness=1.0 - stacked_losses / loss_limit,
            exit_costs=exit_costs,
            weights=np.ones(n),
            splitter=RowSplitter.from_arrays(n, groups),
        )

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.record.weights)

    def take(self, rows: NDArray[np.intp]) -> Outcomes:
        """Get the outcomes of some of the rows.

        Parameters
        ----------
        rows : ndarray of int
            Numbers of the rows.

        Returns
        -------
        Outcomes
        """
        selected_outcomes = object.__new__(Outcomes)
        selected_outcomes.loss_limit = self.loss_limit
        selected_outcomes.big_cost = self.big_cost
        record = self.record.take(rows)
        selected_outcomes.record = replace(record, weights=np.ones(len(record.weights)))
        return selected_outcomes


class Agreement(NamedTuple):
    """The most frequent answer of several models to each row, and the share of these models."""

    answers: NDArray[Any]  # (n,)
    share: NDArray[np.float64]  # (n,)


def agreement(answers: ArrayLike) -> Agreement:
    """Find the most frequent answer of several models, and its share as a score.

    Parameters
    ----------
    answers : array-like of shape (n, n_models)
        Labels, texts or numbers that the models answer. If several answers are equally frequent,
        the answer of the earliest model wins.

    Returns
    -------
    Agreement
        The answer and the share of models behind it.

    Examples
    --------
    >>> answers, share = agreement([["a", "a", "b"], ["c", "b", "a"]])
    >>> answers.tolist(), share.round(2).tolist()
    (['a', 'c'], [0.67, 0.33])
    """
    answer_table = np.asarray(answers)
    if answer_table.ndim != 2 or not answer_table.size:
        raise InputError(f"answers must have the shape (rows, models), not {answer_table.shape}")
    n_models = answer_table.shape[1]
    # one model at a time, because an array for all pairs of models would need much memory
    n_agreeing = np.stack(
        [(answer_table == answer_table[:, [model]]).sum(axis=1) for model in range(n_models)]
    )
    most_frequent_model = n_agreeing.argmax(axis=0)
    rows = np.arange(len(answer_table))
    return Agreement(
        answer_table[rows, most_frequent_model], n_agreeing[most_frequent_model, rows] / n_models
    )


def stage_scores(scores: ArrayLike) -> NDArray[np.float32]:
    """Read scores, (n,) or (n, n_small), as (n_small, n); raise InputError for other values."""
    score_table = _read_numbers("scores", scores)
    if score_table.ndim not in (1, 2) or not score_table.size:
        raise InputError(
            f"scores must have the shape (rows,) or (rows, systems), not {score_table.shape}"
        )
    if (np.abs(score_table) > FLOAT32_MAX).any():
        raise InputError("scores must be finite, or NaN where a small system must not answer")
    return np.ascontiguousarray(score_table.reshape(len(score_table), -1).T, np.float32)


def _read_numbers(name: str, values: ArrayLike) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers") from None


def _read_columns(
    name: str, values: ArrayLike, n_rows: int, n_columns: int, *, may_repeat: bool = True
) -> list[NDArray[np.float64]]:
    """Read values of rows as columns, each (n_rows,); with `may_repeat` a value may be for all."""
    table = _read_numbers(name, values)
    has_all_rows = may_repeat or table.shape[:1] == (n_rows,)
    if table.ndim == 1 and n_columns == 1:
        table = table[:, np.newaxis]
    try:
        table = np.broadcast_to(table, (n_rows, n_columns))
    except ValueError:
        has_all_rows = False
    if not has_all_rows:
        raise InputError(
            f"{name} has the shape {np.shape(values)}, which does not fit {n_rows} rows"
            + (f" and {n_columns} small systems" if n_columns > 1 else "")
        )
    if not np.isfinite(table).all():
        raise InputError(f"{name} is missing or infinite in some rows: leave these rows out")
    return list(table.T)


def _check_losses(losses: NDArray[np.float64], loss_limit: float) -> None:
    smallest_loss = float(losses.min())
    largest_loss = float(losses.max())
    if smallest_loss < 0:
        raise InputError(f"losses must be at least 0; one is {smallest_loss:g}")
    if largest_loss > loss_limit:
        raise InputError(
            f"a loss is {largest_loss:g}, above the limit of {loss_limit:g}: scale or clip the "
            "losses, or in Python give the largest possible loss as loss_limit"
        )
