"""Thresholds from outcomes put to the test: how often a loss is kept, and at what cost.

    python -m benchmarks.bench_outcomes [--quick]

Three pairs of models are fitted on 5,000 rows of generated data: a linear and a boosted classifier,
a linear and a boosted regressor (pinball loss), and the majority of seven small trees beside a
boosted classifier. From their outcomes on 40,000 further rows, tables of 2,000 are drawn; each
chooses a threshold, which is measured on the other rows. By hand: the cheapest threshold whose mean
loss on the table, plus some standard errors, is within the bound.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import make_classification, make_friedman1
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.tree import DecisionTreeClassifier

from benchmarks import harness
from gatewise_training import OutcomeCascade, Outcomes, agreement

N_FIT = 5_000
N_ROWS = 45_000
N_TABLE = 2_000
RESAMPLINGS = 200
QUICK_RESAMPLINGS = 20
SMALL_COST = 1.0
BIG_COST = 20.0
MARGINS = (0.0, 1.0, 1.645, 1.8, 2.0, 2.2)
"""Standard errors that a person keeps in hand."""
HEADER = ("threshold", "kept", "cost")


@dataclass(frozen=True)
class PairOutcomes:
    """Outcomes of a pair on the rows that it was not fitted on."""

    scores: NDArray[np.float64]
    small_losses: NDArray[np.float64]
    big_losses: NDArray[np.float64]
    max_loss: float
    loss_limit: float = 1.0

    def table(self, rows: NDArray[np.intp]) -> Outcomes:
        """Get the outcomes of some rows."""
        return Outcomes(
            scores=self.scores[rows],
            small_losses=self.small_losses[rows],
            big_losses=self.big_losses[rows],
            small_cost=SMALL_COST,
            big_cost=BIG_COST,
            loss_limit=self.loss_limit,
        )


def classifiers() -> PairOutcomes:
    """Fit a linear and a boosted classifier; the score is the margin of probabilities."""
    X, y = make_classification(
        N_ROWS, 20, n_informative=8, n_classes=3, class_sep=1.2, flip_y=0.02, random_state=0
    )
    small = LogisticRegression(max_iter=300).fit(X[:N_FIT], y[:N_FIT])
    big = HistGradientBoostingClassifier(random_state=0).fit(X[:N_FIT], y[:N_FIT])
    X = X[N_FIT:]
    y = y[N_FIT:]
    ranked = np.sort(small.predict_proba(X), axis=1)
    small_losses = 1.0 * (small.predict(X) != y)
    big_losses = 1.0 * (big.predict(X) != y)
    return PairOutcomes(ranked[:, -1] - ranked[:, -2], small_losses, big_losses, max_loss=0.02)


def regressors() -> PairOutcomes:
    """Fit a linear and a boosted regressor; the score is a small model's guess at the error."""
    X, y = make_friedman1(N_ROWS, noise=1.0, random_state=0)
    small = LinearRegression().fit(X[:N_FIT], y[:N_FIT])
    big = HistGradientBoostingRegressor(random_state=0).fit(X[:N_FIT], y[:N_FIT])
    errors = np.abs(small.predict(X[:N_FIT]) - y[:N_FIT])
    guess = HistGradientBoostingRegressor(max_depth=3, max_iter=30, random_state=0)
    guess.fit(X[:N_FIT], errors)
    X = X[N_FIT:]
    y = y[N_FIT:]
    limit = 5.0
    losses = [np.minimum(0.5 * np.abs(y - model.predict(X)), limit) for model in (small, big)]
    return PairOutcomes(-guess.predict(X), losses[0], losses[1], max_loss=0.05, loss_limit=limit)


def voters() -> PairOutcomes:
    """Fit seven small trees and a boosted classifier; the score is the agreement of the trees."""
    X, y = make_classification(
        N_ROWS, 20, n_informative=10, n_classes=4, class_sep=1.5, random_state=1
    )
    trees = [
        DecisionTreeClassifier(max_depth=9, max_features=5, random_state=seed).fit(
            X[:N_FIT], y[:N_FIT]
        )
        for seed in range(7)
    ]
    big = HistGradientBoostingClassifier(random_state=0).fit(X[:N_FIT], y[:N_FIT])
    X = X[N_FIT:]
    y = y[N_FIT:]
    answers, share = agreement(np.stack([tree.predict(X) for tree in trees], axis=1))
    return PairOutcomes(share, 1.0 * (answers != y), 1.0 * (big.predict(X) != y), max_loss=0.02)


