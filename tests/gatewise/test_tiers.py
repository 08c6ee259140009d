"""Stages on device, gateway and cloud: who pays what, counted row by row from the definition."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.ensemble import ExtraTreesClassifier

from gatewise.acquisition import exit_costs
from gatewise.errors import InputError
from gatewise.prices import request_bytes
from gatewise.tiers import TIERS, cascade_costs, in_order, on_device, place
from gatewise_training import CloudPrices, FeatureCosts, StagedCascade
from tests.support.prices import price_of

K = 8
PRICES = CloudPrices(request=1.5, byte=0.01, evaluation=30.0, gateway=0.25)
COSTS = FeatureCosts(
    [1, 2, 0.5, 1, 3, 1, 0.25, 4],
    group=["a", "a", "a", "b", "b", None, None, None],
    shared={"a": 2.0, "b": 1.0},
)


def cost_step_by_step(exit_, sets, tiers, cloud, accounting):
    """Count what one instance pays, step by step."""
    acquired, extra, gone = set(), 0.0, False
    carried = set(cloud).union(*(s for s, t in zip(sets, tiers, strict=True) if t != "device"))
    message = PRICES.request + PRICES.byte * request_bytes(len(carried))
    for s in range(min(exit_, len(sets) - 1) + 1):
        if tiers[s] == "device":
            acquired |= sets[s]
        elif not gone:
            gone, acquired, extra = True, acquired | carried, message
            extra += PRICES.gateway if "gateway" in tiers else 0.0
    if exit_ == len(sets):
        if not gone:
            acquired, extra = acquired | carried, message
        extra += PRICES.evaluation
        if accounting == "paper":
            acquired = set(cloud)
    return price_of(COSTS, acquired) + extra


feature_sets = st.sets(st.integers(0, K - 1))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(feature_sets, st.sampled_from(range(3))), min_size=1, max_size=5),
    feature_sets,
    st.booleans(),
)
def test_costs_are_those_counted_step_by_step(stages, cloud, union):
    sets = [s for s, _ in stages]
    ranks = sorted(rank for _, rank in stages)
    tiers = ["device", *(TIERS[rank] for rank in ranks[1:])]
    masks = [COSTS.mask(np.array(sorted(s), int)) for s in sets]
    asked = COSTS.mask(np.array(sorted(cloud), int))
    got = cascade_costs(COSTS, masks, asked, PRICES, tiers, union=union)
    accounting = "union" if union else "paper"
    expected = [cost_step_by_step(e, sets, tiers, cloud, accounting) for e in range(len(sets) + 1)]
    assert got.tolist() == pytest.approx(expected, abs=1e-12)


def test_all_on_the_device_is_as_without_tiers():
    rng = np.random.default_rng(0)
    acquired = [rng.random((50, K)) < 0.3, rng.random((50, K)) < 0.6]
    asked = COSTS.mask([0, 5, 7])
    plain = exit_costs(COSTS, acquired, asked, request=PRICES.of_offload(3))
    for tiers in ((), ("device", "device")):
        assert np.array_equal(cascade_costs(COSTS, acquired, asked, PRICES, tiers), plain)


@given(st.lists(st.sampled_from(TIERS), max_size=6), st.integers(0, 9))
def test_places_are_in_order_or_refused(tiers, n):
    if tiers and tiers[0] == "device" and tiers == sorted(tiers, key=TIERS.index):
        placed = place(tiers, n)
        assert len(placed) == n
        assert in_order(placed)
        assert list(placed[: len(tiers)]) == tiers[:n]
        assert set(placed[len(tiers) :]) <= {tiers[-1]}
    else:
        with pytest.raises(InputError, match="tiers"):
            place(tiers, n)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, "ddddd"),
        ({"device": 2, "gateway": None}, "ddggg"),
        ({"gateway": 1, "device": 2, "cloud": None}, "ddgcc"),  # the order is not the mapping's
        ({"device": 1, "cloud": 1}, "dcccc"),
        ({"device": 9, "gateway": 1}, "ddddd"),
        ({"device": None}, "ddddd"),
        ({"device": 1, "gateway": 0, "cloud": 2}, "dcccc"),
    ],
)
def test_mappings_count_stages(wanted, expected):
    placed = place(wanted, 5)
    assert "".join(tier[0] for tier in placed) == expected
    assert on_device(placed) == expected.count("d")


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("device", "must be a sequence"),
        (3, "must be a sequence"),
        (("device", "fog"), "'fog'"),
        ({"device": 1, "edge": 2}, "'edge'"),
        ({}, "start on the device"),
        (("gateway",), "start on the device"),
        ({"device": 0, "gateway": 2}, "start on the device"),
        ({"gateway": 2}, "start on the device"),
        ({"device": -1, "gateway": 2}, "number of stages"),
        ({"device": 1.5, "gateway": 2}, "number of stages"),
        ({"device": True, "gateway": 2}, "number of stages"),
        ({"device": None, "gateway": 2}, "number of stages"),
        ({"device": 1, "gateway": 0}, "takes all further"),
        (("device", "cloud", "gateway"), "go back"),
    ],
)
def test_bad_places_are_refused_with_a_reason(wanted, message):
    with pytest.raises(InputError, match=message):
        place(wanted, 3)
    with pytest.raises(InputError, match=message):  # before any work
        StagedCascade(tiers=wanted).fit(np.zeros((1, 1)), [0])


SYSTEM = StagedCascade(
    ExtraTreesClassifier(40, random_state=0),
    COSTS,
    cloud_prices=PRICES,
    n_stages=3,
    families=("linear",),
    effort="low",
    random_state=0,
)


@pytest.fixture(scope="module")
def fitted():
    X, y = make_classification(
        900, K, n_informative=3, n_redundant=3, class_sep=1.2, flip_y=0.05, random_state=0
    )
    X = X.astype(np.float32)
    system = clone(SYSTEM).set_params(tiers={"device": 1, "gateway": None})
    return system.fit(X[:500], y[:500]), X[500:]


def test_a_system_charges_each_instance_step_by_step(fitted):
    system, X = fitted
    cloud = set(system.high_cost_model_.features.tolist())
    seen = set()
    for point in {p.chain: p for p in system.frontier_.points}.values():
        scores = [stage.run(X)[1] for stage in system.chains_[point.chain]]
        halves = tuple(float(np.median(s)) for s in scores)  # half of the rows go on each time
        other = _at(system, replace(point, thresholds=halves))
        tiers = [stage.tier for stage in other.stages_]
        assert tiers == list(place({"device": 1, "gateway": None}, len(tiers)))
        exits = other.exit_stage(X)
        seen |= {"cloud" if e == len(tiers) else tiers[e] for e in exits}
        acquired = [np.broadcast_to(stage.acquired(X), X.shape) for stage in other.stages_]
        for accounting in ("union", "paper"):
            costs = other.cost(X, accounting=accounting)
            for i in range(0, len(X), 3):
                sets = [set(np.flatnonzero(mask[i])) for mask in acquired]
                expected = cost_step_by_step(exits[i], sets, tiers, cloud, accounting)
                assert costs[i] == pytest.approx(expected)
    assert seen == {"device", "gateway", "cloud"}


def _at(system, point):
    other = system.at(budget=1e9)
    other.operating_point_ = point
    return other
