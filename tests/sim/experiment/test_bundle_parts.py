import numpy as np
import pytest

from gatewise_export import Bundle
from gatewise_sim.experiment.bundle_parts import choose_examples, stage_results
from gatewise_sim.experiment.row_table import make_row_table
from gatewise_sim.experiment.rows import Rows
from tests.support.machine_table import machine_table, make_raw_bundle


@pytest.mark.slow
def test_stages_acquire_what_those_before_have_not(small, table):
    manifest = small.bundle.manifest
    weights = np.ones(len(table))
    stages = stage_results(manifest, table, 1000, weights)
    assert [stage.name for stage in stages] == ["stage 0", "stage 1", "cloud"]
    names = [name for stage in stages for name in stage.acquires]
    assert len(names) == len(set(names))
    assert sum(stage.share for stage in stages) == 1.0
    assert stages[-1].share == table.offload.mean()
    assert stages[-1].answers == round(1000 * table.offload.mean())
    assert sum(stage.price for stage in stages) == table.request_cost.max()


def test_examples_are_easy_and_hard_ones_of_different_answers(small, table):
    examples = choose_examples(small.bundle.manifest, table, Rows("rows", small.rows, None))
    easy = [each for each in examples if each.answered_by != "cloud"]
    hard = [each for each in examples if each.answered_by == "cloud"]
    assert len(easy) == len(hard) == 3
    assert len({each.label for each in hard}) == 3
    assert easy[0].cost == table.local_cost[~table.offload].min()
    least_sure = np.argmin(np.where(table.offload, table.confidence, np.inf))
    assert hard[0].row == least_sure
    assert hard[0].truth == str(small.truth[least_sure])
    assert len(hard[0].values) == 64
    assert set(hard[0].acquired) <= set(range(64))
    names = small.bundle.manifest.feature_names
    assert list(hard[0].readings) == [names[k] for k in hard[0].acquired]


@pytest.mark.slow
def test_raw_columns_stand_in_place_of_the_features_made_from_them(make_once):
    _, _, path = make_once("raw-bundle", make_raw_bundle)
    bundle = Bundle.open(path)
    frame, y = machine_table(60, seed=2)
    rows = Rows.from_arrays("rows", frame, y, bundle.manifest)
    table, _ = make_row_table(bundle, rows.X, rows.truth)
    stages = stage_results(bundle.manifest, table, 60, np.ones(60))
    columns = [name for stage in stages for name in stage.acquires]
    assert sorted(columns) == sorted(bundle.manifest.column_names)
    assert stages[-1].columns == len(columns)
    for example in choose_examples(bundle.manifest, table, rows):
        if "supplier" in example.readings:
            assert example.readings["supplier"] == str(frame["supplier"].iloc[example.row])
            break
    else:
        raise AssertionError("no example acquired a category")


def test_wide_rows_have_no_examples(small, table):
    rows = Rows("rows", np.zeros((2, 2000), np.float32), None)
    assert choose_examples(small.bundle.manifest, table, rows) == ()
