"""Signal sets with measured prices of their blocks, and splits of their windows by group."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray

import gatewise_signals as sig
from benchmarks.cache import CACHE, write_whole
from benchmarks.data.signal_sets import SignalSet, load_set

#: Largest loss of accuracy that a system promises, compared with its high-cost model or with a
#: model on all features.
MAX_LOSS = 0.01
#: Number of windows that prices are measured on.
N_PRICED_WINDOWS = 60
FOLDER = CACHE / "signals"


@dataclass(frozen=True, eq=False)
class PricedSet:
    """Signal set with the features and measured prices of its blocks, used by all splits."""

    signal_set: SignalSet
    graph: sig.SignalGraph
    prices: dict[str, float]
    x: NDArray[np.float32]

    @classmethod
    def load(cls, name: str) -> PricedSet:
        signal_set = load_set(name)
        blocks, prices = _price_blocks(signal_set)
        graph = sig.SignalGraph(blocks)
        return cls(signal_set, graph, prices, graph.transform(signal_set.windows))

    def split(self, number: int) -> Split:
        train, test = self.signal_set.splits(number + 1)[number]
        return Split(self.signal_set, self.graph, self.x, train, test, number)


def _price_blocks(signal_set: SignalSet) -> tuple[list[sig.Block], dict[str, float]]:
    """Return the blocks of a set with measured prices, which are cached for all splits."""
    path = FOLDER / f"{signal_set.name}.prices.json"
    steps = sig.SignalGraph(signal_set.blocks).steps
    price_by_step = json.loads(path.read_text()) if path.is_file() else {}
    if set(price_by_step) != {step.label for step in steps}:
        rows = np.linspace(0, len(signal_set.y) - 1, N_PRICED_WINDOWS).astype(int)
        measured_steps = sig.SignalGraph(
            sig.measured(signal_set.blocks, signal_set.windows[rows])
        ).steps
        price_by_step = {step.label: round(step.price or 0.0, 2) for step in measured_steps}
        write_whole(path, json.dumps(price_by_step))
    prices = {step: price_by_step[step.label] for step in steps}
    return [block.with_prices(prices) for block in signal_set.blocks], price_by_step


@dataclass(frozen=True, eq=False)
class Split:
    """Training and test rows of one split of a set."""

    signal_set: SignalSet
    graph: sig.SignalGraph
    x: NDArray[np.float32]  # features of all windows
    train: NDArray[np.intp]
    test: NDArray[np.intp]
    seed: int

    @property
    def class_weight(self) -> Literal["balanced"] | None:
        return "balanced" if self.signal_set.has_rare_classes else None

    @property
    def groups(self) -> NDArray[np.int64] | None:
        """Groups of the training rows."""
        return None if self.signal_set.groups is None else self.signal_set.groups[self.train]

    def is_correct(self, model: Any, x: NDArray[Any]) -> NDArray[np.bool_]:
        """Find the test rows that a model classifies correctly; `x` has all rows."""
        is_equal: NDArray[np.bool_] = model.predict(x[self.test]) == self.signal_set.y[self.test]
        return is_equal

    def mean_and_error(self, values: NDArray[np.float64]) -> tuple[float, float]:
        """Compute the mean over the test rows, and its error if rows of a group are correlated."""
        y, groups = self.signal_set.y[self.test], self.signal_set.groups
        clusters = np.arange(len(y)) if groups is None else groups[self.test]
        weights = 1.0 / np.bincount(y)[y] if self.signal_set.has_rare_classes else np.ones(len(y))
        mean = float(np.average(values, weights=weights))
        _, cluster_numbers = np.unique(clusters, return_inverse=True)
        sums = np.bincount(cluster_numbers, weights * (values - mean)) / weights.sum()
        n_clusters = len(sums)
        return mean, float(np.sqrt((sums**2).sum() * n_clusters / max(n_clusters - 1, 1)))

    def figures(self, is_correct: NDArray[np.bool_], cost: float) -> dict[str, float]:
        mean, error = self.mean_and_error(is_correct.astype(float))
        return {"accuracy": mean, "error": error, "cost_us": cost}


def make_booster(split: Split, class_weight: str | None) -> LGBMClassifier:
    """Make a boosted model, without class weights if the caller passes weighted rows.

    Sets with groups use fewer bins because they are then more accurate on unseen groups. Pictures
    use fewer bins to save time.
    """
    bins = 63 if split.signal_set.groups is not None or split.x.shape[1] > 500 else 255
    return LGBMClassifier(
        n_estimators=150,
        num_leaves=15,
        max_bin=bins,
        random_state=split.seed,
        n_jobs=1,
        verbose=-1,
        class_weight=class_weight,
    )
