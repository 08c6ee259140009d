"""What the gate brings: Adapt stopped by its gate, by f1's margin, by either, and no gate.

    python -m benchmarks.bench_gate [--quick] [--only SET,...]

All rows of a set are drawn into parts to fit, validate and test (40, 25 and 35 of 100, at most
3,000 to fit), four times. A forest fitted on the first part is the high-cost model of all.
Validation chooses every operating point; accuracy is that of the test rows at twelve budgets from
the cheapest useful one to the full price. Where no point is within a budget, the commonest class
answers. Writes gate.json and gate.md into benchmarks/results; a quick look into .bench-cache/quick.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier

from benchmarks import harness
from benchmarks.data import problems
from gatewise.console import note, table
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training import AdaptGBRT, AdaptLin, ConfidenceCascade

SETS = (
    "statlog_heart", "wine", "breast_cancer", "mbne_tiny", "thyroid", "occupancy", "letter-bin",
    "forest-bin", "forest-7",
)  # fmt: skip
SPLITS, QUICK_SPLITS, BUDGETS = 4, 1, 12
SHARES, MOST_FITTED = (0.4, 0.25, 0.35), 3000
PACKAGES = ("gatewise", "numpy", "scipy", "scikit-learn", "lightgbm", "numba")
Method = Callable[[Any, FeatureCosts, int], Any]
METHODS: dict[str, Method] = {
    "gate": lambda f0, c, s: AdaptGBRT(f0, feature_costs=c, stop="gate", random_state=s),
    "margin": lambda f0, c, s: AdaptGBRT(f0, feature_costs=c, stop="margin", random_state=s),
    "auto": lambda f0, c, s: AdaptGBRT(f0, feature_costs=c, random_state=s),
    "confidence": lambda f0, c, s: ConfidenceCascade(f0, feature_costs=c, random_state=s),
    "lin-gate": lambda f0, c, s: AdaptLin(f0, feature_costs=c, stop="gate", random_state=s),
    "lin-margin": lambda f0, c, s: AdaptLin(f0, feature_costs=c, stop="margin", random_state=s),
    "lin-auto": lambda f0, c, s: AdaptLin(f0, feature_costs=c, random_state=s),
    "lin-confidence": lambda f0, c, s: ConfidenceCascade(
        f0, feature_costs=c, low_cost_model="linear", random_state=s
    ),
}
KINDS = {"`AdaptGBRT`": "", "`AdaptLin`": "lin-"}
"""Methods compared, and how their names begin; each has a `ConfidenceCascade` of its family."""
HEADER = (
    "set", "rows to fit", "method", "gate", "margin", "auto", "`ConfidenceCascade`", "auto - gate",
    "auto - `ConfidenceCascade`", "CPU s, auto", "CPU s, `ConfidenceCascade`",
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; returns the exit status: 2 for bad input, 130 after Ctrl-C."""
    parser = harness.parser("bench_gate", __doc__, f"{QUICK_SPLITS} split: only a look", SETS)
    options = parser.parse_args(arguments)
    splits = QUICK_SPLITS if options.quick else SPLITS

    def action() -> int:
        chosen = harness.chosen_parts(options, SETS)
        found: dict[str, Any] = {
            "settings": {
                "splits": splits,
                "budgets": BUDGETS,
                "shares": SHARES,
                "most_rows_to_fit": MOST_FITTED,
            },
            **harness.environment(PACKAGES),
            "sets": {},
        }
        for name in chosen:
            found["sets"][name] = _measure(name, splits)
            gains = [_row(name, kind, found["sets"][name])[-3] for kind in KINDS]
            note(f"{name}: auto - ConfidenceCascade {', '.join(gains)}")
        rows = [_row(name, kind, each) for kind in KINDS for name, each in found["sets"].items()]
        table("gate or margin", HEADER, rows)
        folder = harness.out_folder(options, whole=chosen == list(SETS))
        harness.write_results(folder, "gate", found, _page(found, rows))
        return 0

    return harness.run_command(action)