PAIRS: dict[str, Callable[[], PairOutcomes]] = {
    "classifiers": classifiers,
    "regressors": regressors,
    "voters": voters,
}


def threshold_by_hand(
    scores: NDArray[np.float64], lost: NDArray[np.float64], max_loss: float, margin: float
) -> float:
    """Find the cheapest threshold of mean loss plus `margin` standard errors within the bound."""
    order = np.argsort(-scores, kind="stable")
    ranked_scores = scores[order]
    ranked_losses = lost[order]
    n = len(order)
    mean = np.cumsum(ranked_losses) / n
    variance = np.maximum(np.cumsum(ranked_losses**2) / n - mean**2, 0.0)
    is_last_of_ties = np.append(ranked_scores[1:] != ranked_scores[:-1], True)
    keeps = (mean + margin * np.sqrt(variance / n) <= max_loss) & is_last_of_ties
    cuts = np.flatnonzero(keeps)
    return float(ranked_scores[cuts[-1]]) if len(cuts) else np.inf


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Draw tables of each pair; measure the thresholds that they choose on the other rows."""
    resamplings = QUICK_RESAMPLINGS if options.quick else RESAMPLINGS
    pairs = {name: measure_pair(fit(), resamplings) for name, fit in PAIRS.items()}
    return {"resamplings": resamplings, "rows": N_TABLE, "pairs": pairs}


def measure_pair(pair: PairOutcomes, resamplings: int) -> dict[str, Any]:
    """Measure how often each way keeps the bound, and its mean cost."""
    lost = pair.small_losses - pair.big_losses
    ways = ["guaranteed at 0.95", *(f"by hand, {m:g} standard errors in hand" for m in MARGINS)]
    kept: dict[str, list[bool]] = {way: [] for way in ways}
    costs: dict[str, list[float]] = {way: [] for way in ways}
    rng = np.random.default_rng(0)
    for _ in range(resamplings):
        rows = rng.permutation(len(lost))
        chosen = rows[:N_TABLE]
        unseen = rows[N_TABLE:]
        cascade = OutcomeCascade(max_loss=pair.max_loss).fit(pair.table(chosen))
        is_sent = [cascade.offload(pair.scores[unseen])]
        for margin in MARGINS:
            limit = threshold_by_hand(pair.scores[chosen], lost[chosen], pair.max_loss, margin)
            is_sent.append(pair.scores[unseen] < limit)
        for way, sent in zip(ways, is_sent, strict=True):
            kept[way].append(bool((lost[unseen] * ~sent).mean() <= pair.max_loss))
            costs[way].append(SMALL_COST + BIG_COST * float(sent.mean()))
    return {
        "max_loss": pair.max_loss,
        "loss_limit": pair.loss_limit,
        "small_loss": float(pair.small_losses.mean()),
        "big_loss": float(pair.big_losses.mean()),
        "ways": {
            way: {"kept": float(np.mean(kept[way])), "cost": float(np.mean(costs[way]))}
            for way in ways
        },
    }


def page(figures: Mapping[str, Any]) -> list[str]:
    """Lines of the page."""
    lines = [
        "# Thresholds from outcomes",
        "",
        f"{figures['resamplings']} tables of {figures['rows']:,} rows each choose a threshold for "
        "`max_loss`, which is measured on 38,000 other rows. Kept: share of the tables whose "
        f"threshold keeps the bound there. The small system costs {SMALL_COST:g}, the big one "
        f"{BIG_COST:g}. A threshold tuned by hand with nothing in hand is cheaper and breaks its "
        "bound about every second time, unless scores are so few that chance decides. The "
        "margin with which it keeps the bound as often as the guarantee differs from pair to pair. "
        "`python -m benchmarks.bench_outcomes` writes this page.",
    ]
    for name, pair in figures["pairs"].items():
        lines += [
            "",
            f"{name}: mean loss {pair['small_loss']:.3f} and {pair['big_loss']:.3f}, at most "
            f"{pair['loss_limit']:g}; max_loss {pair['max_loss']:g}",
            "",
        ]
        rows = [(way, f"{f['kept']:.1%}", f"{f['cost']:.2f}") for way, f in pair["ways"].items()]
        lines += harness.table_lines(HEADER, rows)
    return lines


BENCHMARK = harness.Benchmark(
    name="outcomes",
    description=__doc__,
    quick=f"{QUICK_RESAMPLINGS} resamplings: only a look",
    packages=("gatewise", "numpy", "scipy", "scikit-learn"),
    measure=measure,
    page=page,
)

if __name__ == "__main__":
    sys.exit(BENCHMARK.main())
