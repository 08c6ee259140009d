"""Feature costs: prices, groups, prerequisites and price files; k is a feature, and g a group."""

from __future__ import annotations

import math
from itertools import compress

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise.prices import ColumnPrice, PriceList
from gatewise_training import CloudPrices, FeatureCosts

PRICE = st.floats(0, 100, allow_nan=False).map(lambda price: round(price, 3))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"own": [1.0, -2.0], "names": ["a", "b"]}, "'b' is -2.0"),
        ({"own": [1.0, float("nan")], "names": ["a", "b"]}, "'b' is nan"),
        ({"own": [float("inf")]}, "feature 0 is inf"),
        ({"own": ["x"]}, "must be numbers"),
        ({"own": []}, "list of prices"),
        ({"own": [1.0], "names": ["a", "b"]}, "1 feature costs for 2 feature names"),
        ({"own": [1.0, 1.0], "names": ["a", "a"]}, "'a' appears twice"),
        ({"own": [1.0, 1.0], "group": ["g"]}, "1 group labels for 2 features"),
        ({"own": [1.0], "group": ["g"], "shared": {"h": 1.0}}, "group 'h', but no feature"),
        ({"own": [1.0], "group": ["g"], "shared": {"g": -1.0}}, "group 'g' is -1.0"),
        ({"own": [1.0], "shared": {"g": 1.0, "h": 2.0}}, "shared price of group 'g'"),
        (
            {"own": {"a": 1.0}, "group": {"x": "g", "y": "g"}},
            "group: 'x' is not the name of a feat",
        ),
    ],
)
def test_invalid_prices_are_refused_with_the_feature(arguments, message):
    with pytest.raises(InputError, match=message):
        FeatureCosts(**arguments)


@pytest.mark.parametrize(
    "group",
    [
        np.array([2, np.nan, np.nan, -1], np.float32),
        np.array([2, None, np.nan, -1], object),
        pd.Series([2, None, None, -1]),
        pd.Series([2, None, None, -1], dtype="Int64"),
        pd.Series(["2", None, pd.NA, ""], dtype="string"),
    ],
    ids=["float32", "objects", "floats", "integers", "texts"],
)
def test_features_without_a_group_form_no_group(group):
    costs = FeatureCosts(np.zeros(4), group=group, shared={group[0]: 5.0})
    assert costs.group_names == ("2",)
    assert costs.group.tolist() == [0, -1, -1, -1]
    assert costs.price([0, 1]) == 5.0


def test_a_required_group_may_be_a_number_of_numpy():
    costs = FeatureCosts([0, 0], group=[0, 1], shared=[1, 2], requires={1: np.int64(0)})
    assert costs.price([1]) == 3.0


TOML = """
[features]
age = 1.0
chol = {own = 5.17, group = "blood"}
fbs = {own = 3.10, group = "blood"}
[groups]
blood = 2.10
"""
CSV = "feature,own,group,shared\nage,1.0,,\nchol,5.17,blood,2.10\nfbs,3.10,blood,2.10\n"


@pytest.mark.parametrize(("ending", "text"), [(".toml", TOML), (".csv", CSV)])
def test_toml_and_csv_files_give_the_same_prices(tmp_path, ending, text):
    path = tmp_path / f"costs{ending}"
    path.write_text(text)
    costs = FeatureCosts.from_file(path)
    assert costs.names == ("age", "chol", "fbs")
    assert costs.price([1, 2]) == pytest.approx(10.37)  # 5.17 + 3.10 + 2.10
    assert FeatureCosts.from_file(path, names=["fbs", "age", "chol"]).own[0] == 3.10
    with pytest.raises(InputError, match="no price for feature 'x'"):
        FeatureCosts.from_file(path, names=["age", "chol", "fbs", "x"])
    with pytest.raises(InputError, match="unknown feature 'fbs'"):
        FeatureCosts.from_file(path, names=["age", "chol"])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "costs.toml",
            "[features]\na = -1\n",
            "features.a: must be a number of at least 0, not -1",
        ),
        (
            "costs.toml",
            "[features]\na = {price = 1}\n",
            "features.a: has an unknown key 'price'; there are own",
        ),
        ("costs.toml", "[features]\na = {kind = 'word'}\n", "kind is 'word'; choose one of number"),
        ("costs.toml", "[features]\na = {kind = 'number:%d'}\n", "'%d': only a time has a format"),
        ("costs.toml", "[cloud]\nbytes = 1\n", "unknown key 'bytes'"),
        ("costs.toml", "features = 3", "features: must be an object, not 3"),
        ("costs.toml", "[groups]\na = nan\n", "groups.a: must be a number of at least 0, not NaN"),
        ("costs.toml", "[features", "costs.toml"),
        ("costs.toml", "nonsense", "costs.toml"),
        (
            "costs.csv",
            "name,own\na,1\n",
            "no column 'feature' among 'name', 'own'; its first line is feature,own",
        ),
        (
            "costs.csv",
            "feature,own,Group,Shared\na,1,g,5\n",
            "unknown column 'Group', 'Shared' among",
        ),
        (
            "costs.csv",
            "feature,own,group,shared\na,1,,5\nb,1,,0\nc,1,g,2\nd,1,,3\n",
            "has a shared price without a group in line 2, 5",
        ),
        ("costs.csv", "feature,own\na,x\n", "'x', not a number"),
        ("costs.csv", "feature,own\na,1\na,2\n", "'a' is empty or repeated"),
        ("costs.csv", "feature,own\n", "lists no feature"),
        ("costs.txt", "", "must be .toml or .csv"),
        ("costs.toml", None, "does not exist"),
    ],
)
def test_invalid_price_files_are_refused(tmp_path, name, text, message):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=message):
        FeatureCosts.from_file(tmp_path / name)


