"""Learned stop scores: trees that know where a stage's margin is not to be trusted.

For each stage a small booster of 15 leaves reads the features that the stage has paid, its margins
and its stop score, and predicts whether the stage is wrong. It is fitted on judging rows, whose
margins come from models that have not seen them, and starts from what the margin alone tells::

    log odds of an error = -(a * score + b) + trees(x, margins, score)

Divided by ``-a`` and less the constant, that is the learned stop score ``score - trees / a``: it
stays in the margin's own unit, and free of ``exp``. Scores on judging rows are out of fold, so
that thresholds tuned on them stay honest; folds are blocks of rows in the order given, so that
rows of one person or one hour, which mostly stand together, do not tell on each other. A stage
whose log loss does not fall by more than the standard error over the folds keeps its margin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from gatewise.decision import labels
from gatewise.models.stage import Stage
from gatewise.models.stop_score_model import ScoredModel, score_inputs
from gatewise.models.trees import NODE_BYTES, TreeEnsemble
from gatewise_training.cascades.fit_problem import Chain, Problem
from gatewise_training.learners.boosting import tree_params
from gatewise_training.learners.model_families import Bounds

__all__ = ["with_stop_scores"]

FOLDS = 5
ROUNDS = 100
LEAVES = 15
PARAMS = {"num_leaves": LEAVES, "learning_rate": 0.05, "min_data_in_leaf": 40, "lambda_l2": 1.0}
FEWEST = 25
"""Wrong rows, and right ones, that each fit must see for errors to be learned."""


def with_stop_scores(
    chains: Sequence[Chain], problem: Problem, bounds: Bounds
) -> list[Chain | None]:
    """Give the stages of chains learned stop scores, where these are better than margins.

    Parameters
    ----------
    chains : sequence of Chain
        Of stages that stop by their margin and buy all their features.
    problem : Problem
        Tells the judging rows.
    bounds : Bounds
        Of a small device; stop trees have what room the stage itself leaves.

    Returns
    -------
    list of Chain or None
        For each chain the same with learned scores; None where no stage gains by them.
    """
    outputs: dict[Stage, NDArray[np.float32]] = {}
    for chain in chains:
        outputs.update(zip(chain.stages, chain.held_outputs, strict=True))
    learned = joblib.Parallel(n_jobs=problem.n_jobs)(
        joblib.delayed(_learned)(stage, margins, problem, bounds)
        for stage, margins in outputs.items()
    )
    known = dict(zip(outputs, learned, strict=True))
    return [_replaced(chain, known) for chain in chains]


_Learned = tuple[Stage, NDArray[np.float32]] | None


def _replaced(chain: Chain, known: dict[Stage, _Learned]) -> Chain | None:
    if not any(known[stage] for stage in chain.stages):
        return None
    steps = [
        known[stage] or (stage, margins)
        for stage, margins in zip(chain.stages, chain.held_outputs, strict=True)
    ]
    return Chain(tuple(s for s, _ in steps), tuple(outputs for _, outputs in steps))


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows that errors are learned from.

    Attributes
    ----------
    inputs : ndarray of float32, shape (n, n_columns)
        As :func:`score_inputs` makes them; the last column is the margin's stop score.
    wrong : ndarray of bool, shape (n,)
    weight : ndarray of float64, shape (n,)
    """

    inputs: NDArray[np.float32]
    wrong: NDArray[np.bool_]
    weight: NDArray[np.float64]

    def of(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.inputs[chosen], self.wrong[chosen], self.weight[chosen])

    def loss(self, log_odds: NDArray[np.float64]) -> float:
        """Weighted mean log loss."""
        each = np.logaddexp(0.0, log_odds) - self.wrong * log_odds
        return float(np.average(each, weights=self.weight))


@dataclass(frozen=True, eq=False)
class _Line:
    """Log odds of an error as a falling line of the margin's stop score."""

    slope: float
    bias: float

    @classmethod
    def of(cls, rows: _Rows) -> _Line | None:
        score = rows.inputs[:, -1].astype(np.float64)
        spread = float(score.std())
        if not spread > 0:
            return None
        fit = LogisticRegression(C=100.0)
        fit.fit(score[:, None] / spread, rows.wrong, sample_weight=rows.weight)
        slope = -float(fit.coef_[0, 0]) / spread
        # a margin that says next to nothing of errors gives no unit to correct it in
        return cls(slope, -float(fit.intercept_[0])) if slope * spread > 0.1 else None

    def log_odds(self, rows: _Rows) -> NDArray[np.float64]:
        return np.asarray(-(self.slope * rows.inputs[:, -1].astype(np.float64) + self.bias))


