"""Trees under all prices of CEGB's equation 13, compared with a grower in plain Python.

The equation is above the classes in `gatewise_training/cegb/penalties.py`. k is a feature, and g
its group.
"""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import pytest

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training import CEGBClassifier, CEGBRegressor
from gatewise_training.cegb.growth import CodedBooster, TreeGrowth, boost_trees
from gatewise_training.cegb.objectives import ValueTarget
from gatewise_training.cegb.penalties import Charge, SplitPrices
from gatewise_training.learners.boosting import tree_params

MIN_ROWS = 5  # smallest number of rows of a leaf, as in the product
LEARNING_RATE = 0.5
N_ROWS = 240
N_FEATURES = 4
NO_DEPTH_LIMIT = 99  # no tree of these tests is as deep


def draw_table(seed):
    """Draw rows with few distinct values and a label that depends on all features."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, size=(N_ROWS, N_FEATURES)).astype(np.float32)
    y = x[:, 0] * (x[:, 1] > 2) + 0.5 * x[:, 2] + 0.3 * x[:, 3] + rng.normal(size=N_ROWS)
    return x, y - y.mean()


class PlainGrower:
    """Best-first trees for squared errors, which charge equation 13 term by term.

    The attributes have the paper's symbols: `alpha` is the price of a split for each row, `beta`
    the lazy price of a feature for each row without it, and `gamma` the price of its first use.
    """

    def __init__(
        self, x, costs, accounting, split_prices, coupled_prices, penalty, n_leaves, max_depth
    ):
        price_unit = penalty / (costs.total / costs.n_features)
        lazy_factor = float(accounting == "lazy")
        n_groups = len(costs.shared)
        self.x = x
        self.n_leaves = n_leaves
        self.max_depth = max_depth
        self.group = costs.group
        self.alpha = price_unit * np.broadcast_to(split_prices, N_FEATURES)
        self.beta = lazy_factor * price_unit * costs.own
        self.beta_group = lazy_factor * price_unit * costs.shared
        self.gamma = (1.0 - lazy_factor) * price_unit * costs.own + price_unit * np.asarray(
            coupled_prices
        )
        self.gamma_group = (1.0 - lazy_factor) * price_unit * costs.shared
        self.has_feature = np.zeros((len(x), N_FEATURES), bool)
        self.has_group = np.zeros((len(x), n_groups), bool)
        self.is_used = np.zeros(N_FEATURES, bool)
        self.is_group_used = np.zeros(n_groups, bool)

    def compute_price(self, rows, k):
        """Compute equation 13 for a split of some rows on feature k."""
        g = self.group[k]
        price = len(rows) * self.alpha[k]
        price += self.beta[k] * (~self.has_feature[rows, k]).sum()
        price += len(self.x) * self.gamma[k] * (not self.is_used[k])
        if g >= 0:
            price += self.beta_group[g] * (~self.has_group[rows, g]).sum()
            price += len(self.x) * self.gamma_group[g] * (not self.is_group_used[g])
        return price

    def find_best_split(self, rows, gradient):
        """Find the largest gain of equation 12, with hessians of 1; return it, feature and rows."""
        # a split must gain more than rounding errors, as must a later split to replace an equal one
        best_gain, best_feature_and_rows = 1e-9, None
        for k in range(N_FEATURES):
            for threshold in np.unique(self.x[rows, k])[:-1]:
                goes_left = self.x[rows, k] <= threshold
                children_rows = rows[goes_left], rows[~goes_left]
                if min(map(len, children_rows)) < MIN_ROWS:
                    continue
                gain = sum(
                    gradient[child_rows].sum() ** 2 / len(child_rows)
                    for child_rows in children_rows
                )
                gain = 0.5 * (gain - gradient[rows].sum() ** 2 / len(rows))
                gain -= self.compute_price(rows, k)
                if gain > best_gain + 1e-9:
                    best_gain, best_feature_and_rows = gain, (k, children_rows)
        return best_gain, best_feature_and_rows

    def grow_tree(self, gradient):
        """Grow a tree; return the feature of each split, and the changes of the margins."""
        leaves = [np.arange(len(self.x))]
        depths = [0]
        splits = []
        while len(leaves) < self.n_leaves:
            candidates = [
                self.find_best_split(rows, gradient) if depth < self.max_depth else (0.0, None)
                for rows, depth in zip(leaves, depths, strict=True)
            ]
            leaf = max(range(len(leaves)), key=lambda leaf_number: candidates[leaf_number][0])
            if candidates[leaf][1] is None:
                break
            k, children_rows = candidates[leaf][1]
            splits.append(k)
            self.has_feature[leaves[leaf], k] = True
            self.is_used[k] = True
            if self.group[k] >= 0:
                self.has_group[leaves[leaf], self.group[k]] = True
                self.is_group_used[self.group[k]] = True
            # the left child takes the place of the leaf, so that equal gains keep their order
            leaves[leaf] = children_rows[0]
            leaves.append(children_rows[1])
            depths[leaf] += 1
            depths.append(depths[leaf])
        margin_changes = np.zeros(len(self.x))
        for rows in leaves:
            margin_changes[rows] = -LEARNING_RATE * gradient[rows].mean()
        return splits, margin_changes


GROUPED_COSTS = FeatureCosts(
    [0.5, 1.0, 0.3, 2.0], group=["a", "a", "b", None], shared={"a": 2, "b": 0.5}
)
PLAIN_COSTS = FeatureCosts([0.5, 1.0, 0.3, 2.0])


def compare_with_plain_trees(
    seed, costs, accounting, split_prices, coupled_prices, penalty, growth, n_rounds=3, n_leaves=8,
    max_depth=NO_DEPTH_LIMIT,
):  # fmt: skip
    """Compare the trees of each round with those of the plain grower, until none is worth it."""
    x, y = draw_table(seed)
    has_coupled_prices = any(coupled_prices)
    prices = SplitPrices(
        costs, accounting, split_prices, np.array(coupled_prices) if has_coupled_prices else None
    )
    target = ValueTarget(y, np.ones(N_ROWS), 1.0)
    plain_grower = PlainGrower(
        x, costs, accounting, split_prices, coupled_prices, penalty, n_leaves, max_depth
    )
    margins = np.zeros(N_ROWS)
    features = []
    for n_trees in range(1, n_rounds + 1):
        trees, n_best_rounds = boost_trees(
            x, target, growth, Charge(prices, penalty, x), rounds=n_trees
        )
        splits, margin_changes = plain_grower.grow_tree(margins - y)
        margins = margins + margin_changes
        if n_best_rounds < n_trees:  # no further split is worth its price
            assert not splits
            break
        features += splits
        np.testing.assert_allclose(trees.margins(x)[:, 0], margins, atol=1e-4)
        assert sorted(trees.feature[trees.feature >= 0].tolist()) == sorted(features)
    assert len(features) >= 3  # enough splits are compared


NO_COUPLED_PRICES = (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("costs", [GROUPED_COSTS, PLAIN_COSTS], ids=["groups", "no groups"])
@pytest.mark.parametrize(
    ("accounting", "coupled_prices"),
    [("lazy", NO_COUPLED_PRICES), ("lazy", (0.5, 0.1, 3.0, 0.2)), ("coupled", NO_COUPLED_PRICES)],
)
def test_trees_with_split_prices_by_feature_follow_equation_13(
    accounting, coupled_prices, costs, seed
):
    # low, high and no prices, and a penalty at which some splits are worth them
    split_prices = np.array([0.05, 0.4, 0.1, 0.0])
    growth = TreeGrowth(patience=None, num_leaves=8, learning_rate=LEARNING_RATE)
    compare_with_plain_trees(seed, costs, accounting, split_prices, coupled_prices, 0.15, growth)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("split_price", [0.0, 0.4])
@pytest.mark.parametrize(
    ("order", "max_depth"), [("best-first", NO_DEPTH_LIMIT), ("breadth-first", 3)]
)
def test_trees_of_lightgbm_with_lazy_prices_follow_equation_13(order, max_depth, split_price, seed):
    """Breadth-first trees have 8 leaves, the largest power of 2 below 12."""
    n_leaves = 12 if order == "best-first" else 8
    growth = TreeGrowth(growth=order, patience=None, num_leaves=12, learning_rate=LEARNING_RATE)
    compare_with_plain_trees(
        seed, PLAIN_COSTS, "lazy", split_price, NO_COUPLED_PRICES, 0.05, growth,
        n_leaves=n_leaves, max_depth=max_depth,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_lightgbm_charges_lazy_and_coupled_prices_together(seed):
    """Stumps, because LightGBM overestimates other leaves at first uses below the root."""
    growth = TreeGrowth(patience=None, num_leaves=2, learning_rate=LEARNING_RATE)
    compare_with_plain_trees(
        seed, PLAIN_COSTS, "lazy", 0.3, (0.5, 0.1, 3.0, 0.2), 0.05, growth, n_rounds=12, n_leaves=2
    )


def test_trees_equal_those_of_lightgbm_with_the_same_penalties():
    x, y = draw_table(0)
    split_price = 0.2
    penalty = 0.02
    # LightGBM's gains are twice those of equation 12, so its prices are doubled
    price_unit = 2 * penalty / PLAIN_COSTS.own.mean()
    # a coupled price is charged once, not for each row, so LightGBM is given that of all rows
    for accounting, n_charged_rows in (("lazy", 1), ("coupled", len(x))):
        target = ValueTarget(y, np.ones(len(y)), 1.0)
        growth = TreeGrowth(n_rounds=15, patience=None, num_leaves=15, learning_rate=0.1)
        charge = Charge(SplitPrices(PLAIN_COSTS, accounting, split_price), penalty, x)
        trees, _ = boost_trees(x, target, growth, charge)
        booster = lgb.train(
            tree_params(0) | {
                "objective": "regression", "num_leaves": 15, "cegb_tradeoff": 1.0,
                "cegb_penalty_split": price_unit * split_price,
                f"cegb_penalty_feature_{accounting}":
                    (price_unit * n_charged_rows * PLAIN_COSTS.own).tolist(),
            },
            lgb.Dataset(x, y), 15,
        )  # fmt: skip
        # margins are sums of 15 float32 leaf values, and LightGBM's of float64 ones
        np.testing.assert_allclose(trees.margins(x)[:, 0], booster.predict(x), atol=1e-4)


def test_cost_report_counts_split_prices_by_feature_and_coupled_prices():
    x, y = draw_table(0)
    alpha = np.array([0.1, 0.2, 0.3, 0.4])  # different values and sums, to tell features apart
    gamma = np.array([1.0, 2.0, 4.0, 8.0])
    model = CEGBRegressor(
        penalty_split=alpha.tolist(), coupled_costs=gamma.tolist(), n_rounds=8, max_loss=0.0,
        penalties=(), random_state=0,
    ).fit(x, y)  # fmt: skip
    report = model.cost_report(x[:20])
    trees, features = model.stages_[0].model, model.stages_[0].features
    for row_number, row in enumerate(x[:20, features]):
        price = 0.0
        for node in trees.roots:
            while trees.feature[node] >= 0:
                price += alpha[features[trees.feature[node]]]
                goes_left = row[trees.feature[node]] <= trees.threshold[node]
                node = trees.left[node] if goes_left else trees.right[node]
        assert report.evaluation[row_number] == pytest.approx(price)
    assert report.coupled == gamma[features].sum()
    np.testing.assert_allclose(report.total, report.features + report.evaluation + report.coupled)


@pytest.mark.parametrize(
    "coupled_prices", [None, (0.5, 0.1, 0.4, 0.2)], ids=["lazy", "coupled prices"]
)
def test_budgets_can_include_splits_and_coupled_prices(coupled_prices):
    x, y = draw_table(1)
    labels = (y > 0).astype(int)
    settings = {"penalty_split": 0.2, "budget_counts": "total", "n_rounds": 15, "random_state": 0}
    settings["coupled_costs"] = coupled_prices
    validation = x[160:], labels[160:]
    model = CEGBClassifier(budget=3.0, **settings, n_penalties=6).fit(
        x[:160], labels[:160], validation=validation
    )
    assert len(model.frontier_.points) >= 2
    for point in model.frontier_.points:
        point_model = model.at(budget=point.cost)
        report = point_model.cost_report(x[160:])
        total_costs = report.features + report.evaluation + report.coupled
        assert point.cost == pytest.approx(total_costs.mean())
        np.testing.assert_allclose(point_model.cost(x[160:]), total_costs)
    assert model.operating_point_.cost <= 3.0
    with pytest.raises(InputError, match="guarantee"):
        CEGBClassifier(guarantee=0.9, **settings).fit(x, labels)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"penalty_split": [1.0, 2.0]}, "penalty_split must hold 4 numbers"),
        ({"penalty_split": list("abcd")}, "penalty_split must hold 4 numbers"),
        ({"coupled_costs": [1.0, 2.0, 3.0, -1.0]}, "coupled_costs must hold 4 numbers"),
        ({"coupled_costs": [1.0] * 4, "accounting": "coupled"}, "in addition to lazy ones"),
        ({"prefixes": (0.0, 1.0)}, "prefixes must be shares"),
    ],
)
def test_invalid_prices_are_refused(settings, message):
    x, y = draw_table(0)
    with pytest.raises(InputError, match=message):
        CEGBRegressor(n_rounds=2, **settings).fit(x, y)


def test_trees_that_need_much_memory_are_refused_before_they_grow():
    x = np.random.default_rng(0).normal(size=(300, 50)).astype(np.float32)
    prices = SplitPrices.of_settings(FeatureCosts.uniform(50), "lazy", np.full(50, 0.1), None)
    settings = {"num_leaves": 2**14, "max_depth": 14, "learning_rate": 0.1}
    with pytest.raises(InputError, match="trees of 16,384 leaves on 50 features need"):
        CodedBooster(x, 1, settings, Charge(prices, 0.1, x), lambda scores: (scores, scores))


def test_texts_are_no_values_to_learn():
    x, y = draw_table(0)
    with pytest.raises(InputError, match="y must hold numbers"):
        CEGBRegressor(n_rounds=2).fit(x, np.where(y > 0, "high", "low"))
