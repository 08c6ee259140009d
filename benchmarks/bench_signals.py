"""Accuracy and feature time of cascades on raw signals, measured on unseen groups.

    python -m benchmarks.bench_signals [--quick] [--only movement,sound]

Prices are the microseconds per window that this machine needs for a block. Each split tests on
whole groups, which are subjects, records, speakers or motor loads. Validation within the training
rows also splits by group. The high-cost model of the cascade is a boosted model on all features,
and an offload pays for all of them. The operating point is the cheapest with a loss of at most 1
point.

The page compares the cascade with the high-cost model, a boosted model on the cheapest block, a
small network on the raw window, CEGB and Adapt-GBRT. The results are signals.json and signals.md in
benchmarks/results. Finished splits are cached in .bench-cache/signals, and an interrupted run
continues with the others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from lightgbm import LGBMClassifier
from numpy.typing import NDArray
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gatewise_signals as sig
from benchmarks import harness
from benchmarks.cache import CACHE, code_version, read_or_compute, write_whole
from benchmarks.data.signal_sets import SIGNAL_SETS, SignalSet, load_set
from benchmarks.harness import Column
from gatewise.console import note
from gatewise.errors import GatewiseError
from gatewise_training import AdaptGBRT, CEGBClassifier, StagedCascade

#: Number of splits of each set, and number of splits on which the peers are fitted as well.
N_SPLITS = 10
N_PEER_SPLITS = 1
#: Settings of CEGB and Adapt-GBRT: few rounds at a high rate, to save time.
ROUNDS: dict[str, Any] = {"n_rounds": 40, "learning_rate": 0.2}
#: Largest loss of accuracy that a system promises, compared with its high-cost model or with a
#: model on all features.
MAX_LOSS = 0.01
#: Number of windows that prices are measured on, and that a device's time is measured on.
N_PRICED_WINDOWS = 60
N_TIMED_WINDOWS = 150
PACKAGES = ("gatewise", "numpy", "scikit-learn", "lightgbm")
FOLDER = CACHE / "signals"


def measure_set(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Fit the splits of a set that are not cached; return the figures of all splits."""
    priced_set = _PricedSet.load(name)
    cells = []
    for number in range(2 if options.quick else N_SPLITS):
        cell = {"split": number}
        if number < N_PEER_SPLITS:
            cell |= _read_or_fit(_fit_peers, "peers.", number, priced_set)
        cells.append(cell | _read_or_fit(_fit_cascade, "", number, priced_set))
    signal_set, graph = priced_set.signal_set, priced_set.graph
    return {
        "note": signal_set.note,
        "rows": len(signal_set.y),
        "features": len(graph.feature_names),
        "groups": None if signal_set.groups is None else len(np.unique(signal_set.groups)),
        "measure": "balanced accuracy" if signal_set.has_rare_classes else "accuracy",
        "target": signal_set.target,
        "families": signal_set.families,
        "prices_us": priced_set.prices,
        "total_us": graph.costs().total,
        "splits": cells,
    }


def merge(path: Path, sets: dict[str, Any]) -> dict[str, Any]:
    """Replace the figures of the sets that were run."""
    return {"sets": harness.merge_parts(path, {}).get("sets", {}) | sets}


@dataclass(frozen=True, eq=False)
class _PricedSet:
    """Signal set with the features and measured prices of its blocks, used by all splits."""

    signal_set: SignalSet
    graph: sig.SignalGraph
    prices: dict[str, float]
    x: NDArray[np.float32]

    @classmethod
    def load(cls, name: str) -> _PricedSet:
        signal_set = load_set(name)
        blocks, prices = _price_blocks(signal_set)
        graph = sig.SignalGraph(blocks)
        return cls(signal_set, graph, prices, graph.transform(signal_set.windows))

    def split(self, number: int) -> _Split:
        train, test = self.signal_set.splits(number + 1)[number]
        return _Split(self.signal_set, self.graph, self.x, train, test, number)


def _read_or_fit(
    fit: Callable[[_Split], dict[str, Any]], prefix: str, number: int, priced_set: _PricedSet
) -> dict[str, Any]:
    """Fit a split unless its figures are cached for the same code and settings."""
    modules = ["benchmarks.data.signal_sets", "gatewise_training.cascades.staged"]
    if prefix:
        modules += ["gatewise_training.adapt.gbrt", "gatewise_training.cegb.classifier"]
    key_terms = [*(code_version(module) for module in modules), MAX_LOSS]
    version = hashlib.sha256(json.dumps(key_terms).encode()).hexdigest()[:12]
    path = FOLDER / f"{priced_set.signal_set.name}.{prefix}{number}.{version}.json"

    def run() -> dict[str, Any]:
        start_time = time.process_time()
        cell = fit(priced_set.split(number))
        cell["cpu_seconds"] = round(time.process_time() - start_time, 1)
        note(f"{path.stem}: {cell.get('gatewise', '')} {cell['cpu_seconds']} s")
        return cell

    return read_or_compute(path, run)


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
class _Split:
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


