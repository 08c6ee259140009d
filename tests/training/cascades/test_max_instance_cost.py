"""Test that no instance costs more than `max_instance_cost`, whatever its values."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

import gatewise as gw
from gatewise.errors import InputError
from gatewise_training.operating_points.cascade_parts import stages_within_cost
from tests.support.budgeted_methods import COSTS, load_table, make_method

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("two_folds")]  # many fits

CLOUD_PRICES = gw.CloudPrices(request=1.0)
#: Of an instance: own prices of all features, shared prices and a request.
OFFLOAD_COST = 9.5 + 7.0 + 1.0


def load_arrays() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    X, X_test, y, y_test = load_table()
    return X.to_numpy(np.float32), X_test.to_numpy(np.float32), y, y_test


def fit_method(method: str, **settings):
    X, _, y, _ = load_arrays()
    return make_method(method, pd.DataFrame(X), y, cloud_prices=CLOUD_PRICES, **settings).fit(X, y)


def draw_extreme_rows(n: int, seed: int = 0) -> np.ndarray:
    """Draw rows inside and far outside the range of the training rows."""
    rng = np.random.default_rng(seed)
    smallest_magnitudes = np.abs(load_arrays()[0]).min(axis=0)
    x = rng.lognormal(0.0, 1.5, (n, len(smallest_magnitudes))) * (1 + smallest_magnitudes)
    is_extreme = rng.random(x.shape) < 0.05
    return np.where(is_extreme, 10.0 ** rng.uniform(-3, 30, x.shape) * rng.choice([-1, 1], x.shape),
                    x).astype(np.float32)  # fmt: skip


def compute_costs(system, x, exits) -> np.ndarray:
    """Compute the price of all features of the stages up to the exit, each paid once."""
    is_acquired = np.zeros(x.shape, bool)
    for number, stage in enumerate(system.stages_):
        is_acquired |= np.broadcast_to(stage.acquired(x), x.shape) & (exits >= number)[:, None]
    is_offloaded = exits == len(system.stages_)
    is_acquired[is_offloaded] = True  # the forest reads every feature
    shared_costs = np.zeros(len(x))
    # the groups and shared prices of COSTS
    groups = np.array([g or "" for g in ("a", "a", None, "b", "b", "b", None, "c", None)])
    for group, price in (("a", 2.0), ("b", 4.0), ("c", 1.0)):
        shared_costs += price * is_acquired[:, groups == group].any(axis=1)
    return is_acquired @ np.asarray(COSTS.own) + shared_costs + is_offloaded


@pytest.mark.parametrize(
    ("method", "cap"),
    [("staged", 3.0), ("staged", OFFLOAD_COST), ("adapt-gbrt", 12.0), ("confidence", 12.0)],
)
def test_no_instance_costs_more_than_the_highest_cost_of_the_point(method, cap):
    system = fit_method(method, max_instance_cost=cap)
    x = np.concatenate([load_arrays()[1], draw_extreme_rows(2000)])
    assert 0 < max(point.max_cost for point in system.operating_points_) <= cap
    for point in {point.max_cost: point for point in system.operating_points_}.values():
        system_at_point = system.at(budget=point.cost)
        costs = compute_costs(system_at_point, x, system_at_point.exit_stage(x))
        np.testing.assert_allclose(system_at_point.cost(x), costs)
        assert costs.max() <= system_at_point.operating_point_.max_cost + 1e-9 <= cap + 1e-9
        assert not system_at_point.offload(x).any() or cap >= OFFLOAD_COST


def test_stages_spend_a_cap_that_is_too_low_for_an_offload():
    cap = 4.0
    rng = np.random.default_rng(3)
    X = rng.normal(size=(600, 12))
    y = (X @ np.linspace(1.0, 0.3, 12) > 0).astype(int)
    high_cost_model = RandomForestClassifier(20, random_state=0)
    settings = {"families": ("linear",), "effort": "low", "random_state": 0}
    system = gw.StagedCascade(high_cost_model, max_instance_cost=cap, **settings).fit(X, y)
    max_features = max(len(stage.features) for chain in system.chains_ for stage in chain)
    assert cap - 1 <= max_features <= cap  # each feature costs 1


def test_instances_far_from_the_training_rows_never_exceed_the_cap():
    system = fit_method("staged", max_instance_cost=9.0, allow_missing=True)
    system_by_thresholds = {}
    for point in system.operating_points_:
        system_at_point = system.at(budget=point.cost)
        system_by_thresholds[system_at_point.operating_point_.thresholds] = system_at_point
    systems = list(system_by_thresholds.values())
    reached_exits = set()
    for seed in range(8):
        x = draw_extreme_rows(20_000, seed)
        x[np.random.default_rng(seed).random(x.shape) < 0.02] = np.nan
        system = systems[seed % len(systems)]
        exits = system.exit_stage(x)
        assert compute_costs(system, x, exits).max() <= 9.0
        reached_exits |= {(seed % len(systems), number) for number in np.unique(exits).tolist()}
    assert len(reached_exits) > len(systems)


def test_a_cap_on_a_fitted_system_keeps_the_points_within_it():
    uncapped_system = fit_method("staged")
    initial_point = uncapped_system.operating_point_
    points_within_cap = [
        point for point in uncapped_system.operating_points_ if point.max_cost <= 8
    ]
    assert max(point.max_cost for point in uncapped_system.operating_points_) == OFFLOAD_COST
    capped_system = uncapped_system.at(max_instance_cost=8.0)
    assert {point.max_cost for point in capped_system.operating_points_} <= {
        point.max_cost for point in points_within_cap
    }
    assert capped_system.cost(draw_extreme_rows(1000)).max() <= 8.0
    # the cap holds for later goals
    assert capped_system.at(max_loss=1.0).operating_point_.max_cost <= 8.0
    assert (uncapped_system.operating_point_, uncapped_system.max_instance_cost_) == (
        initial_point,
        None,
    )
    best_accuracy = capped_system.at(budget=1e9).operating_point_.accuracy
    assert best_accuracy == max(point.accuracy for point in points_within_cap)
    assert "an instance costs" in str(capped_system.summary())
    # a fit may exceed the loss of its settings, but `at` keeps a loss or refuses it
    system_of_low_cap = uncapped_system.at(max_instance_cost=3.0)
    loss = (
        uncapped_system.frontier_.reference_accuracy - system_of_low_cap.operating_point_.accuracy
    )
    assert loss > 0.02  # more than the bound that is refused below
    assert (
        system_of_low_cap.at(max_loss=loss + 1e-9).operating_point_
        == system_of_low_cap.operating_point_
    )
    with pytest.raises(
        InputError, match=r"no operating point loses at most 0\.02; the smallest loss is 0"
    ):
        uncapped_system.at(max_instance_cost=3.0, max_loss=0.02)


@pytest.mark.parametrize("method", ["staged", "adapt-lin"])
def test_the_error_for_a_cap_out_of_reach_names_the_lowest_possible_cap(method):
    with pytest.raises(InputError, match=r"max_instance_cost=0\.1 .*lowest cap possible is 0\.5"):
        fit_method(method, max_instance_cost=0.1)
    with pytest.raises(ValueError, match="max_instance_cost"):
        fit_method(method, max_instance_cost=-1.0)
    uncapped_system = fit_method(method)
    lowest_cap = min(point.max_cost for point in uncapped_system.operating_points_)
    with pytest.raises(InputError, match=rf"lowest cap possible is {lowest_cap}"):
        uncapped_system.at(max_instance_cost=lowest_cap / 2)
    assert (
        uncapped_system.at(max_instance_cost=lowest_cap).cost(draw_extreme_rows(100)).max()
        <= lowest_cap
    )
    for invalid_cap in (np.nan, np.inf, -1.0, "much"):
        with pytest.raises(InputError, match="max_instance_cost must be at least 0 and finite"):
            uncapped_system.at(max_instance_cost=invalid_cap)


@pytest.mark.parametrize("goal", [{"max_loss": 0.2}, {"budget": 6.0}])
def test_certified_points_keep_the_cap(goal):
    forest = RandomForestClassifier(10, random_state=0)  # a fitted model may have seen the rows
    settings = {"high_cost_model": forest, "max_instance_cost": 8.0, "guarantee": 0.8, **goal}
    system = fit_method("staged", **settings)
    assert system.operating_point_.guarantee["confidence"] == 0.8
    assert system.operating_point_.max_cost <= 8.0
    assert system.cost(draw_extreme_rows(2000)).max() <= 8.0


def test_pairs_keep_a_cap_on_the_instance_cost():
    x, x_test, y, y_test = load_arrays()
    low_cost_model = RandomForestClassifier(3, max_depth=2, random_state=0).fit(x, y)
    high_cost_model = RandomForestClassifier(30, random_state=0).fit(x, y)
    pair = gw.PairCascade(
        low_cost_model=low_cost_model, high_cost_model=high_cost_model, random_state=0
    )
    pair.fit(x_test, y_test)
    assert {point.max_cost for point in pair.operating_points_} == {1.0, 2.0}
    pair_capped_by_at = pair.at(max_instance_cost=1.5)
    for capped_pair in (
        pair_capped_by_at,
        pair.set_params(max_instance_cost=1.5).fit(x_test, y_test),
    ):
        assert {point.max_cost for point in capped_pair.operating_points_} == {1.0}
        # the cost of the low-cost model
        assert capped_pair.cost(draw_extreme_rows(500)).max() == 1.0


def test_choices_of_stages_keep_the_cap_and_keep_all_stages_if_possible():
    """Check 200 random small cascades; each stage and the cloud add a cost."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 5))
        costs, cloud_cost = rng.integers(0, 6, n).astype(float), float(rng.integers(0, 6))
        cap = float(rng.integers(0, 20))

        def find_highest_costs(stage_numbers, costs=costs, cloud_cost=cloud_cost):
            stage_costs = np.cumsum(costs[list(stage_numbers)])
            return np.append(stage_costs, stage_costs[-1] + cloud_cost)

        choices = stages_within_cost(find_highest_costs, n, cap)
        if find_highest_costs(range(n))[-1] <= cap:
            assert choices == [tuple(range(n))]
            continue
        assert all(find_highest_costs(stage_numbers)[-2] <= cap for stage_numbers in choices)
        assert all(list(stage_numbers) == sorted(set(stage_numbers)) for stage_numbers in choices)
        assert bool(choices) == any(costs <= cap)


def test_the_choice_says_that_a_cap_leaves_no_point_within_the_loss():
    system = fit_method("staged", max_instance_cost=3.0, max_loss=0.0)
    loss = system.frontier_.reference_accuracy - system.operating_point_.accuracy
    assert loss > 0.0
    assert system.choice_ == (
        "the most accurate point, because no operating point loses at most 0; "
        f"the smallest loss is {loss:.4g}"
    )