def _rows(name: str) -> tuple[NDArray[np.float32], NDArray[np.int64], FeatureCosts, float]:
    """All rows of a set, its labels and prices, and the smallest budget."""
    if name == "wine":
        x, y = load_wine(return_X_y=True)
        return x.astype(np.float32), y, FeatureCosts.uniform(x.shape[1]), 1.0
    problem = problems.get(name)
    fold = problem.deal(0)[0]
    parts = [part for part in (fold.train, fold.validation, fold.test) if part is not None]
    x, y = (np.concatenate(column) for column in zip(*parts, strict=True))
    return x, y, problem.costs, problem.cheapest


def _measure(name: str, splits: int) -> dict[str, Any]:
    x, y, costs, cheapest = _rows(name)
    budgets = np.geomspace(cheapest, costs.total, BUDGETS)
    scale = min(1.0, MOST_FITTED / (SHARES[0] * len(y)))
    ends = np.cumsum([round(scale * share * len(y)) for share in SHARES])
    accuracy: dict[str, list[list[float]]] = {method: [] for method in METHODS}
    seconds = dict.fromkeys(METHODS, 0.0)
    for seed in range(splits):
        order = np.random.default_rng(seed).permutation(len(y))
        fit, validation, test, _ = np.split(order, ends)
        f0 = RandomForestClassifier(100, random_state=seed).fit(x[fit], y[fit])
        for method, make in METHODS.items():
            started = time.process_time()
            system = make(f0, costs, seed)
            system.fit(x[fit], y[fit], validation=(x[validation], y[validation]))
            seconds[method] += (time.process_time() - started) / splits
            commonest = float(np.mean(y[test] == np.bincount(y[fit]).argmax()))
            accuracy[method].append(
                [_accuracy(system, b, x[test], y[test], commonest) for b in budgets]
            )
    return {
        "rows_to_fit": int(ends[0]),
        "budgets": budgets.tolist(),
        "accuracy": accuracy,
        "cpu_seconds": seconds,
    }


def _accuracy(
    system: Any, budget: float, x: NDArray[Any], y: NDArray[Any], commonest: float
) -> float:
    try:
        point = system.at(budget=budget)
    except InputError:
        return commonest
    return float(np.mean(point.predict(x) == y))


def _row(name: str, kind: str, found: dict[str, Any]) -> tuple[str, ...]:
    own = {m: KINDS[kind] + m for m in ("gate", "margin", "auto", "confidence")}
    mean = {m: 100 * np.mean(found["accuracy"][key], axis=1) for m, key in own.items()}
    seconds = {m: found["cpu_seconds"][key] for m, key in own.items()}
    return (
        name,
        str(found["rows_to_fit"]),
        kind,
        *(_figure(each, "") for each in mean.values()),
        _figure(mean["auto"] - mean["gate"]),
        _figure(mean["auto"] - mean["confidence"]),
        f"{seconds['auto']:.1f}",
        f"{seconds['confidence']:.1f}",
    )


def _figure(values: NDArray[Any], sign: str = "+") -> str:
    error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else np.nan
    return f"{np.mean(values):{sign}.1f} ± {error:.1f}"


def _page(found: dict[str, Any], rows: Sequence[Sequence[str]]) -> str:
    settings = found["settings"]
    lines = [
        "# Gate or margin",
        "",
        f"Test accuracy in percent, the mean over {settings['budgets']} budgets from the cheapest "
        f"useful one to the full price, ± its standard error over {settings['splits']} random "
        "splits. One fitted forest as high-cost model for all, defaults of all methods; "
        "`ConfidenceCascade` has boosted trees beside `AdaptGBRT`, a linear model beside "
        "`AdaptLin`. Validation chooses every point. `make bench-gate` writes this page.",
        "",
        *harness.table_lines(HEADER, rows),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
