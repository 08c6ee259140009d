"""Test the choice of a model family for each feature set on validation rows."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise_training import FeatureCosts, StagedCascade
from gatewise_training.cascades import family_selection
from gatewise_training.cascades.family_selection import FamilySelection
from gatewise_training.learners import model_families, stage_bounds
from gatewise_training.learners.stage_bounds import Bounds
from tests.support.fit_problems import make_problem

FEATURE_SETS = [np.arange(6)[:k] for k in (2, 3, 4, 5, 6)]
FAMILIES = ("boosting", "linear")


def make_selection(n, *, families=FAMILIES, probe_step=3, bounds=None):
    """Make a selection on `n` rows, and the list to which it reports its fits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 6)).astype(np.float32)
    problem = make_problem(x, x @ np.ones(6) + rng.normal(size=n) > 0)  # a linear rule
    reports: list[tuple[int, int]] = []  # fits done and in total, after each fit
    report = lambda n_done, n_total: reports.append((n_done, n_total))  # noqa: E731
    return FamilySelection(problem, families, bounds or Bounds(), report, probe_step), reports


@pytest.mark.slow
def test_sets_between_probes_try_only_the_families_of_neighbouring_probes(monkeypatch) -> None:
    # keep all families
    monkeypatch.setattr(family_selection, "MAX_UNCERTAIN_REGRET_RATIO", np.inf)
    sparse_selection, reports = make_selection(1200, probe_step=3)
    full_selection, reports_of_all_probes = make_selection(1200, probe_step=1)
    stages_of_sparse_probes, stages_of_all_probes = (
        sparse_selection.select(FEATURE_SETS),
        full_selection.select(FEATURE_SETS),
    )
    # two families on sets 0, 3 and 4, and the one family of these probes on sets 1 and 2
    assert len(reports) == 8 < len(reports_of_all_probes) == 10
    assert (
        set(stages_of_sparse_probes)
        == set(stages_of_all_probes)
        == {tuple(features.tolist()) for features in FEATURE_SETS}
    )
    assert stages_of_sparse_probes[tuple(range(6))].family == "linear"  # as the rule
    for probe in (0, 3, 4):
        features = tuple(FEATURE_SETS[probe].tolist())
        assert stages_of_sparse_probes[features].family == stages_of_all_probes[features].family
    for features, selected_stage in stages_of_sparse_probes.items():
        assert set(selected_stage.stage.features) <= set(features)
        assert len(selected_stage.outputs) == 1200  # outputs for all training rows


@pytest.mark.slow
def test_low_effort_finds_a_group_of_features_that_only_work_together() -> None:
    """The sign of one feature alone does not predict the label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(600, 6)).astype(np.float32)
    costs = FeatureCosts(np.zeros(6), group=list("aabbcc"), shared=dict.fromkeys("abc", 1.0))
    problem = make_problem(x, (x[:, 2] > 0) ^ (x[:, 3] > 0), costs)
    set_sequences = StagedCascade(n_stages=3, effort="low")._find_feature_sets(problem)
    assert {tuple(sets[0]) for sets in set_sequences} == {(2, 3)}


@pytest.mark.slow
def test_a_family_that_wins_neither_of_the_first_probes_is_dropped_on_many_rows() -> None:
    selection, reports = make_selection(6600, probe_step=1)  # more than 5,000 rows for the fits
    selected_stages = selection.select(FEATURE_SETS).values()
    assert {selected_stage.family for selected_stage in selected_stages} == {"linear"}
    assert len(reports) == 2 * 2 + 3  # two families on two probes, one on three others


@pytest.mark.slow
def test_families_are_chosen_on_a_sample_of_many_rows_and_fitted_on_all_rows(monkeypatch) -> None:
    selection_on_all_rows, _ = make_selection(6600)
    monkeypatch.setattr(family_selection, "MAX_MEDIUM_ROWS", 5000)
    monkeypatch.setattr(family_selection, "TRIAL_ROWS", 300)
    selection_on_a_sample, reports = make_selection(6600)
    selected_stages = selection_on_a_sample.select(FEATURE_SETS)
    rows = selection_on_a_sample.problem.split.validation_rows
    assert {selected_stage.family for selected_stage in selected_stages.values()} == {"linear"}
    assert reports == sorted(reports)  # the number of fits never decreases
    assert len(reports) == 4 + 1 + 2 + 5  # two probes, the third, two between, and five final fits
    for features, expected_stage in selection_on_all_rows.select(FEATURE_SETS).items():
        np.testing.assert_array_equal(selected_stages[features].outputs, expected_stage.outputs)
        np.testing.assert_array_equal(
            selected_stages[features].stage.margins(selection_on_a_sample.problem.split.x[rows]),
            expected_stage.outputs,
        )


@pytest.mark.slow
@pytest.mark.parametrize("family", ["boosting", "extra-trees"])
def test_no_stage_exceeds_the_bytes_that_a_device_reads(family, monkeypatch) -> None:
    unbounded_selection, _ = make_selection(1200, families=(family,))
    unbounded_stages = unbounded_selection.select(FEATURE_SETS).values()
    max_bytes = max(selected_stage.stage.nbytes for selected_stage in unbounded_stages) // 2
    for module in (model_families, stage_bounds):
        monkeypatch.setattr(module, "MAX_STAGE_BYTES", max_bytes)
    bounded_selection, _ = make_selection(1200, families=(family,))
    selected_stages = bounded_selection.select(FEATURE_SETS)
    assert len(selected_stages) == len(FEATURE_SETS)  # every set has a stage
    sizes = [selected_stage.stage.nbytes for selected_stage in selected_stages.values()]
    assert max_bytes / 2 < max(sizes) <= max_bytes  # stages use the bytes that they may have
    for features, selected_stage in selected_stages.items():
        assert selected_stage.regret <= 1.3 * unbounded_selection.best_stages[features].regret


def test_sets_without_a_stage_within_the_bytes_are_omitted() -> None:
    selection, _ = make_selection(800, families=("boosting",), bounds=Bounds(max_bytes=10))
    assert selection.select(FEATURE_SETS) == {}


@pytest.mark.slow
def test_fits_on_few_validation_rows_have_few_stages() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 10))
    y = (x.sum(axis=1) > 0).astype(int)
    system = StagedCascade(families=("linear",), random_state=0).fit(x, y)
    assert max(map(len, system.chains_)) <= 2
