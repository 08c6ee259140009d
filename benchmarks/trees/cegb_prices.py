"""CEGB's figures 3a and 4 (NIPS 2017, sections 5.1 and 5.2) on public data.

Figure 3a varies the weight of the prices and includes a fit with equal prices. MQ2008 with prices
drawn from those of Yahoo replaces the Yahoo data, which is licensed. Figure 4 segments flies in
video frames. Drawn frames replace the video, which is not public.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from benchmarks.data import problems
from benchmarks.data.folds import Fold
from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise_training.cegb.growth import TreeGrowth, boost_trees
from gatewise_training.cegb.objectives import ValueTarget
from gatewise_training.cegb.penalties import Charge, SplitPrices

Image = NDArray[np.float64]

#: Prices that Yahoo published for its features.
YAHOO_PRICES = (1.0, 5.0, 20.0, 50.0, 100.0, 150.0, 200.0)

#: Weights of the prices in figure 3a; the last one is too high, like 0.001 in the paper.
STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)

#: Weight of the fit with equal prices; its cost is measured at the true prices.
EQUAL_PRICE_STRENGTH = 1e-3

#: Pixels of a side of the blocks in figure 4, whose filters share one value.
BLOCKS = (1, 2, 4, 8)

#: Weights of the prices in figure 4.
SPLIT_STRENGTHS = (0.0, 1e-5, 1e-4, 1e-3, 1e-2)


def measure_tradeoffs(
    round_counts: Sequence[int], *, folds: Sequence[Fold] | None = None
) -> dict[str, Any]:
    """Measure figure 3a: AP@5 and cost of test documents after each number of rounds."""
    problem = problems.get("mq2008")
    folds = folds or problem.make_folds(0)
    n_features = folds[0].train[0].shape[1]
    prices = FeatureCosts(np.random.default_rng(0).choice(YAHOO_PRICES, n_features))
    equal_prices = FeatureCosts.uniform(n_features)
    cases = {f"weight {strength:g}": (strength, prices) for strength in STRENGTHS}
    equal_case = f"weight {EQUAL_PRICE_STRENGTH:g}, trained at equal prices"
    cases[equal_case] = (EQUAL_PRICE_STRENGTH, equal_prices)
    curves: dict[str, Any] = {}
    for name, (strength, costs) in cases.items():
        points = [
            [_score_and_cost(fold, strength, costs, prices, n_rounds) for n_rounds in round_counts]
            for fold in folds
        ]
        score, cost = np.mean(points, axis=0).T
        curves[name] = {"score": score.round(5), "cost": cost.round(3)}
        note(f"cegb: figure 3a, {name}")
    return {"rounds": list(round_counts), "total": prices.total, "curves": curves}


def _score_and_cost(
    fold: Fold, strength: float, costs: FeatureCosts, prices: FeatureCosts, n_rounds: int
) -> tuple[float, float]:
    rows, grades = fold.train
    target = ValueTarget.standardised(grades.astype(np.float64), np.ones(len(grades)))
    growth = TreeGrowth(num_leaves=15, learning_rate=0.1, patience=None)
    charge = Charge(SplitPrices(costs, "lazy", 0.0), strength, rows)
    trees, _ = boost_trees(rows, target, growth, charge, rounds=n_rounds)
    test_rows = fold.test[0]
    return (
        fold.test_truth.score(trees.margins(test_rows)[:, 0]),
        float(prices.instance_costs(trees.visited_features(test_rows)).mean()),
    )


def measure_multiscale(*, n_frames: int, size: int, n_rows: int, n_rounds: int) -> dict[str, Any]:
    """Measure figure 4: SEG measure and cost of evaluating a pixel.

    A split on a feature whose value m pixels share costs 1/m.
    """
    rng = np.random.default_rng(0)
    frames = [draw_frame(rng, size) for _ in range(2 * n_frames)]
    tables = [pixel_features(image) for image, _ in frames]
    pixels = np.concatenate(tables[:n_frames])
    is_fly = np.concatenate([flies.ravel() > 0 for _, flies in frames[:n_frames]])
    # equal numbers of pixels with and without flies
    rows = [
        rng.choice(np.flatnonzero(is_fly == wanted), n_rows // 2, replace=False)
        for wanted in (False, True)
    ]
    pixels, is_fly = pixels[np.concatenate(rows)], is_fly[np.concatenate(rows)]
    target = ValueTarget.standardised(2.0 * is_fly - 1.0, np.ones(len(is_fly)))
    n_filters = pixels.shape[1] // len(BLOCKS)
    split_prices = np.repeat([1 / block**2 for block in BLOCKS], n_filters)
    pixel_prices = SplitPrices(FeatureCosts(np.zeros(pixels.shape[1])), "lazy", split_prices)
    points = []
    for strength in SPLIT_STRENGTHS:
        growth = TreeGrowth(num_leaves=15, learning_rate=0.2, patience=None)
        trees, _ = boost_trees(
            pixels, target, growth, Charge(pixel_prices, strength, pixels), rounds=n_rounds
        )
        scores, costs = [], []
        for table, (_, flies) in zip(tables[n_frames:], frames[n_frames:], strict=True):
            predicted_mask = trees.margins(table)[:, 0].reshape(flies.shape) > 0
            scores.append(seg_measure(predicted_mask, flies))
            costs.append(float(pixel_prices.evaluation_prices(trees, table).mean()))
        feature_blocks = trees.feature[trees.feature >= 0] // n_filters
        point = {"strength": strength, "seg": float(np.mean(scores)), "cost": float(np.mean(costs))}
        shares = np.bincount(feature_blocks, minlength=len(BLOCKS)) / max(1, len(feature_blocks))
        points.append(point | {"splits_by_block": shares.round(4)})
        note(f"cegb: figure 4, {points[-1]}")
    return {"frames": n_frames, "size": size, "rows": n_rows, "rounds": n_rounds, "points": points}


def draw_frame(rng: np.random.Generator, size: int) -> tuple[Image, NDArray[np.int64]]:
    """Draw dark ellipses on noise; return the image and the fly number of each pixel, or 0."""
    row, column = np.mgrid[:size, :size]
    # grey 0.7 with uneven ground and noise, from which flies of 16 x 8 pixels are 0.4 darker
    background = ndimage.gaussian_filter(rng.normal(size=(size, size)), size / 8)
    image = 0.7 + 0.15 * background / background.std() + 0.12 * rng.normal(size=(size, size))
    flies = np.zeros((size, size), np.int64)
    for fly_number in range(1, 7):
        centre, angle = rng.uniform(8, size - 8, size=2), rng.uniform(0, np.pi)
        # inside the ellipse: (along / 8)^2 + (across / 4)^2 <= 1
        along = (row - centre[0]) * np.cos(angle) + (column - centre[1]) * np.sin(angle)
        across = (column - centre[1]) * np.cos(angle) - (row - centre[0]) * np.sin(angle)
        flies[(along / 8) ** 2 + (across / 4) ** 2 <= 1] = fly_number
    image[flies > 0] -= 0.4
    return image, flies


def pixel_features(image: Image) -> NDArray[np.float32]:
    """Compute filters on means of square blocks, repeated for each pixel."""
    feature_columns = []
    for block in BLOCKS:
        n_blocks = len(image) // block
        block_means = image.reshape(n_blocks, block, n_blocks, block).mean(axis=(1, 3))
        filters = [
            block_means,
            ndimage.uniform_filter(block_means, 3),
            ndimage.gaussian_gradient_magnitude(block_means, 1),
            ndimage.gaussian_laplace(block_means, 1),
        ]
        feature_columns += [
            image_filter.repeat(block, 0).repeat(block, 1).ravel() for image_filter in filters
        ]
    return np.stack(feature_columns, axis=1).astype(np.float32)


def seg_measure(predicted_mask: NDArray[np.bool_], flies: NDArray[np.int64]) -> float:
    """Average the flies' Jaccard index; 0 for a fly that no segment covers by more than half."""
    segments, _ = ndimage.label(predicted_mask)
    scores = []
    for fly_number in range(1, flies.max() + 1):
        is_fly = flies == fly_number
        segment_pixels = np.bincount(segments[is_fly], minlength=1)
        segment_pixels[0] = 0
        is_segment = segments == segment_pixels.argmax()
        overlap = int(segment_pixels.max())
        is_covered = 2 * overlap > is_fly.sum() > 0
        scores.append(overlap / (is_segment | is_fly).sum() if is_covered else 0.0)
    return float(np.mean(scores))