def _fit_cascade(split: _Split) -> dict[str, Any]:
    """Fit a cascade whose high-cost model is a boosted model on all features; compare both."""
    y, x, test, costs = split.signal_set.y, split.x, split.test, split.graph.costs()
    system = StagedCascade(
        _make_booster(split, None),
        feature_costs=costs,
        families=split.signal_set.families,
        max_loss=MAX_LOSS,
        class_weight=split.class_weight,
        random_state=split.seed,
    ).fit(x[split.train], y[split.train], groups=split.groups)
    is_correct = split.is_correct(system, x)
    is_cloud_correct = system.classes_[system.high_cost_model_.labels(x[test])] == y[test]
    loss, error = split.mean_and_error(is_cloud_correct.astype(float) - is_correct)
    point, frontier = system.operating_point_, system.frontier_
    reference_accuracy = frontier.reference_weighted_accuracy or frontier.reference_accuracy
    return {
        "all features": split.figures(is_cloud_correct, costs.total),
        "gatewise": split.figures(is_correct, float(system.cost(x[test]).mean()))
        | {
            "offloaded": float(system.offload(x[test]).mean()),
            "promised_loss": reference_accuracy - (point.weighted_accuracy or point.accuracy),
            "loss": loss,
            "loss_error": error,
            "device_over_charged": _measure_device_ratio(split, system),
        },
    }


