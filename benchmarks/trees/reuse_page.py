"""The page of prices on first use: gains by set and size, what was chosen, CPU time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.trees.reuse_boosting import Prices

SIZES = (1024, 2048, 4096, 8192)
WAYS = ("today", "price 0", "prices")
HEADER = (
    "set", "KB", *WAYS, "prices - today", "prices - price 0", "price 0 - today", "bytes",
    "thresholds", "features",
)  # fmt: skip
Cell = dict[str, Any]
"""Figures of a set and seed, as :func:`benchmarks.bench_reuse.measured` gives them."""


def _of(cells: Sequence[Cell], size: int, way: str, key: str) -> NDArray[np.float64]:
    """A figure of each seed, NaN where nothing is as small."""
    each = [cell["sizes"][str(size)][way] for cell in cells]
    return np.array([np.nan if found is None else found[key] for found in each], float)


def _gains(cells: Sequence[Cell], size: int, way: str, beside: str) -> NDArray[np.float64]:
    """Differences of test accuracy in points, by seed."""
    return 100 * (_of(cells, size, way, "accuracy") - _of(cells, size, beside, "accuracy"))


def _error(values: NDArray[np.float64]) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else 0.0


def _with_error(values: NDArray[np.float64]) -> str:
    return "-" if np.isnan(values).any() else f"{values.mean():+.2f} ± {_error(values):.2f}"


def row(name: str, size: int, cells: Sequence[Cell]) -> tuple[str, ...]:
    """Figures of a set and size in the columns of `HEADER`."""

    def means(key: str) -> str:
        each = [_of(cells, size, way, key).mean() for way in WAYS]
        return " / ".join("-" if np.isnan(mean) else f"{mean:.0f}" for mean in each)

    accuracies = (100 * _of(cells, size, way, "accuracy").mean() for way in WAYS)
    return (
        name, str(size // 1024),
        *("-" if np.isnan(mean) else f"{mean:.2f}" for mean in accuracies),
        _with_error(_gains(cells, size, "prices", "today")),
        _with_error(_gains(cells, size, "prices", "price 0")),
        _with_error(_gains(cells, size, "price 0", "today")),
        means("bytes"), means("thresholds"), means("features"),
    )  # fmt: skip


def _finding(found: dict[str, list[Cell]]) -> str:
    """The page's first sentences, made of the figures."""
    pairs = [(name, size) for name in found for size in SIZES]
    texts = []
    for beside in ("today", "price 0"):
        gains = {pair: _gains(found[pair[0]], pair[1], "prices", beside) for pair in pairs}
        gains = {pair: each for pair, each in gains.items() if not np.isnan(each).any()}
        worst, best = (pick(gains, key=lambda p: gains[p].mean()) for pick in (min, max))
        better = sum(each.mean() > 2 * _error(each) for each in gains.values())
        worse = sum(each.mean() < -2 * _error(each) for each in gains.values())
        ends = [f"{gains[p].mean():+.2f} ({p[0]}, {p[1] // 1024} KB)" for p in (worst, best)]
        texts.append(
            f"{_with_error(np.mean(list(gains.values()), axis=0))} points (mean of {len(gains)} "
            f"pairs of set and size, from {ends[0]} to {ends[1]}; by more than twice the standard "
            f"error {better} pairs are better and {worse} worse)"
        )
    times = [sum(c["cpu_seconds"][w] for cs in found.values() for c in cs) for w in WAYS]
    return (
        "Within 1 to 8 KB, prices on the first use of features and thresholds change test "
        f"accuracy against today's search by {texts[0]}, and against the same boosting without "
        f"prices by {texts[1]}; the search takes {times[2] / times[0]:.1f} times today's CPU time."
    )


def page(
    found: dict[str, list[Cell]], rows: Sequence[tuple[str, ...]], prices: Sequence[Prices]
) -> str:
    """Write the page; `rows` are those of :func:`row`, `prices` what was tried."""
    seconds = [
        (name, str(cells[0]["rows"]),
         *(f"{np.mean([cell['cpu_seconds'][way] for cell in cells]):.1f}" for way in WAYS))
        for name, cells in found.items()
    ]  # fmt: skip
    lines = [
        "# Prices on the first use of features and thresholds, within few bytes",
        "",
        _finding(found),
        "",
        "Single boosted models on all features, without offloading, as C's tables of 1, 2, 4 and "
        "8 KB. *Today*: LightGBM in each shape of trees (leaves, learning rate) that is worth it, "
        "as many rounds as fit, leaves of a byte; thresholds come from a grid only where features "
        "have few values: up to 8 KB there is no room for another. *Price 0*: the same shapes, "
        "rounds and leaves by this benchmark's own boosting, thresholds free; what differs from "
        "today is boosting's alone. *Prices*: that, and ToaD's prices (ICLR 2026) on the first "
        "use of a threshold and of a feature, in LightGBM's gain: "
        + ", ".join(f"{p.threshold:g}/{p.feature:g}" for p in prices)
        + f". Validation rows choose shape and prices, with prices among {len(prices)} times as "
        "many models; test rows report: accuracy in %, "
        f"differences in points, paired, ± standard error over {len(next(iter(found.values())))} "
        "seeds. A seed draws four fifths of the training rows, of Forest 12,000. Bytes, distinct "
        "thresholds and features are means in the order of the ways. Where the set has no "
        "validation rows of its own, they are five folds. `python -m benchmarks.bench_reuse` "
        "makes this page.",
        "",
        *harness.table_lines(HEADER, rows),
        "",
        "Thresholds and features priced at what validation chose, by size and seed:",
        "",
        *harness.table_lines(("set", *(f"{size // 1024} KB" for size in SIZES)), _choices(found)),
        "",
        "CPU seconds of the search for all four sizes, mean of the seeds; a priced fit serves all "
        "four.",
        "",
        *harness.table_lines(("set", "training rows", *WAYS), seconds),
        "",
    ]
    return "\n".join(lines)


def _choices(found: dict[str, list[Cell]]) -> Iterable[tuple[str, ...]]:
    for name, cells in found.items():
        each = [[cell["sizes"][str(size)]["prices"] for cell in cells] for size in SIZES]
        texts = (
            [f"{f['chosen']['threshold']:g}/{f['chosen']['feature']:g}" if f else "-" for f in some]
            for some in each
        )
        yield name, *(", ".join(text) for text in texts)