@dataclass(frozen=True, eq=False)
class _Fitted:
    """A booster on top of a line."""

    line: _Line
    booster: Any

    @classmethod
    def on(cls, rows: _Rows, rounds: int, seed: int) -> _Fitted | None:
        line = _Line.of(rows)
        if line is None:
            return None
        params = tree_params(seed, **PARAMS, objective="binary", boost_from_average=False)
        data = lgb.Dataset(
            rows.inputs,
            rows.wrong.astype(np.float32),
            weight=rows.weight,
            init_score=line.log_odds(rows),
        )
        return cls(line, lgb.train(params, data, rounds))

    def losses(self, rows: _Rows) -> NDArray[np.float64]:
        """Log loss on unseen rows after 0, 1, 2, ... rounds."""
        log_odds = self.line.log_odds(rows)
        out = [rows.loss(log_odds)]
        for first in range(self.booster.current_iteration()):
            log_odds = log_odds + self.booster.predict(
                rows.inputs, raw_score=True, start_iteration=first, num_iteration=1
            )
            out.append(rows.loss(log_odds))
        return np.array(out)

    def trees(self, rounds: int) -> TreeEnsemble:
        """Make the trees that are added to the margin's stop score."""
        flat = TreeEnsemble.from_lightgbm(self.booster, num_iteration=rounds)
        return replace(flat, value=(flat.value / np.float32(-self.line.slope)))


def _learned(
    stage: Stage, margins: NDArray[np.float32], problem: Problem, bounds: Bounds
) -> _Learned:
    """A stage with a learned score and its honest outputs; None if its margin does as well."""
    plan, held = problem.plan, problem.plan.held
    model = stage.model
    room = _room(stage, bounds)
    wrong = labels(margins) != plan.y[held]
    if isinstance(model, ScoredModel) or not room or not len(stage.features):
        return None
    part = np.arange(len(held)) * FOLDS // len(held)
    seen = [wrong[part != k] for k in range(FOLDS)]
    if min(min(np.count_nonzero(s), np.count_nonzero(~s)) for s in seen) < FEWEST:
        return None
    x = np.ascontiguousarray(plan.x[held][:, stage.features])
    rows = _Rows(score_inputs(x, margins), wrong, plan.weight[held])
    fits = [_Fitted.on(rows.of(part != k), room, problem.seed) for k in range(FOLDS)]
    kept = [fit for fit in fits if fit is not None]
    if len(kept) < FOLDS:
        return None
    rounds = _rounds([fit.losses(rows.of(part == k)) for k, fit in enumerate(kept)])
    final = _Fitted.on(rows, rounds, problem.seed) if rounds else None
    if final is None:
        return None
    outputs = np.empty((len(x), margins.shape[1] + 1), np.float32)
    for k, fit in enumerate(kept):
        scored = ScoredModel(model, fit.trees(rounds))
        outputs[part == k] = scored.scored(x[part == k], margins[part == k])
    learned = replace(stage, model=ScoredModel(model, final.trees(rounds)), score="column")
    return (learned, outputs) if bounds.admit(learned) else None


def _rounds(losses: Sequence[NDArray[np.float64]]) -> int:
    """Rounds with the least loss over the folds; 0 if it is not clearly below the margin's."""
    n = min(map(len, losses))
    curves = np.stack([loss[:n] for loss in losses])
    best = int(curves.mean(axis=0).argmin())
    gain = curves[:, 0] - curves[:, best]
    return best if gain.mean() > gain.std(ddof=1) / len(gain) ** 0.5 else 0


def _room(stage: Stage, bounds: Bounds) -> int:
    """Stop trees that fit beside the stage itself."""
    room = ROUNDS
    if bounds.trees is not None:
        room = min(room, bounds.trees - stage.n_trees)
    if bounds.stage_bytes is not None:
        room = min(room, (bounds.stage_bytes - stage.nbytes) // ((2 * LEAVES - 1) * NODE_BYTES))
    return max(room, 0)
