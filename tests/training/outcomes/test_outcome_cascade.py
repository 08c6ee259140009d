"""Test thresholds that are learned from a table of recorded outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training import OutcomeCascade, Outcomes

N_ROWS = 60_000  # so many that figures on all rows are nearly exact


def draw_population(loss_kind: str, seed: int = 0) -> dict[str, np.ndarray]:
    """Draw scores and losses of a small and a big system on many rows."""
    rng = np.random.default_rng(seed)
    scores = rng.uniform(size=N_ROWS)
    if loss_kind == "answers":  # losses of 0 or 1
        small_losses = rng.uniform(size=N_ROWS) > 0.55 + 0.45 * scores
        big_losses = rng.uniform(size=N_ROWS) > 0.95
    elif loss_kind == "marks":  # continuous losses up to 5
        small_losses = np.minimum(rng.exponential(1.2 - scores, N_ROWS), 5.0)
        big_losses = np.minimum(rng.exponential(0.2, N_ROWS), 5.0)
    else:  # the small system is a majority vote of five and has few distinct scores
        scores = np.round(scores * 2 + 3) / 5
        small_losses = rng.uniform(size=N_ROWS) > 0.2 + 0.78 * scores
        big_losses = rng.uniform(size=N_ROWS) > 0.97
    return {"scores": scores, "small_losses": small_losses * 1.0, "big_losses": big_losses * 1.0}


def make_outcomes(rows, columns, **options) -> Outcomes:
    selected_columns = {name: values[rows] for name, values in columns.items()}
    return Outcomes(**selected_columns, **({"small_cost": 1.0, "big_cost": 20.0} | options))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss_kind", "loss_limit", "max_loss"),
    [("answers", 1.0, 0.03), ("marks", 5.0, 0.1), ("votes", 1.0, 0.02)],
)
def test_a_guaranteed_loss_holds_in_95_percent_of_resamplings(loss_kind, loss_limit, max_loss):
    columns = draw_population(loss_kind)
    extra_losses = columns["small_losses"] - columns["big_losses"]
    rng = np.random.default_rng(1)
    is_within_bound = []
    costs = []
    for _ in range(60):
        rows = rng.choice(N_ROWS, 1500, replace=False)
        cascade = OutcomeCascade(max_loss=max_loss)
        cascade.fit(make_outcomes(rows, columns, loss_limit=loss_limit))
        is_offloaded = cascade.offload(columns["scores"])
        is_within_bound.append(np.mean(extra_losses * ~is_offloaded) <= max_loss)
        costs.append(1.0 + 20.0 * is_offloaded.mean())
    assert np.mean(is_within_bound) >= 0.95  # the default confidence
    # the cheapest threshold that keeps the bound on the whole population
    rows_by_score = np.argsort(-columns["scores"], kind="stable")
    scores = columns["scores"][rows_by_score]
    is_possible = np.cumsum(extra_losses[rows_by_score]) / N_ROWS <= max_loss
    is_possible &= np.append(scores[1:] != scores[:-1], True)  # equal scores stop together
    lowest_cost = 1.0 + 20.0 * (1.0 - np.flatnonzero(is_possible)[-1] / N_ROWS)
    # the certificate needs a margin, which makes the cascade costlier
    assert np.mean(costs) < 1.35 * lowest_cost


def test_figures_equal_those_of_the_rows():
    columns = draw_population("marks")
    rows = np.arange(2000)
    cascade = OutcomeCascade(max_loss=0.2).fit(make_outcomes(rows, columns, loss_limit=5.0))
    is_offloaded = cascade.offload(columns["scores"][rows])
    losses = np.where(is_offloaded, columns["big_losses"][rows], columns["small_losses"][rows])
    assert cascade.loss_.value == pytest.approx(losses.mean())
    assert cascade.big_loss_.value == pytest.approx(columns["big_losses"][rows].mean())
    assert cascade.lost_.value == pytest.approx(losses.mean() - cascade.big_loss_.value)
    assert cascade.operating_point_.cost == pytest.approx(1.0 + 20.0 * is_offloaded.mean())
    document = cascade.to_dict()
    assert document["guarantee"]["bound"] == pytest.approx(0.2)
    assert document["guarantee"]["method"] == "betting"
    assert document["loss_interval"][0] < document["loss"] < document["loss_interval"][1]
    assert document["frontier"] == sorted(document["frontier"], key=lambda point: point["cost"])


def test_budgets_and_offload_rates_are_kept():
    columns = draw_population("answers")
    cascade = OutcomeCascade(budget=8.0).fit(make_outcomes(np.arange(3000), columns))
    assert 1.0 + 20.0 * cascade.offload(columns["scores"]).mean() <= 8.0
    cascade_of_rate = cascade.at(offload_rate=0.1)
    assert 0.05 < cascade_of_rate.offload(columns["scores"]).mean() <= 0.1
    assert cascade_of_rate.operating_point_.guarantee["method"] == "exact binomial"
    with pytest.raises(InputError, match="cannot be guaranteed"):
        cascade.at(budget=0.5)


def test_a_cascade_may_have_several_small_systems():
    rng = np.random.default_rng(0)
    scores = rng.uniform(size=(4000, 2))
    small_losses = rng.uniform(size=(4000, 2)) > np.minimum(
        0.5 + np.array([0.5, 0.7]) * scores, 1.0
    )
    outcomes = Outcomes(
        scores=scores,
        small_losses=small_losses,
        big_losses=rng.uniform(size=4000) > 0.97,
        small_cost=[1.0, 3.0],
        big_cost=30.0,
    )
    cascade = OutcomeCascade(max_loss=0.05, random_state=0).fit(outcomes)
    assert len(cascade.operating_point_.thresholds) == 2
    assert cascade.operating_point_.cost < 25  # cheaper than the big system at 30
    assert cascade.offload([[0.0, 0.0], [0.9999, 0.0]]).tolist() == [True, False]
    with pytest.raises(InputError, match="2 systems"):
        cascade.offload([0.5])


def test_a_router_pays_only_one_system_and_rows_may_have_different_prices():
    columns = draw_population("answers")
    routed_cascade = OutcomeCascade(max_loss=0.03).fit(
        make_outcomes(np.arange(3000), columns, is_routed=True)
    )
    unrouted_cascade = OutcomeCascade(max_loss=0.03).fit(make_outcomes(np.arange(3000), columns))
    assert routed_cascade.operating_point_.cost < unrouted_cascade.operating_point_.cost
    prices = np.random.default_rng(0).exponential(20.0, 3000)
    outcomes_with_prices = make_outcomes(np.arange(3000), columns, big_cost=prices)
    cascade_of_prices = OutcomeCascade(max_loss=0.03).fit(outcomes_with_prices)
    is_offloaded = cascade_of_prices.offload(columns["scores"][:3000])
    assert cascade_of_prices.operating_point_.cost == pytest.approx(
        1.0 + np.mean(prices * is_offloaded)
    )
    with pytest.raises(InputError, match="costs differ between rows"):
        cascade_of_prices.at(budget=5.0)
    assert cascade_of_prices.big_cost_ == pytest.approx(prices.mean())


def test_guarantees_of_grouped_rows_are_certified_on_groups():
    columns = draw_population("answers")
    groups = np.arange(6000) // 10
    cascade = OutcomeCascade(max_loss=0.1)
    cascade.fit(make_outcomes(np.arange(6000), columns, groups=groups))
    guarantee = cascade.operating_point_.guarantee
    assert guarantee["calibration_groups"] == 600  # 6,000 rows in groups of ten
    assert guarantee["method"] == "betting on groups"


def test_without_a_guarantee_figures_come_from_half_of_the_rows():
    columns = draw_population("answers")
    cascade = OutcomeCascade(max_loss=0.03, guarantee=None, random_state=0)
    cascade.fit(make_outcomes(np.arange(2000), columns))
    assert cascade.operating_point_.guarantee is None
    assert cascade.to_dict()["rows"] == 1000
    assert "guaranteed" not in cascade.summary()


def test_a_router_keeps_a_budget_by_a_big_system_that_is_cheaper():
    columns = draw_population("answers")
    outcomes = make_outcomes(
        np.arange(2000), columns, small_cost=20.0, big_cost=1.0, is_routed=True
    )
    cascade = OutcomeCascade(budget=10.0, random_state=0).fit(outcomes)
    assert cascade.operating_point_.cost <= 10.0
    assert cascade.operating_point_.offload_rate > 0.5
    # its loss is that of the big system, which is right most often
    assert cascade.loss_.value < columns["small_losses"].mean()


@pytest.mark.parametrize(
    ("invalid_columns", "message"),
    [
        ({"small_losses": [2.0] * 50}, "above the limit of 1"),
        ({"small_losses": [-0.1] * 50}, "at least 0"),
        ({"big_losses": [np.nan] * 50}, "big_losses is missing"),
        ({"big_losses": [0.0] * 49}, "does not fit 50 rows"),
        ({"big_losses": [1.0]}, "does not fit 50 rows"),
        ({"scores": ["high"] * 50}, "scores must hold numbers"),
        ({"scores": [np.inf] * 50}, "finite"),
        ({"small_cost": -1.0}, "costs must be"),
        ({"loss_limit": 0.0}, "loss_limit"),
        ({"scores": np.zeros((50, 2)), "is_routed": True}, "one small system"),
    ],
)
def test_invalid_tables_are_refused(invalid_columns, message):
    columns = {"scores": np.linspace(0, 1, 50), "small_losses": np.zeros(50)}
    columns |= {"big_losses": np.zeros(50), "small_cost": 1.0, "big_cost": 2.0}
    with pytest.raises(InputError, match=message):
        Outcomes(**(columns | invalid_columns))


def test_tables_of_too_few_rows_are_refused():
    ones = np.ones(39)  # one row too few
    small_table = Outcomes(
        scores=ones, small_losses=ones, big_losses=ones, small_cost=1, big_cost=2
    )
    with pytest.raises(InputError, match="at least 40 rows"):
        OutcomeCascade().fit(small_table)
