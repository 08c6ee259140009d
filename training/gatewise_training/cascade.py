"""What every cascade shares: fit, operating points, routing, cost.

A cascade is a chain of stages before a high-cost model. A method (staged, Adapt-GBRT, ...)
says how chains are fitted; the rest is here: f0, thresholds along the frontier, and the
surface of a scikit-learn classifier plus ``offload``, ``cost``, ``frontier_`` and ``at``.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gatewise_training.checks import check_costs, check_rows, check_training, feature_names
from gatewise_training.console import Progress, progress
from gatewise_training.costs import CloudPrices, FeatureCosts
from gatewise_training.decision import exit_stages, labels, probabilities, split
from gatewise_training.errors import InputError
from gatewise_training.frontier import Frontier, OperatingPoint
from gatewise_training.high_cost import HighCostModel, train_high_cost_model
from gatewise_training.resampling import Resampling
from gatewise_training.stage import Stage
from gatewise_training.thresholds import ChainRecord, frontier_points

__all__ = ["Cascade", "Chain", "Problem"]

MAX_LOSS = 0.01
SLACK = 1.0
"""Standard errors of the paired accuracy difference that `max_loss` keeps in hand."""


@dataclass(frozen=True, eq=False)
class Problem:
    """What a method gets to fit its chains.

    Attributes
    ----------
    plan : Resampling
        Rows, labels, weights, and which rows judge.
    n_classes : int
    costs : FeatureCosts
    high_cost_model : HighCostModel
    seed : int
    n_jobs : int or None
    report : Progress
        To be told (done, total, what).
    """

    plan: Resampling
    n_classes: int
    costs: FeatureCosts
    high_cost_model: HighCostModel
    seed: int
    n_jobs: int | None
    report: Progress


@dataclass(frozen=True, eq=False)
class Chain:
    """Fitted stages, and their honest outputs on the judging rows.

    Attributes
    ----------
    stages : tuple of Stage
    held_outputs : tuple of ndarray of float32, shape (n_held, n_outputs of the stage)
    """

    stages: tuple[Stage, ...]
    held_outputs: tuple[NDArray[np.float32], ...]


class Cascade(ClassifierMixin, BaseEstimator):
    """Base of the cascades; see :class:`StagedCascade` for the common parameters.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    n_features_in_ : int
    feature_names_ : tuple of str
        Column names, x0, x1, ... where the table had none.
    feature_costs_ : FeatureCosts
    cloud_prices_ : CloudPrices
    high_cost_model_ : HighCostModel
    frontier_ : Frontier
        Operating points on judging rows.
    operating_point_ : OperatingPoint
        The one in force.
    """

    high_cost_model: Any
    feature_costs: FeatureCosts | None
    cloud_prices: CloudPrices | None
    budget: float | None
    max_loss: float | None
    offload_rate: float | None
    allow_missing: bool
    random_state: Any
    n_jobs: int | None
    verbose: int

    _cross_fits = True  # whether a fit is cheap enough to be done five times on small data

    def _fit_chains(self, problem: Problem) -> Sequence[Chain]:
        """Fit the method's chains of stages; a method's one duty."""
        raise NotImplementedError

    # -- fit -------------------------------------------------------------------------------

    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        validation: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit the high-cost model if need be, the stages, and the whole frontier.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
            Numbers; taken as float32. A DataFrame's column names are kept and checked.
        y : array-like of shape (n,)
            Class labels.
        sample_weight : array-like of shape (n,), optional
        validation : pair (X_val, y_val), optional
            Rows that judge: they choose models, thresholds and the operating point. By
            default a fifth of the rows is held out, or on up to 5,000 rows five-fold
            cross-fitting lets every row judge.

        Returns
        -------
        self

        Raises
        ------
        InputError
            For data, prices or a budget that cannot be used; it says which and why.
        """
        self._check_settings()
        table = check_training(
            self, X, y, sample_weight, validation, allow_missing=self.allow_missing
        )
        self.classes_ = table.classes
        self.feature_names_ = feature_names(self)
        self.feature_costs_ = check_costs(
            self.feature_costs, self.feature_names_, hasattr(self, "feature_names_in_")
        )
        self.cloud_prices_ = CloudPrices() if self.cloud_prices is None else self.cloud_prices
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        plan = Resampling.plan(
            table.x,
            table.y,
            table.weight,
            validation=table.validation,
            seed=seed,
            cross=self._cross_fits,
        )
        with progress(f"fit {type(self).__name__}", quiet=not self.verbose) as report:
            report(0, 1, "high-cost model")
            f0, f0_labels = self._high_cost(plan, seed, report)
            self.high_cost_model_ = f0
            problem = Problem(
                plan, len(table.classes), self.feature_costs_, f0, seed, self.n_jobs, report
            )
            chains = self._fit_chains(problem)
            report(1, 1, "thresholds")
            self._settle(plan, chains, f0_labels)
        return self

    def _high_cost(
        self, plan: Resampling, seed: int, report: Progress
    ) -> tuple[HighCostModel, NDArray[np.int64]]:
        given = self.high_cost_model
        if given is None or (not isinstance(given, str | bytes) and not _is_ready(given)):
            f0, said, _ = train_high_cost_model(
                plan,
                len(self.classes_),
                template=given,
                allow_missing=self.allow_missing,
                seed=seed,
                n_jobs=self.n_jobs,
                report=lambda what: report(0, 1, what),
            )
            return f0, said
        f0 = HighCostModel.given(given, self.classes_, self.n_features_in_)
        return f0, f0.labels(plan.x[plan.held])

    def _settle(
        self, plan: Resampling, chains: Sequence[Chain], f0_labels: NDArray[np.int64]
    ) -> None:
        """Tune thresholds of every chain; keep the chains that reach the frontier."""
        y, weight = plan.y[plan.held], plan.weight[plan.held]
        right = (f0_labels == y).astype(np.float64)
        points: list[OperatingPoint] = []
        for number, chain in enumerate(chains):
            parts = [
                split(out, stage.score)
                for stage, out in zip(chain.stages, chain.held_outputs, strict=True)
            ]
            record = ChainRecord(
                scores=np.stack([score for _, score in parts]),
                correct=np.stack([*(labels(m) == y for m, _ in parts), right]).astype(float),
                exit_costs=self._exit_costs(chain.stages),
                weights=weight / weight.mean(),
            )
            points += frontier_points(record, chain=number)
        reference = float(np.average(right, weights=weight))
        frontier = Frontier.of(points, reference_accuracy=reference)
        kept = sorted({p.chain for p in frontier.points})
        self.chains_ = tuple(chains[c].stages for c in kept)
        renumbered = tuple(replace(p, chain=kept.index(p.chain)) for p in frontier.points)
        self.frontier_ = replace(frontier, points=renumbered)
        self.operating_point_ = self._pick()

    def _check_settings(self) -> None:
        if self.budget is not None and self.offload_rate is not None:
            raise InputError("give budget or offload_rate, not both")
        for name in ("budget", "max_loss", "offload_rate"):
            value = getattr(self, name)
            if value is not None and not (np.isfinite(value) and value >= 0):
                raise InputError(f"{name} must be a number of at least 0, not {value!r}")

    def _pick(self) -> OperatingPoint:
        if self.budget is not None:
            return self.frontier_.at(budget=self.budget)
        if self.offload_rate is not None:
            return self.frontier_.at(offload_rate=self.offload_rate)
        loss = MAX_LOSS if self.max_loss is None else self.max_loss
        return self.frontier_.at(max_loss=loss, slack=SLACK)

    def _exit_costs(
        self, stages: Sequence[Stage], accounting: str = "union"
    ) -> NDArray[np.float64]:
        """Cost of leaving at each stage and, last, of an offloaded instance."""
        costs, f0 = self.feature_costs_, self.high_cost_model_
        bought = np.zeros(costs.n_features, bool)
        out = []
        for stage in stages:
            bought = bought | costs.mask(stage.features)
            out.append(costs.of(bought))
        asked = costs.mask(f0.features)
        sent = costs.of(bought | asked if accounting == "union" else asked)
        return np.array([*out, sent + self.cloud_prices_.of_offload(len(f0.features))])

    # -- the fitted system -----------------------------------------------------------------

    @property
    def stages_(self) -> tuple[Stage, ...]:
        """Stages of the chain in force."""
        check_is_fitted(self, "operating_point_")
        return self.chains_[self.operating_point_.chain]

    @property
    def missing_(self) -> dict[str, Literal["allowed", "refused"]]:
        """Whether NaN is a value to the stages and to the high-cost model."""
        check_is_fitted(self, "operating_point_")
        word: Literal["allowed", "refused"] = "allowed" if self.allow_missing else "refused"
        return {"stages": word, "cloud": word}

    def exit_stage(self, X: ArrayLike) -> NDArray[np.int64]:
        """Stage at which each row is answered, shape (n,); the number of stages: offloaded."""
        return self._route(self._rows(X))[0]

    def offload(self, X: ArrayLike) -> NDArray[np.bool_]:
        """Which rows go to the high-cost model, shape (n,)."""
        return np.equal(self.exit_stage(X), len(self.stages_))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """Labels, shape (n,): of the stage that answers, or of the high-cost model."""
        x = self._rows(X)
        exits, outputs = self._route(x)
        index = np.zeros(len(x), np.int64)
        for s, stage in enumerate(self.stages_):
            index[exits == s] = labels(split(outputs[s][exits == s], stage.score)[0])
        sent = exits == len(self.stages_)
        if sent.any():
            index[sent] = self.high_cost_model_.labels(x[sent])
        return self.classes_[index]

    def predict_proba(self, X: ArrayLike) -> NDArray[np.float64]:
        """Class probabilities of the model that answers, shape (n, n_classes)."""
        x = self._rows(X)
        exits, outputs = self._route(x)
        proba = np.zeros((len(x), len(self.classes_)))
        for s, stage in enumerate(self.stages_):
            here = exits == s
            proba[here] = probabilities(split(outputs[s][here], stage.score)[0], stage.link)
        sent = exits == len(self.stages_)
        if sent.any():
            proba[sent] = self.high_cost_model_.predict_proba(x[sent])
        return proba

    def cost(
        self, X: ArrayLike, accounting: Literal["union", "paper"] = "union"
    ) -> NDArray[np.float64]:
        """Cost of each row, in the unit of the feature costs.

        Parameters
        ----------
        X : array-like of shape (n, n_features)
        accounting : {"union", "paper"}
            What an offloaded row pays for features: all that stages and high-cost model
            read, or the high-cost model's only, as the authors of Adapt account for it.

        Returns
        -------
        ndarray of float64, shape (n,)
        """
        if accounting not in ("union", "paper"):
            raise InputError(f"accounting must be 'union' or 'paper', not {accounting!r}")
        return self._exit_costs(self.stages_, accounting)[self.exit_stage(X)]

    def at(
        self,
        *,
        budget: float | None = None,
        max_loss: float | None = None,
        offload_rate: float | None = None,
    ) -> Self:
        """Get the same fitted models at another operating point; nothing is refitted.

        Parameters
        ----------
        budget, max_loss, offload_rate : float, optional
            Exactly one; see :meth:`Frontier.at`.

        Returns
        -------
        Cascade
            A copy that shares the models.
        """
        check_is_fitted(self, "operating_point_")
        point = self.frontier_.at(
            budget=budget, max_loss=max_loss, offload_rate=offload_rate, slack=SLACK
        )
        other = copy.copy(self)
        other.operating_point_ = point
        return other

    def _rows(self, X: ArrayLike) -> NDArray[np.float32]:
        check_is_fitted(self, "operating_point_")
        rows: NDArray[np.float32] = check_rows(self, X, allow_missing=self.allow_missing)
        return rows

    def _route(self, x: NDArray[np.float32]) -> tuple[NDArray[np.int64], list[NDArray[np.float32]]]:
        outputs = [stage.margins(x) for stage in self.stages_]
        scores = [split(o, s.score)[1] for o, s in zip(outputs, self.stages_, strict=True)]
        return exit_stages(scores, self.operating_point_.thresholds), outputs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self.allow_missing
        return tags


def _is_ready(model: Any) -> bool:
    """Whether a given high-cost model is fitted (a path always is)."""
    if not hasattr(model, "fit"):
        return True
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True
