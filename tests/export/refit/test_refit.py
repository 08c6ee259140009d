"""Refitting on kept instances, and comparing the refit with the deployed release."""

import json
from dataclasses import replace

import msgspec
import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import RandomForestClassifier

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.archive.choice import choice_probabilities, choose, write_choice
from gatewise_export.archive.folder import read_rows, shards_in
from gatewise_export.archive.labels import LabelledInstances, add_labels, read_labels
from gatewise_export.archive.machine_labels import MachineLabel, add_machine_labels
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, read_facts
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_decisions
from gatewise_export.refit.refit import RefitSettings, estimate_loss, refit_bundle
from gatewise_export.refit.refit_rows import (
    KeptRowSplit,
    fit_rows_of,
    split_kept_rows,
    typed_labels,
)
from gatewise_training import FeatureCosts, StagedCascade
from tests.export.archive.archived_rows import make_archived_rows
from tests.export.archive.test_folder import NOW, open_folder
from tests.support import small_bundle

pytest.importorskip("pyarrow")

NAMES = ("a", "b", "regime")
FAST_PARAMETERS = {"n_stages": 2, "families": ("linear",)}
# The bounds of gains and ratios in these tests are at most 60 % of the values with these seeds.


def make_rows(n_rows, seed, *, is_shifted=False, has_new_class=False):
    """Make rows with classes that swap in the shifted regime.

    No linear model can learn both regimes. With `has_new_class`, about 30 % of the rows belong to a
    new class far from the others.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    X[:, 2] = 1.0 if is_shifted else 0.0
    margin = X[:, 0] + 0.3 * X[:, 1]
    y = np.where((margin > 0) ^ is_shifted, "yes", "no")
    if has_new_class:
        is_new = rng.random(n_rows) < 0.3
        X[is_new, 1] += 8.0
        y[is_new] = "new"
    return X, y


def make_table(X):
    return pd.DataFrame(X, columns=NAMES)


@pytest.fixture(scope="module")
def deployed_folder(tmp_path_factory):
    """Folder of a bundle fitted before the shift, with a high-cost model fitted to both regimes."""
    earlier_X, earlier_y = make_rows(600, 0)
    later_X, later_y = make_rows(600, 1, is_shifted=True)
    X = np.concatenate([earlier_X, later_X])
    y = np.concatenate([earlier_y, later_y])
    forest = RandomForestClassifier(25, min_samples_leaf=3, random_state=0).fit(make_table(X), y)
    path = tmp_path_factory.mktemp("refit")
    X, y = make_rows(600, 2)
    X_validation, y_validation = make_rows(400, 3)
    np.savez(path / "train.npz", X=X, y=y, feature_names=np.array(NAMES))
    costs = FeatureCosts([1.0, 1.0, 1.0], names=NAMES)
    system = StagedCascade(
        forest, feature_costs=costs, random_state=0, offload_rate=0.1, **FAST_PARAMETERS
    ).fit(make_table(X), y, validation=(make_table(X_validation), y_validation))
    pack(system, path / "bundle", sample=X[:32], name="turn", version="7")
    return path


def archive_and_label(kept_folder, bundle_path, X, y, n_labels, *, version=None, first_id=0):
    """Archive the rows that a fleet would send, and label some of them."""
    bundle = Bundle.open(bundle_path)
    manifest = bundle.manifest
    outcome = graph_decisions(bundle, X)
    rng = np.random.default_rng(0)
    audit_share = 0.2
    is_offloaded = outcome.exits == len(manifest.stages)
    is_sent = is_offloaded | (rng.random(len(X)) < audit_share)
    rows = ArchivedRows(
        request_id=np.array([[*(first_id + i).to_bytes(16)] for i in range(len(X))], np.uint8),
        request_row=np.zeros(len(X), np.uint16),
        device=np.full(len(X), "pi-1"),
        time=NOW + np.arange(len(X), dtype=float),
        X=X[:, manifest.cloud_inputs()],
        cloud_label=outcome.cloud_answers.labels.astype(np.int32),
        probabilities=outcome.cloud_answers.probabilities.astype(np.float32),
        device_label=np.where(is_offloaded, -1, outcome.labels).astype(np.int32),
        confidence=np.full(len(X), np.nan, np.float32),
        sent_probability=np.where(is_offloaded, 1.0, audit_share),
        stored_probability=np.ones(len(X)),
        late=np.zeros(len(X), bool),
    ).take(is_sent)
    facts = ShardFacts(
        model=manifest.name, version=version or manifest.version, classes=manifest.classes,
        inputs=manifest.cloud.inputs, shape=(3,), accuracy=0.95,  # any accuracy
    )  # fmt: skip
    open_folder(kept_folder).add(rows, facts, NOW)
    choice = choose(kept_folder, n_labels, rng)
    write_choice(kept_folder, choice, f"{first_id}")
    truth_by_id = {f"{first_id + i:032x}-0": str(label) for i, label in enumerate(y)}
    labels = {row_id: truth_by_id[row_id] for row_id in choice.rows.ids.tolist()}
    add_labels(kept_folder, labels, by="truth", at=NOW)


def make_settings(deployed_folder, kept, out_folder, **fields):
    default_fields = {
        "parameters": FAST_PARAMETERS,
        "offload_rate": 0.1,
        "train": str(deployed_folder / "train.npz"),
    }
    return RefitSettings(
        bundle=deployed_folder / "bundle", kept=kept, out=out_folder, **default_fields | fields
    )


def measure_accuracy(path, X, y):
    bundle = Bundle.open(path)
    return np.mean(np.array(bundle.manifest.classes)[graph_decisions(bundle, X).labels] == y)


def measure_high_cost_accuracy(path, X, y):
    bundle = Bundle.open(path)
    cloud_labels = graph_decisions(bundle, X).cloud_answers.labels
    return np.mean(np.array(bundle.manifest.classes)[cloud_labels] == y)


@pytest.mark.slow
def test_after_a_shift_the_refit_is_better_and_the_verdict_says_so(deployed_folder, tmp_path):
    X, y = make_rows(2500, 10, is_shifted=True)
    archive_and_label(tmp_path / "kept", deployed_folder / "bundle", X, y, 150)
    new_bundle, report = refit_bundle(
        make_settings(deployed_folder, tmp_path / "kept", tmp_path / "new", kept_share=0.9)
    )
    assert new_bundle.manifest.title == "turn 8"
    test_X, test_y = make_rows(1000, 11, is_shifted=True)
    accuracy_before = measure_accuracy(deployed_folder / "bundle", test_X, test_y)
    accuracy_after = measure_accuracy(tmp_path / "new", test_X, test_y)
    assert accuracy_after > accuracy_before + 0.1
    assert report.verdict == "better"
    comparison_of_all_rows = report.comparisons[0]
    gain = accuracy_after - accuracy_before
    assert comparison_of_all_rows.low <= gain <= comparison_of_all_rows.high
    compared_parts = [comparison.part for comparison in report.comparisons]
    assert compared_parts == ["all", "class no", "class yes", "earlier half", "later half"]
    high_cost_accuracy = measure_high_cost_accuracy(tmp_path / "new", test_X, test_y)
    assert report.loss.upper_bound > high_cost_accuracy - accuracy_after
    assert report.loss.promised is None  # the release was fitted for an offload rate


@pytest.mark.slow
def test_without_a_shift_no_improvement_is_shown(deployed_folder, tmp_path, capsys):
    X, y = make_rows(1500, 20)
    archive_and_label(tmp_path / "kept", deployed_folder / "bundle", X, y, 60)
    settings_file = tmp_path / "fast.toml"
    settings_file.write_text('[parameters]\nn_stages = 2\nfamilies = ["linear"]\n')
    arguments = ["--train", deployed_folder / "train.npz", "--kept", tmp_path / "kept"]
    arguments += [
        "--out",
        tmp_path / "new",
        "--settings",
        settings_file,
        "--offload-rate",
        0.1,
        "--json",
    ]
    # The status is 1 if no improvement is shown; the bundle is written all the same.
    assert main(["refit", str(deployed_folder / "bundle"), *map(str, arguments)]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "not shown"
    assert (tmp_path / "new" / "manifest.json").exists()


@pytest.mark.slow
def test_a_new_class_needs_a_new_high_cost_model(deployed_folder, tmp_path):
    X, y = make_rows(1500, 30, has_new_class=True)
    archive_and_label(tmp_path / "kept", deployed_folder / "bundle", X, y, 150)
    with pytest.raises(InputError, match="--high-cost new"):
        refit_bundle(make_settings(deployed_folder, tmp_path / "kept", tmp_path / "new"))
    new_bundle, report = refit_bundle(
        make_settings(deployed_folder, tmp_path / "kept", tmp_path / "new", high_cost="new")
    )
    assert new_bundle.manifest.classes == ("new", "no", "yes")
    test_X, test_y = make_rows(1000, 31, has_new_class=True)
    accuracy_before = measure_accuracy(deployed_folder / "bundle", test_X, test_y)
    # The new class has 30 % of the rows, and the deployed bundle answers none of them correctly.
    assert measure_accuracy(tmp_path / "new", test_X, test_y) > accuracy_before + 0.15
    assert report.verdict == "better"
    difference_by_part = {
        comparison.part: comparison.difference for comparison in report.comparisons
    }
    assert difference_by_part["class new"] > 0.5


def test_too_few_labels_and_other_bundles_are_refused(deployed_folder, tmp_path):
    X, y = make_rows(300, 40)
    archive_and_label(tmp_path / "kept", deployed_folder / "bundle", X, y, 10)
    with pytest.raises(InputError, match="a refit needs at least 20"):
        refit_bundle(make_settings(deployed_folder, tmp_path / "kept", tmp_path / "new"))
    other_bundle = small_bundle.write_bundle(tmp_path / "other")
    other_settings = msgspec.structs.replace(
        make_settings(deployed_folder, tmp_path / "kept", tmp_path / "new"),
        bundle=other_bundle.path,
    )
    with pytest.raises(InputError, match="kept instances lack"):
        refit_bundle(other_settings)


def test_third_class_besides_false_and_true_is_refused(deployed_folder):
    manifest = Bundle.open(deployed_folder / "bundle").manifest
    manifest = msgspec.structs.replace(manifest, classes=(False, True))
    assert typed_labels(np.array(["True", "False"]), manifest).tolist() == [True, False]
    with pytest.raises(InputError, match="False and True, and 'broken' is a third one"):
        typed_labels(np.array(["True", "broken"]), manifest)


def test_labels_of_an_earlier_version_are_used_to_fit_but_not_to_compare(deployed_folder, tmp_path):
    path = tmp_path / "kept"
    old_bundle = Bundle.open(deployed_folder / "bundle")
    X, y = make_rows(800, 50)
    archive_and_label(path, deployed_folder / "bundle", X, y, 40, version="6")
    X, y = make_rows(800, 51)
    archive_and_label(path, deployed_folder / "bundle", X, y, 60, first_id=1000)
    row_split = split_kept_rows(
        path, old_bundle.manifest, comparison_share=0.4, rng=np.random.default_rng(3)
    )
    assert len(row_split.earlier_labels) == 1
    earlier_ids = row_split.earlier_labels[0].rows.ids
    assert 20 <= len(earlier_ids) <= 60  # about 40 labels were chosen
    assert all(int(row_id[:32], 16) < 800 for row_id in earlier_ids)
    for compared_rows in (row_split.comparison_rows, row_split.comparison_labels.rows):
        assert not np.isin(compared_rows.ids, earlier_ids).any()
    fit_rows = fit_rows_of(
        row_split, old_bundle.manifest, cap=10.0, uses_unlabelled=False,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert len(fit_rows.y) == len(row_split.fit_labels) + len(earlier_ids)
    np.testing.assert_array_equal(
        fit_rows.X[len(row_split.fit_labels) :], row_split.earlier_labels[0].rows.X
    )


def test_instances_that_no_choice_covers_are_used_to_fit_but_not_to_compare(
    deployed_folder, tmp_path
):
    """Labels could not correct the high-cost model's answers to these instances."""
    path = tmp_path / "kept"
    X, y = make_rows(800, 60)
    archive_and_label(path, deployed_folder / "bundle", X, y, 60)
    covered_rows = read_rows(shards_in(path))
    later_rows = replace(
        covered_rows, request_id=covered_rows.request_id + 1, time=covered_rows.time + 1e4
    )
    open_folder(path).add(later_rows, read_facts(shards_in(path)[0]), NOW + 1e5)
    row_split = split_kept_rows(
        path,
        Bundle.open(deployed_folder / "bundle").manifest,
        comparison_share=0.4,
        rng=np.random.default_rng(3),
    )
    assert row_split.comparison_rows.time.max() <= covered_rows.time.max()
    n_rows = len(row_split.fit_rows) + len(row_split.comparison_rows)
    assert n_rows == 2 * len(covered_rows)


