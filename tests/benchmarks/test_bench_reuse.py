"""Without prices the trees are those of LightGBM, with them they share; sizes are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import bench_reuse
from benchmarks.data import problems
from benchmarks.trees.reuse_boosting import Prices, boost
from benchmarks.trees.reuse_page import page, row
from gatewise_training.forests.grower.binning import Codes
from gatewise_training.learners.boosting import fit_boosting
from gatewise_training.learners.stage_bounds import LARGEST_STEP_OF_FEW, TreeShape

pytestmark = pytest.mark.slow  # compiles growth

SHAPE = TreeShape(6, 0.3)


@pytest.fixture(scope="module", params=["breast_cancer", "digits"])
def rows(request):
    problem = problems.get(request.param)
    x, y = problem.deal(0)[0].train
    ranks = np.argsort(np.argsort(x, axis=0), axis=0)
    x = (x if problem.n_classes > 2 else ranks // 16).astype(np.float32)  # bins are values
    return x, y, problem.n_classes


def boosted(rows, prices, **more):
    x, y, n_classes = rows
    settings = {"codes": Codes.of_table(x), "max_bytes": 4096} | more
    return boost((x, y), n_classes, SHAPE, prices, **settings)


def n_used(trees):
    """Inner nodes, distinct thresholds and features."""
    inner = trees.feature >= 0
    tests = set(zip(trees.feature[inner].tolist(), trees.threshold[inner].tolist(), strict=True))
    return int(inner.sum()), len(tests), len(trees.used())


def test_without_prices_trees_are_those_of_lightgbm(rows):
    x, y, n_classes = rows
    params = {"num_leaves": SHAPE.leaves, "learning_rate": SHAPE.rate, "min_data_in_bin": 1}
    if n_classes > 2:
        params["max_delta_step"] = LARGEST_STEP_OF_FEW
    # LightGBM estimates rows of a leaf by hessians, which differ by row from the second round on
    rounds = 3 if n_classes == 2 else 1
    theirs, _ = fit_boosting(x, y, n_classes, rounds=rounds, params=params)
    ours = boosted(rows, Prices()).first(rounds)
    # it sums gradients in single precision: near ties may be split otherwise
    gap = np.abs(ours.margins(x) - theirs.margins(x))
    assert np.quantile(gap, 0.9) < 1e-3
    assert np.abs(ours.margins(x)).max() > 0.5


@pytest.mark.parametrize("prices", [Prices(threshold=4.0), Prices(4.0, 4.0), Prices(feature=16.0)])
def test_priced_trees_share_what_is_priced(rows, prices):
    free, priced = (boosted(rows, each) for each in (Prices(), prices))
    inner, thresholds, features = n_used(free.trees)
    inner_priced, thresholds_priced, features_priced = n_used(priced.trees)
    if prices.threshold:
        assert thresholds_priced / inner_priced < 0.8 * thresholds / inner
    if prices.feature:
        assert features_priced < features


def test_a_price_above_every_gain_grows_nothing(rows):
    for prices in (Prices(threshold=1e9), Prices(feature=1e9)):
        assert not boosted(rows, prices).trees.n_trees


def test_validation_rows_end_the_rounds(rows):
    x, y, _ = rows
    wrong = boosted(rows, Prices(), validation=(x, np.roll(y, 7)))
    assert wrong.best < len(wrong.ends) < len(boosted(rows, Prices()).ends)


@pytest.mark.parametrize("folds", [False, True])
def test_sizes_are_kept_and_a_page_is_made(folds):
    problem = problems.get("breast_cancer")
    fold = problem.deal(0)[0]
    if folds:
        fold = replace(fold, validation=None)
    prices = bench_reuse.PRICES[:2]
    cells = [
        bench_reuse.measured(fold, 2, seed, prices=prices, sizes=bench_reuse.SIZES[:1])
        for seed in range(2)
    ]
    for cell in cells:
        found = cell["sizes"]["1024"]
        for way in bench_reuse.WAYS:
            assert found[way]["bytes"] <= 1024
            assert found[way]["accuracy"] > 0.85
        assert found["price 0"]["chosen"]["threshold"] == 0
        assert found["prices"]["validation"] >= found["price 0"]["validation"]
        cell["sizes"] |= {str(size): found for size in bench_reuse.SIZES}
        cell["sizes"]["8192"] = dict.fromkeys(bench_reuse.WAYS)  # nothing is as small
    sets = {"breast_cancer": cells}
    rows = [row("breast_cancer", size, cells) for size in bench_reuse.SIZES]
    text = page(sets, rows, prices)
    assert "mean of 3 pairs of set and size" in text
    assert "| breast_cancer | 8 | - | - | - |" in text
