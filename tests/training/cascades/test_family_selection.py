"""Every feature set gets the family that is best on validation rows."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training import FeatureCosts, StagedCascade
from gatewise_training.cascades import family_selection
from gatewise_training.cascades.family_selection import FamilySelection
from gatewise_training.learners import model_families, stage_bounds
from gatewise_training.learners.stage_bounds import Bounds
from tests.support.fit_problems import problem_of

SETS = [np.arange(6)[:k] for k in (2, 3, 4, 5, 6)]
BOTH = ("boosting", "linear")


def selection(n, *, families=BOTH, probe=3, bounds=None):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    problem = problem_of(x, x @ np.ones(6) + rng.normal(size=n) > 0)  # a linear rule
    fits: list[tuple[int, int]] = []
    report = lambda *progress: fits.append(progress)  # noqa: E731
    return FamilySelection(problem, families, bounds or Bounds(), report, probe), fits


@pytest.mark.slow
def test_sets_between_probes_try_what_was_selected_beside_them(monkeypatch) -> None:
    monkeypatch.setattr(family_selection, "MAX_REGRET_RATIOS", (np.inf, np.inf))  # no family is
    some, fits = selection(1200, probe=3)
    every, all_fits = selection(1200, probe=1)
    few, thorough = some.select(SETS), every.select(SETS)
    assert len(fits) == 8 < len(all_fits) == 10
    assert set(few) == set(thorough) == {tuple(s.tolist()) for s in SETS}
    assert few[tuple(range(6))].family == "linear"
    for probe in (0, 3, 4):
        key = tuple(SETS[probe].tolist())
        assert few[key].family == thorough[key].family
    for chosen, selected in few.items():
        assert set(selected.stage.features) <= set(chosen)
        assert len(selected.outputs) == 1200


def test_a_block_whose_features_work_together_is_found_with_little_effort() -> None:
    """Neither sign tells anything alone; a penalty on first uses would pay for the block twice."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype(np.float32)
    costs = FeatureCosts(np.zeros(6), group=list("aabbcc"), shared=dict.fromkeys("abc", 1.0))
    problem = problem_of(x, (x[:, 2] > 0) ^ (x[:, 3] > 0), costs)
    sequences = StagedCascade(n_stages=3, effort="low")._feature_sets(problem)
    assert {tuple(sets[0]) for sets in sequences} == {(2, 3)}


def test_on_many_rows_a_family_that_is_best_on_neither_first_probe_is_given_up() -> None:
    found, fits = selection(6600, probe=1)
    assert {selected.family for selected in found.select(SETS).values()} == {"linear"}
    assert len(fits) == 2 * 2 + 3  # both on the two first probes, the best alone on the others


def test_families_are_chosen_on_some_of_many_rows_and_fitted_on_all(monkeypatch) -> None:
    few, _ = selection(6600)
    monkeypatch.setattr(family_selection, "MANY_ROWS", 5000)
    monkeypatch.setattr(family_selection, "TRIAL_ROWS", 300)
    many, fits = selection(6600)
    found, rows = many.select(SETS), many.problem.plan.validation_rows
    assert {selected.family for selected in found.values()} == {"linear"}
    assert fits == sorted(fits)  # progress never goes back
    assert len(fits) == 4 + 1 + 2 + 5  # two probes, a third, those between; all of them anew
    for key, expected in few.select(SETS).items():
        np.testing.assert_array_equal(found[key].outputs, expected.outputs)
        np.testing.assert_array_equal(
            found[key].stage.margins(many.problem.plan.x[rows]), expected.outputs
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["boosting", "extra-trees"])
def test_no_stage_is_larger_than_a_device_reads(family, monkeypatch) -> None:
    free, _ = selection(1200, families=(family,))
    most = max(found.stage.nbytes for found in free.select(SETS).values()) // 2
    for module in (model_families, stage_bounds):
        monkeypatch.setattr(module, "MAX_STAGE_BYTES", most)
    bounded, _ = selection(1200, families=(family,))
    found = bounded.select(SETS)
    assert len(found) == len(SETS)  # none is given up for it
    assert most / 2 < max(selected.stage.nbytes for selected in found.values()) <= most
    for key, selected in found.items():
        assert selected.regret <= 1.3 * free.best[key].regret


def test_stages_beyond_the_bytes_are_left_out() -> None:
    found, _ = selection(800, families=("boosting",), bounds=Bounds(max_bytes=10))
    assert found.select(SETS) == {}


@pytest.mark.slow
def test_few_validation_rows_allow_few_stages() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 10))
    y = (x.sum(axis=1) > 0).astype(int)
    system = StagedCascade(families=("linear",), random_state=0).fit(x, y)
    assert max(map(len, system.chains_)) <= 2