def test_uniform_prices_are_1_by_default():
    assert FeatureCosts.uniform(3).own.tolist() == [1.0, 1.0, 1.0]
    assert FeatureCosts.uniform(2, price=2.5).total == 5.0


def test_prices_by_name_can_be_reordered():
    named_costs = FeatureCosts({"age": 1.0, "chol": 5.17, "fbs": 3.10}, group={"chol": "blood"})
    assert named_costs == FeatureCosts(
        pd.Series({"age": 1.0, "chol": 5.17, "fbs": 3.10}), group=[None, "blood", None]
    )
    assert FeatureCosts(pd.Series([1.0, 2.0])).names is None
    reordered_costs = named_costs.in_order(["fbs", "chol", "age"])
    assert reordered_costs.own.tolist() == [3.10, 5.17, 1.0]
    assert reordered_costs.group.tolist() == [-1, 0, -1]
    for names, message in (
        (["age", "chol"], "'fbs', which is not a column"),
        (["x", "y"], "'x', 'y'"),
    ):
        with pytest.raises(InputError, match=message):
            named_costs.in_order(names)
    with pytest.raises(InputError, match="group: 'x' is not"):
        FeatureCosts({"age": 1.0}, group={"x": "g"})


def test_a_price_file_may_have_a_default_price_and_dropped_columns(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text(
        'default = 0.5\n[features]\nage = 1\nid = {own = 9, group = "office", kind = "drop"}\n'
        'at = {own = 2, kind = "time:%d.%m.%Y"}\n[groups]\noffice = 3\n'
        "[cloud]\nbyte = 1\n"
    )
    prices = PriceList.read(path)
    assert (prices.dropped_columns, prices.cloud) == (("id",), CloudPrices(byte=1.0))
    assert prices.features["at"] == ColumnPrice(2.0, None, "time:%d.%m.%Y")
    costs = FeatureCosts.from_file(path, names=["at", "age", "new"], default=7.0)
    assert (costs.own.tolist(), len(costs.shared)) == ([2.0, 1.0, 0.5], 0)
    path.write_text("[features]\nage = 1\nb = 1\n")
    # 1 + 1 and the default
    assert FeatureCosts.from_file(path, names=["age", "b", "c"], default=7.0).total == 9.0
    with pytest.raises(InputError, match=r"no price for feature 'x', 'y'.*unknown feature 'b'"):
        FeatureCosts.from_file(path, names=["age", "x", "y"])


# -- groups that require other groups --------------------------------------------------------


@st.composite
def draw_prerequisites(draw):
    n_features, n_groups = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    own = draw(st.lists(PRICE, min_size=n_features, max_size=n_features))
    group = draw(st.lists(st.integers(-1, n_groups - 1), min_size=n_features, max_size=n_features))
    prerequisites = {
        g: draw(st.sets(st.integers(0, g - 1))) if g else set() for g in range(n_groups)
    }
    groups_of_features = {g for g in group if g >= 0}
    needed_groups = set().union(
        *(find_required_groups(g, prerequisites) for g in groups_of_features), set()
    )
    shared = {g: draw(PRICE) for g in sorted(needed_groups)}
    requires = {g: sorted(prerequisites[g]) for g in needed_groups if prerequisites[g]}
    return own, group, shared, requires


def find_required_groups(group, prerequisites):
    """Find a group and all groups that it requires, directly or by other groups."""
    return {group}.union(
        *(
            find_required_groups(prerequisite, prerequisites)
            for prerequisite in prerequisites.get(group, ())
        )
    )


@given(draw_prerequisites(), st.data())
def test_a_group_and_its_prerequisites_are_paid_once(prices, draws):
    own, group, shared, requires = prices
    costs = FeatureCosts(own, group=group, shared=shared, requires=requires)
    rows = draws.draw(
        st.lists(st.lists(st.booleans(), min_size=len(own), max_size=len(own)), min_size=2)
    )
    acquired_masks = np.array(rows)

    def compute_price(row):
        paid_groups = set().union(
            *(
                find_required_groups(group[k], requires)
                for k in np.flatnonzero(row)
                if group[k] >= 0
            ),
            set(),
        )
        return sum(np.array(own)[row]) + sum(shared[g] for g in paid_groups)

    np.testing.assert_allclose(
        costs.instance_costs(acquired_masks), [compute_price(row) for row in acquired_masks]
    )
    # Sums are equal to the last bit in any batch, because a device meters single rows.
    prices_of_rows = [costs.price(np.flatnonzero(row)) for row in acquired_masks]
    assert costs.instance_costs(acquired_masks).tolist() == prices_of_rows
    assert costs.instance_costs(acquired_masks[:0]).tolist() == []
    for row, paid_mask in zip(acquired_masks, acquired_masks[::-1], strict=True):
        expected_price = compute_price(row | paid_mask) - compute_price(paid_mask)
        assert costs.price(row, acquired=paid_mask) == pytest.approx(expected_price, abs=1e-9)
    remaining_prices = costs.additional_prices(acquired_masks[0])
    for k in range(len(own)):
        feature = np.arange(len(own)) == k
        price_of_both = compute_price(feature | acquired_masks[0])
        expected_price = price_of_both - compute_price(acquired_masks[0])
        assert remaining_prices[k] == pytest.approx(expected_price, abs=1e-9)


@pytest.mark.parametrize(
    ("requires", "message"),
    [
        ({"a": ["b"], "b": ["a"]}, "'a' requires 'b' requires 'a'"),
        ({"a": ["a"]}, "'a' requires 'a'"),
        ({"a": "spectrum"}, "requires names 'spectrum', which is not a group"),
        ({"spectrum": "a"}, "requires names 'spectrum', which is not a group"),
        ({"a": [None]}, "is not the label of a group"),
    ],
)
def test_invalid_prerequisites_are_refused_with_the_group(requires, message):
    with pytest.raises(InputError, match=message):
        FeatureCosts([1.0, 2.0], group=["a", "b"], requires=requires)


@pytest.mark.parametrize(
    "large_price", [2.0**51 - 1, 2.0**51, 2.0**52 + 1, 2.0**53, 2.0**53 + 2, 0.1]
)
def test_sums_of_any_prices_are_rounded_only_once(large_price):
    """Sums of whole numbers are exact up to 2^53; larger sums need ``fsum``."""
    costs = FeatureCosts([1.0, large_price, 1.0, large_price])
    acquired = np.array([[1, 1, 1, 1], [1, 0, 1, 1], [1, 1, 0, 0]], bool)
    expected_prices = [math.fsum(compress(costs.own.tolist(), row)) for row in acquired]
    assert costs.instance_costs(acquired).tolist() == expected_prices
    assert [costs.price(row) for row in acquired] == expected_prices


def test_a_sum_above_the_exact_range_is_rounded_once_though_each_price_is_exact():
    # whole numbers below 2^52, of which an addition in any order rounds some partial sum
    prices = [4182502603958071.0, 2327427805900604.0, 3894837812010622.0, 2647341107430857.0]
    acquired = np.ones((1, 4), bool)
    assert FeatureCosts(prices).instance_costs(acquired).tolist() == [math.fsum(prices)]


def test_costs_are_equal_if_all_their_parts_are_equal():
    arguments = {"own": [1.0, 2.0], "group": ["a", "a"], "shared": {"a": 3.0}, "names": ["x", "y"]}
    costs = FeatureCosts(**arguments)
    assert costs == FeatureCosts(**arguments)
    all_changes = [
        {"own": [1.0, 2.5]}, {"group": ["a", None]}, {"shared": {"a": 4.0}}, {"names": ["x", "z"]},
        {"group": ["b", "b"], "shared": {"b": 3.0}},
    ]  # fmt: skip
    for changed_arguments in all_changes:
        assert costs != FeatureCosts(**(arguments | changed_arguments))
    assert costs != "prices"


def test_costs_give_the_members_and_groups_of_a_feature():
    costs = FeatureCosts(
        [1.0, 2.0, 3.0, 4.0],
        group=["a", None, "a", "b"],
        shared={"a": 10.0, "b": 20.0},
        requires={"b": "a"},
    )
    assert [costs.members(k).tolist() for k in range(4)] == [[0, 2], [1], [0, 2], [3]]
    assert costs.group_of_feature == ["a", None, "a", "b"]
    # b requires a, and no feature of the others requires b
    assert costs.select([3, 1]).group_names == ("b", "a")
    assert costs.select([3, 1]).total == 36.0
    assert costs.select([1, 0]).group_names == ("a",)
    # b costs 20, and requires a
    assert costs.is_paid_with.tolist() == [[True, False], [True, True]]
    assert costs.standalone_prices.tolist() == [11.0, 2.0, 13.0, 34.0]
    assert costs.additional_prices(costs.mask([2])).tolist() == [1.0, 2.0, 0.0, 24.0]
    assert costs.additional_prices(costs.mask([3])).tolist() == [1.0, 2.0, 3.0, 0.0]
    assert costs.total == 40.0
    assert costs.prerequisites == {"b": ("a",)}
