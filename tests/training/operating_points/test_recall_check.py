"""Test the warning about rare classes that lose recall, and bounds by class of a system."""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.datasets import make_classification
from sklearn.ensemble import RandomForestClassifier

from gatewise.errors import InputError, RecallWarning
from gatewise_export.bundle.bundle import set_operating_point
from gatewise_export.packing.bundle_writer import pack
from gatewise_training import StagedCascade
from gatewise_training.operating_points.recall_check import recall_remark

pytestmark = pytest.mark.usefixtures("two_folds")

FAST_SETTINGS = {"n_stages": 2, "families": ("linear",), "effort": "low", "random_state": 0}


@pytest.fixture(scope="module")
def rows_and_labels():
    """Rows and their labels; 4 % are faults that are hard to separate."""
    x, y = make_classification(
        2400, 8, n_informative=5, n_clusters_per_class=3, weights=[0.96], class_sep=1.2, flip_y=0,
        random_state=1,
    )  # fmt: skip
    return x.astype(np.float32), np.array(["ok", "fault"])[y]


@pytest.fixture(scope="module")
def system_and_warnings(rows_and_labels, make_once):
    def fit_and_record_warnings(_folder):
        with warnings.catch_warnings(record=True) as warning_list:
            warnings.simplefilter("always")
            forest = RandomForestClassifier(15, random_state=0)
            return StagedCascade(forest, max_loss=0.012, **FAST_SETTINGS).fit(*rows_and_labels), [
                (warning.category, str(warning.message), warning.filename)
                for warning in warning_list
            ]

    return make_once("rare-faults", fit_and_record_warnings)


@pytest.mark.slow
def test_fits_warn_about_a_rare_class_that_loses_recall(system_and_warnings):
    system, recorded_warnings = system_and_warnings
    point, reference_recall = system.operating_point_, system.frontier_.reference_recall
    assert point.accuracy > 0.96  # the accuracy looks good, because 96 % of the rows are ok
    assert point.recall[0] < reference_recall[0] - 0.05
    message = recall_remark(system)
    assert recorded_warnings == [(RecallWarning, message, __file__)]
    assert f"falls from {reference_recall[0]:.2f} (the high-cost model) to" in message
    assert message.endswith("or class_weight='balanced' to give rare classes more weight")
    option_text = recall_remark(system, as_options=True)
    assert "--min-recall fault=0." in option_text
    assert 'or class_weight = "balanced" in --settings to give' in option_text
    weighted_system = copy.copy(system)
    weighted_system.class_weights_ = np.ones(2)
    assert recall_remark(weighted_system).endswith("to bound the recall")
    renamed_system = copy.copy(system)
    renamed_system.frontier_ = replace(system.frontier_, classes=("late fault", "ok"))
    assert "--min-recall 'late fault=0." in recall_remark(renamed_system, as_options=True)


@pytest.mark.slow
def test_a_bound_on_recall_raises_the_recall_until_it_is_removed(system_and_warnings):
    system, _ = system_and_warnings
    bounded_system = system.at(min_recall={"fault": 0.4})
    assert system.operating_point_.recall[0] < 0.4 <= bounded_system.operating_point_.recall[0]
    assert bounded_system.operating_point_.cost > system.operating_point_.cost
    assert recall_remark(bounded_system) is None
    # other goals keep the bound until an empty mapping removes it
    offload_rate = bounded_system.operating_point_.offload_rate
    assert bounded_system.at(offload_rate=offload_rate).operating_point_.recall[0] >= 0.4
    assert (
        bounded_system.at(max_loss=0.012, min_recall={}).operating_point_ == system.operating_point_
    )
    with pytest.raises(
        InputError, match=r"no operating point keeps min_recall fault=0.99: .* most"
    ):
        system.at(min_recall={"fault": 0.99})
    with pytest.raises(InputError, match="min_precision: there is no class 'faulty'"):
        system.at(min_precision={"faulty": 0.5})


def test_bundles_contain_bounds_and_figures_by_class(
    system_and_warnings, rows_and_labels, tmp_path
):
    system = system_and_warnings[0].at(min_recall={"fault": 0.4})
    manifest = pack(system, tmp_path / "bundle", sample=rows_and_labels[0][:20]).manifest
    assert manifest.min_recall == (0.4, None)
    assert manifest.min_precision is None
    assert manifest.reference_recall == pytest.approx(system.frontier_.reference_recall, abs=1e-6)
    assert sum(manifest.class_rows) == len(rows_and_labels[0])
    active_point, point = manifest.active_point, system.operating_point_
    assert active_point.recall == pytest.approx(point.recall, abs=1e-6)
    assert active_point.log_loss == pytest.approx(point.log_loss, abs=1e-6)
    assert active_point.recall[0] >= 0.4
    looser_manifest = set_operating_point(
        tmp_path / "bundle", 0, bounds=((0.1, None), (None, None))
    ).manifest
    assert looser_manifest.min_recall == (0.1, None)  # the new bound replaces that of 0.4


def test_losses_by_class_are_packed_as_recalls(system_and_warnings, rows_and_labels, tmp_path):
    system = system_and_warnings[0].at(max_loss={"fault": 0.1})
    manifest = pack(system, tmp_path / "bundle", sample=rows_and_labels[0][:20]).manifest
    reference_recall = system.frontier_.reference_recall[0]
    assert manifest.min_recall == pytest.approx((reference_recall - 0.1, None), abs=2e-6)
    assert manifest.active_point.recall[0] >= manifest.min_recall[0]


@pytest.mark.slow
def test_class_weights_affect_fits_and_accuracies_but_not_costs(
    system_and_warnings, rows_and_labels
):
    unweighted_system, (x, y) = system_and_warnings[0], rows_and_labels
    forest = RandomForestClassifier(15, random_state=0)
    weighted_system = StagedCascade(forest, class_weight="balanced", **FAST_SETTINGS).fit(x, y)
    point, frontier = weighted_system.operating_point_, weighted_system.frontier_
    assert weighted_system.class_weights_ == pytest.approx(
        [len(y) / (2 * np.sum(y == label)) for label in ("fault", "ok")]
    )
    assert frontier.is_weighted
    assert point.weighted_accuracy == pytest.approx(point.balanced_accuracy, abs=0.02)
    # balanced weights favour the rare class
    assert point.recall[0] > unweighted_system.operating_point_.recall[0] + 0.1
    # class weights do not change costs and reference accuracy
    assert weighted_system.cost(x).mean() == pytest.approx(point.cost, rel=0.1)
    assert frontier.reference_accuracy > 0.9
    assert unweighted_system.frontier_.reference_weighted_accuracy is None
    table = frontier.to_frame()
    assert {"weighted_accuracy", "recall fault", "precision ok"} <= set(table.columns)


@pytest.mark.slow
def test_guarantees_certify_bounds_by_class_or_name_the_missing_rows(rows_and_labels):
    forest = RandomForestClassifier(15, random_state=0)
    system = StagedCascade(
        forest, guarantee=0.9, max_loss=0.03, min_recall={"fault": 0.1}, **FAST_SETTINGS
    ).fit(*rows_and_labels)
    point = system.operating_point_
    assert point.guarantee["min_recall fault"] == 0.1
    assert point.log_loss is not None
    with pytest.raises(InputError, match=r"\d+ of class 'fault': 0.\d+ if none is missed"):
        system.at(max_loss=0.03, min_recall={"fault": 0.88})
    with pytest.raises(InputError, match=r"recall fault=0.9 needs 22 .* but there are 20;"):
        system.at(max_loss=0.03, min_recall={"fault": 0.9})
