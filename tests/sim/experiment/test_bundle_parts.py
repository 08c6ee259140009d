import numpy as np

from gatewise_sim.experiment.bundle_parts import choose_examples, stage_results


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
    examples = choose_examples(small.bundle.manifest, table, small.rows)
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


def test_wide_rows_have_no_examples(small, table):
    assert choose_examples(small.bundle.manifest, table, np.zeros((2, 2000), np.float32)) == ()