def _fit_peers(split: _Split) -> dict[str, Any]:
    """Fit a model on the cheapest block, a network on the raw window, CEGB and Adapt-GBRT."""
    graph, x, train, y, seed = split.graph, split.x, split.train, split.signal_set.y, split.seed
    costs = graph.costs()
    # boosted trees on the cheapest block
    cheapest_block = min(
        range(len(graph.blocks)),
        key=lambda block_index: costs.standalone_prices[graph.columns(block_index)].min(),
    )
    columns = graph.columns(cheapest_block)
    booster = _make_booster(split, split.class_weight).fit(x[train, columns], y[train])
    price = float(costs.price(np.arange(columns.start, columns.stop)))
    # a network on the raw window
    flat_windows = np.asarray(split.signal_set.windows, np.float32).reshape(len(y), -1)
    network = make_pipeline(
        StandardScaler(), MLPClassifier((64,), early_stopping=True, max_iter=60, random_state=seed)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the warning that the network has not converged
        network.fit(flat_windows[train], y[train])
    figures: dict[str, Any] = {
        "cheapest block": split.figures(split.is_correct(booster, x[:, columns]), price),
        "network on the window": split.figures(split.is_correct(network, flat_windows), 0.0),
    }
    # methods that know prices
    budgeted_models = {
        "CEGB": CEGBClassifier(costs, n_penalties=4, **ROUNDS),
        "Adapt-GBRT": AdaptGBRT(
            _make_booster(split, None),
            costs,
            stop="gate",
            penalties=(0.016, 0.0025),
            p_full=(0.3,),
            warm_up=8,
            **ROUNDS,
        ),
    }
    for name, model in budgeted_models.items():
        model.set_params(max_loss=MAX_LOSS, class_weight=split.class_weight, random_state=seed)
        try:
            model.fit(x[train], y[train], groups=split.groups)
        except GatewiseError as error:  # the page shows that this method cannot fit the set
            figures[name] = {"failed": str(error)[:200]}
        else:
            cost = float(model.cost(x[split.test]).mean())
            figures[name] = split.figures(split.is_correct(model, x), cost)
    return figures


def _make_booster(split: _Split, class_weight: str | None) -> LGBMClassifier:
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


def _measure_device_ratio(split: _Split, system: Any) -> float:
    """Compute the median over windows of the feature time on a device by the charged price."""
    graph = split.graph
    rows = split.test[:: max(1, len(split.test) // N_TIMED_WINDOWS)]
    windows, x = split.signal_set.windows[rows], split.x[rows]
    ratios = []
    for window, exit_stage, charged_price in zip(
        windows, system.exit_stage(x), system.cost(x), strict=True
    ):
        features_of_stages = [stage.features for stage in system.stages_[: exit_stage + 1]]
        if exit_stage == len(system.stages_):
            features_of_stages.append(system.high_cost_model_.features)
        blocks = [
            dict.fromkeys(graph.block_of_feature[features].tolist())
            for features in features_of_stages
        ]
        durations = []
        for _ in range(5):
            start_time = time.perf_counter()
            lazy_values = graph.lazy_values(window)
            for stage_blocks in blocks:
                for block_index in stage_blocks:
                    lazy_values.block_features(block_index)
            durations.append(time.perf_counter() - start_time)
        ratios.append(1e6 * min(durations) / charged_price)
    return float(np.median(ratios))


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    lines = [
        "# Signals",
        "",
        "`make bench-signals` writes this page from the figures in `signals.json`. No group has "
        "both training and test rows. Accuracy is balanced if a set has rare classes. ± is the "
        "standard error over groups, averaged over the splits; it is 0 if there is only one test "
        "group.",
        "",
        "- *Time* is the mean time that the features of a window take on this machine, in "
        "microseconds.",
        f"- *Kept* counts the splits with a loss on test rows within the promise "
        f"({100 * MAX_LOSS:g} point), and within the promise plus one standard error.",
        "- *Device* is the time on a device divided by the charged price. It is too high if the "
        "machine was busy.",
        "",
    ]
    lines += harness.column_table(
        SET_COLUMNS,
        [_summarise_set(name, figures) for name, figures in results["sets"].items()],
    )
    lines += ["", *_peers_table(results), "", "Sets:", ""]
    for name, figures in results["sets"].items():
        groups_text = "" if figures["groups"] is None else f" {figures['groups']} groups."
        lines.append(
            f"- **{name}**: {figures['note']}. {figures['rows']} windows, {figures['features']} "
            f"features.{groups_text}"
        )
    return lines


def _summarise_set(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise the splits of a set for its row of the table."""
    cells = figures["splits"]
    cascades = [cell["gatewise"] for cell in cells]
    means = {
        key: np.mean([cascade[key] for cascade in cascades])
        for key in ("cost_us", "loss", "loss_error", "offloaded")
    }
    return {
        "name": name,
        "high_cost_accuracy": _write_accuracy([cell["all features"] for cell in cells]),
        "accuracy": _write_accuracy(cascades),
        "total_us": figures["total_us"],
        "target": figures["target"],
        **means,
        "n_splits": len(cells),
        "n_kept": sum(cascade["loss"] <= MAX_LOSS + 1e-12 for cascade in cascades),
        "n_kept_within_error": sum(
            cascade["loss"] <= MAX_LOSS + cascade["loss_error"] for cascade in cascades
        ),
        "device_over_charged": np.median([cascade["device_over_charged"] for cascade in cascades]),
    }


#: Table of all sets; a row is the summary of one.
SET_COLUMNS = (
    Column("set", lambda row: row["name"]),
    Column("all features", lambda row: row["high_cost_accuracy"]),
    Column("time", lambda row: f"{row['total_us']:.0f}"),
    Column("Gatewise", lambda row: row["accuracy"]),
    Column("time", lambda row: f"{row['cost_us']:.0f}"),
    Column("times less", lambda row: f"{row['total_us'] / row['cost_us']:.1f}"),
    Column("wanted", lambda row: f"{row['target']:g}"),
    Column("loss, points", lambda row: f"{100 * row['loss']:.2f} ± {100 * row['loss_error']:.2f}"),
    Column(
        "kept", lambda row: f"{row['n_kept']}, {row['n_kept_within_error']} of {row['n_splits']}"
    ),
    Column("offloaded", lambda row: f"{row['offloaded']:.2f}"),
    Column("device", lambda row: f"{row['device_over_charged']:.2f}"),
)


def _peers_table(results: Mapping[str, Any]) -> list[str]:
    """Write the table that compares all methods on the splits of the peers."""
    methods = ["all features", "gatewise", "cheapest block", "network on the window"]
    methods += ["CEGB", "Adapt-GBRT"]
    rows = []
    for name, figures in results["sets"].items():
        cells = [cell for cell in figures["splits"] if "CEGB" in cell]
        rows.append((name, *(_write_peer_cell(cells, method) for method in methods)))
    caption = (
        "The next table has accuracy and microseconds on the first splits, also of peers. CEGB and "
        f"Adapt-GBRT have {ROUNDS['n_rounds']} rounds and few penalties."
    )
    return [caption, "", *harness.table_lines(("set", *methods), rows)]


def _write_accuracy(cells: Sequence[dict[str, Any]]) -> str:
    mean, error = (np.mean([cell[key] for cell in cells]) for key in ("accuracy", "error"))
    return f"{mean:.3f} ± {error:.3f}"


def _write_peer_cell(cells: Sequence[dict[str, Any]], method: str) -> str:
    fits = [cell[method] for cell in cells if method in cell and "accuracy" in cell[method]]
    if not fits:
        return "no fit"
    cost = np.mean([cell["cost_us"] for cell in fits])
    return f"{np.mean([fit['accuracy'] for fit in fits]):.3f}" + (f", {cost:.0f}" if cost else "")


BENCHMARK = harness.Benchmark(
    name="signals",
    quick_help="two splits",
    packages=PACKAGES,
    page=page,
    parts={name: partial(measure_set, name) for name in SIGNAL_SETS},
    merge=merge,
)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