def test_a_part_of_many_unlabelled_instances_weighs_as_much_as_all(deployed_folder, monkeypatch):
    monkeypatch.setattr("gatewise_export.refit.refit_rows.MAX_UNLABELLED", 50)
    rows = make_archived_rows(600, audit_share=0.0)
    labelled_rows, _ = draw_labelled_rows(rows, np.ones(600, bool), np.random.default_rng(0), 100)
    row_split = KeptRowSplit(rows, labelled_rows, rows, labelled_rows, ())
    manifest = Bundle.open(deployed_folder / "bundle").manifest
    labelled_rows = replace(labelled_rows, labels=np.array(["no", "yes"])[labelled_rows.truth])
    row_split = replace(row_split, fit_labels=labelled_rows)
    fit_rows = fit_rows_of(
        row_split, manifest, cap=100.0, uses_unlabelled=True, rng=np.random.default_rng(0)
    )
    n_labels = len(labelled_rows)
    assert len(fit_rows.y) == n_labels + 50
    labelled_share = fit_rows.weights[:n_labels].sum() / fit_rows.weights.sum()
    assert labelled_share == pytest.approx(n_labels / 600)


def test_machine_labels_are_used_to_fit_but_not_to_compare(deployed_folder, tmp_path):
    """A machine labels the instances that it sees, which are not a random sample."""
    path = tmp_path / "kept"
    X, y = make_rows(1500, 20)
    archive_and_label(path, deployed_folder / "bundle", X, y, 60)
    manifest = Bundle.open(deployed_folder / "bundle").manifest

    def split_rows():
        return split_kept_rows(path, manifest, comparison_share=0.4, rng=np.random.default_rng(3))

    split_before = split_rows()
    archived_rows = read_rows(shards_in(path))
    labelled_ids = set(read_labels(path))
    labels = [
        MachineLabel(str(row_id), "pi-1", str(y[int(row_id[:32], 16)]), "bench", NOW)
        for row_id in archived_rows.ids
        if row_id not in labelled_ids
    ]
    archive = open_folder(path)
    assert set(add_machine_labels(archive, labels, shards_in(archive.path))) == {"added"}
    split_after = split_rows()
    assert (
        split_after.comparison_labels.rows.ids.tolist()
        == split_before.comparison_labels.rows.ids.tolist()
    )
    assert split_after.comparison_rows.ids.tolist() == split_before.comparison_rows.ids.tolist()
    fit_ids = set(split_after.fit_labels.rows.ids.tolist())
    assert fit_ids == set(split_after.fit_rows.ids.tolist())
    assert len(fit_ids) > 3 * len(split_before.fit_labels)  # most are machine labels
    # A machine label has the weight of its own instance only.
    has_machine_label = np.isin(split_after.fit_labels.rows.ids, [label.id for label in labels])
    weights = split_after.fit_labels.weights[has_machine_label]
    np.testing.assert_array_equal(weights, split_after.fit_labels.rows.weights[has_machine_label])


