"""Every feature set gets the family that is best on judging rows."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_training import FeatureCosts, StagedCascade
from gatewise_training.cascades.family_selection import Contest
from gatewise_training.data.validation_split import ValidationSplit
from gatewise_training.learners.model_families import Bounds

SETS = [np.arange(6)[:k] for k in (2, 3, 4, 5, 6)]


def contest(n: int, *, families: tuple[str, ...], probe: int = 3, bounds: Bounds | None = None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    y = (x @ np.ones(6) + rng.normal(size=n) > 0).astype(np.int64)  # a linear model's home
    plan = ValidationSplit.choose(x, y, np.ones(n), validation=None, seed=0)
    told: list[tuple[int, int]] = []
    costs = FeatureCosts.uniform(6)
    said = Contest(
        plan, costs, 2, families, bounds or Bounds(), 0, None, lambda *p: told.append(p), probe
    )
    return said, told


def test_a_linear_rule_is_won_by_the_linear_family() -> None:
    said, told = contest(1200, families=("boosting", "linear"))
    winners = said.winners(SETS)
    assert set(winners) == {tuple(s.tolist()) for s in SETS}
    assert winners[tuple(range(6))].family == "linear"
    assert len(told) == 10  # every family on every set: few rows
    for chosen, winner in winners.items():
        assert set(winner.stage.features) <= set(chosen)
        assert len(winner.outputs) == 1200


def test_on_many_rows_sets_between_probes_try_what_won_beside_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("gatewise_training.cascades.family_selection.HOPELESS", np.inf)  # nobody is
    some, told = contest(6600, families=("boosting", "linear"), probe=3)
    every, all_told = contest(6600, families=("boosting", "linear"), probe=1)
    thrifty, thorough = some.winners(SETS), every.winners(SETS)
    assert len(told) == 8 < len(all_told) == 10
    assert thrifty.keys() == thorough.keys()
    for probe in (0, 3, 4):
        key = tuple(SETS[probe].tolist())
        assert thrifty[key].family == thorough[key].family


def test_on_many_rows_a_hopeless_family_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "gatewise_training.cascades.family_selection.HOPELESS", 1.0
    )  # whoever does not lead is
    said, told = contest(6600, families=("boosting", "linear"), probe=1)
    assert {w.family for w in said.winners(SETS).values()} == {"linear"}
    assert len(told) == 2 * 2 + 3  # both on the two first probes, the leader alone on the others


def test_what_is_too_large_is_left_out() -> None:
    said, _ = contest(800, families=("boosting",), bounds=Bounds(stage_bytes=10))
    assert said.winners(SETS) == {}


@pytest.mark.slow
def test_few_judging_rows_allow_few_stages() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 10))
    y = (x.sum(axis=1) > 0).astype(int)
    system = StagedCascade(families=("linear",), random_state=0).fit(x, y)
    assert max(map(len, system.chains_)) <= 2


def test_effort_is_checked() -> None:
    with pytest.raises(InputError, match="effort must be one of"):
        StagedCascade(effort="much").fit([[0.0], [1.0]], [0, 1])
