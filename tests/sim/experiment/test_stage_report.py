"""Tests of the list of a bundle's stages in a report."""

import numpy as np
import pytest

from gatewise_export import Bundle
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.experiment.stage_report import list_stage_results
from tests.support.machine_table import draw_machines, make_raw_bundle


@pytest.mark.slow
def test_each_column_is_acquired_by_one_stage(digits, table):
    manifest = digits.bundle.manifest
    row_weights = np.ones(len(table))
    stages = list_stage_results(manifest, table, 1000, row_weights)
    assert [stage.name for stage in stages] == ["stage 0", "stage 1", "cloud"]
    column_names = [name for stage in stages for name in stage.acquires]
    assert len(column_names) == len(set(column_names))
    assert sum(stage.share for stage in stages) == 1.0
    assert stages[-1].share == table.is_offloaded.mean()
    assert stages[-1].answers == round(1000 * table.is_offloaded.mean())
    assert sum(stage.price for stage in stages) == table.request_cost.max()


@pytest.mark.slow
def test_stages_list_raw_columns_instead_of_encoded_features(make_once):
    _, _, path = make_once("raw-bundle", make_raw_bundle)
    bundle = Bundle.open(path)
    frame, y = draw_machines(60, seed=2)
    rows = Rows.from_arrays("rows", frame, y, bundle.manifest)
    table, _ = make_row_table(bundle, rows.X, rows.truth)
    stages = list_stage_results(bundle.manifest, table, 60, np.ones(60))
    column_names = [name for stage in stages for name in stage.acquires]
    assert sorted(column_names) == sorted(bundle.manifest.column_names)
    assert stages[-1].columns == len(column_names)