def draw_labelled_rows(rows, is_correct, rng, n_labels):
    """Label rows as :func:`.choose` draws them; there are two classes."""
    probability, _ = choice_probabilities(rows, n_labels, rng)
    chosen_rows = np.flatnonzero(rng.random(len(rows)) < probability)
    truth = np.where(
        is_correct[chosen_rows], rows.cloud_label[chosen_rows], 1 - rows.cloud_label[chosen_rows]
    )
    labelled_rows = LabelledInstances(
        rows=rows.take(chosen_rows),
        truth=truth,
        labels=truth.astype(np.str_),
        label_probability=probability[chosen_rows],
        choice_index=np.zeros(len(chosen_rows), np.int64),
    )
    return labelled_rows, chosen_rows


@pytest.mark.slow
def test_the_bound_on_the_loss_holds_as_often_as_its_confidence():
    rows = make_archived_rows(2000)
    rng = np.random.default_rng(0)
    n_streams = 300
    n_kept_bounds = 0
    for _ in range(n_streams):
        is_correct = rng.random(len(rows)) < 0.95
        # the release answers a tenth of the rows otherwise than the high-cost model
        answers = np.where(rng.random(len(rows)) < 0.1, 1 - rows.cloud_label, rows.cloud_label)
        is_release_correct = (answers == rows.cloud_label) == is_correct
        true_loss = np.average(is_correct * 1.0 - is_release_correct, weights=rows.weights)
        labelled_rows, chosen_rows = draw_labelled_rows(rows, is_correct, rng, 100)
        with_labelled = np.concatenate([np.arange(len(rows)), chosen_rows])
        loss = estimate_loss(
            rows, labelled_rows, answers[with_labelled], rows.cloud_label[with_labelled]
        )
        n_kept_bounds += true_loss <= loss.upper_bound
    # 95 % of the streams, less two standard errors
    assert n_kept_bounds >= n_streams * (0.95 - 2 * np.sqrt(0.05 * 0.95 / n_streams))


def test_a_release_that_answers_as_the_high_cost_model_keeps_a_loss_of_one_percent():
    rows = make_archived_rows(2000)
    rng = np.random.default_rng(1)
    labelled_rows, _ = draw_labelled_rows(rows, rng.random(len(rows)) < 0.9, rng, 500)
    answers = np.concatenate([rows.cloud_label, labelled_rows.rows.cloud_label])
    loss = estimate_loss(rows, labelled_rows, answers, answers)
    assert loss.value == 0.0
    assert 0.0 < loss.upper_bound < 0.01
    assert msgspec.structs.replace(loss, promised=0.01).is_promise_shown
    assert not msgspec.structs.replace(loss, promised=loss.upper_bound / 2).is_promise_shown
    assert not loss.is_promise_shown  # nothing was promised
