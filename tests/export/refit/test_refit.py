"""Refits on kept instances, and the verdict of their comparison with the deployed release."""

import json

import msgspec
import numpy as np
import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import read_archive, shards_in
from gatewise_export.archive.labels import add_labels, read_labels
from gatewise_export.archive.machine_labels import MachineLabel, add_machine_labels
from gatewise_export.archive.shard import ArchivedRows, ShardFacts
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import graph_outcome
from gatewise_export.refit.refit import RefitSettings, refit_bundle
from gatewise_export.refit.refit_rows import fit_rows_of, split_kept_rows
from tests.export.archive.test_folder import NOW, open_folder

pytest.importorskip("pyarrow")

NAMES = ("a", "b", "regime")
QUICK = {"n_stages": 2, "families": ("linear",)}


def make_rows(n_rows, seed, *, shifted=False, new_class=False):
    """Rows whose classes swap in the shifted regime; no linear model can learn both regimes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    X[:, 2] = 1.0 if shifted else 0.0
    margin = X[:, 0] + 0.3 * X[:, 1]
    y = np.where((margin > 0) ^ shifted, "yes", "no")
    if new_class:
        is_new = rng.random(n_rows) < 0.3
        X[is_new, 1] += 8.0
        y[is_new] = "new"
    return X, y


def table(X):
    import pandas as pd

    return pd.DataFrame(X, columns=NAMES)


@pytest.fixture(scope="module")
def deployed(tmp_path_factory):
    """Bundle fitted before the shift, with a high-cost model fitted to both regimes."""
    from sklearn.ensemble import RandomForestClassifier

    from gatewise_training import FeatureCosts, StagedCascade

    X, y = (
        np.concatenate(parts)
        for parts in zip(make_rows(600, 0), make_rows(600, 1, shifted=True), strict=True)
    )
    forest = RandomForestClassifier(25, min_samples_leaf=3, random_state=0).fit(table(X), y)
    path = tmp_path_factory.mktemp("refit")
    X, y = make_rows(600, 2)
    X_validation, y_validation = make_rows(400, 3)
    np.savez(path / "train.npz", X=X, y=y, feature_names=np.array(NAMES))
    costs = FeatureCosts([1.0, 1.0, 1.0], names=NAMES)
    system = StagedCascade(
        forest, feature_costs=costs, random_state=0, offload_rate=0.1, **QUICK
    ).fit(table(X), y, validation=(table(X_validation), y_validation))
    pack(system, path / "bundle", sample=X[:32], name="turn", version="7")
    return path


def keep_rows(path, bundle, X, y, n_labels, *, share=0.2, version=None, first_id=0):
    """Archive the rows that a fleet would send, and label some of them."""
    bundle = Bundle.open(bundle)
    manifest = bundle.manifest
    outcome = graph_outcome(bundle, X)
    rng = np.random.default_rng(0)
    offloaded = outcome.exits == len(manifest.stages)
    is_sent = offloaded | (rng.random(len(X)) < share)
    order = manifest.cloud_inputs()
    rows = ArchivedRows(
        ids=np.array([f"{first_id + i:032x}-0" for i in range(len(X))]),
        device=np.full(len(X), "pi-1"),
        time=NOW + np.arange(len(X), dtype=float),
        X=X[:, order],
        cloud_label=outcome.cloud_labels.astype(np.int32),
        probabilities=outcome.cloud_probabilities.astype(np.float32),
        device_label=np.where(offloaded, -1, outcome.labels).astype(np.int32),
        confidence=np.full(len(X), np.nan, np.float32),
        sent_chance=np.where(offloaded, 1.0, share),
        stored_chance=np.ones(len(X)),
        late=np.zeros(len(X), bool),
    ).take(is_sent)
    facts = ShardFacts(
        model=manifest.name, version=version or manifest.version, classes=manifest.classes,
        inputs=manifest.cloud.inputs, shape=(3,), accuracy=0.95,
    )  # fmt: skip
    open_folder(path).add(rows, facts, NOW)
    choice = choose(path, n_labels, rng)
    write_choice(path, choice, f"{first_id}")
    truth = {f"{first_id + i:032x}-0": str(label) for i, label in enumerate(y)}
    add_labels(
        path, {row_id: truth[row_id] for row_id in choice.rows.ids.tolist()}, by="truth", at=NOW
    )


def settings(deployed, kept, out, **fields):
    defaults = {"parameters": QUICK, "offload_rate": 0.1, "train": str(deployed / "train.npz")}
    return RefitSettings(bundle=deployed / "bundle", kept=kept, out=out, **defaults | fields)


def accuracy(path, X, y):
    bundle = Bundle.open(path)
    return np.mean(np.array(bundle.manifest.classes)[graph_outcome(bundle, X).labels] == y)


@pytest.mark.slow
def test_after_a_shift_the_refit_is_better_and_the_verdict_says_so(deployed, tmp_path):
    X, y = make_rows(2500, 10, shifted=True)
    keep_rows(tmp_path / "kept", deployed / "bundle", X, y, 150)
    new, report = refit_bundle(
        settings(deployed, tmp_path / "kept", tmp_path / "new", kept_share=0.9)
    )
    assert new.manifest.title == "turn 8"
    X, y = make_rows(1000, 11, shifted=True)
    accuracy_before = accuracy(deployed / "bundle", X, y)
    accuracy_after = accuracy(tmp_path / "new", X, y)
    assert accuracy_after > accuracy_before + 0.1
    assert report.verdict == "better"
    total = report.comparisons[0]
    assert total.low <= accuracy_after - accuracy_before <= total.high
    parts = [comparison.part for comparison in report.comparisons]
    assert parts == ["all", "class no", "class yes", "earlier half", "later half"]


def test_without_a_shift_no_improvement_is_shown(deployed, tmp_path, capsys):
    X, y = make_rows(1500, 20)
    keep_rows(tmp_path / "kept", deployed / "bundle", X, y, 60)
    toml = tmp_path / "quick.toml"
    toml.write_text('[parameters]\nn_stages = 2\nfamilies = ["linear"]\n')
    arguments = ["--train", deployed / "train.npz", "--kept", tmp_path / "kept"]
    arguments += ["--out", tmp_path / "new", "--settings", toml, "--offload-rate", 0.1, "--json"]
    assert main(["refit", str(deployed / "bundle"), *map(str, arguments)]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"] == "not shown"
    assert (tmp_path / "new" / "manifest.json").exists()


@pytest.mark.slow
def test_a_new_class_needs_a_new_high_cost_model(deployed, tmp_path):
    X, y = make_rows(1500, 30, new_class=True)
    keep_rows(tmp_path / "kept", deployed / "bundle", X, y, 150)
    with pytest.raises(InputError, match="--high-cost new"):
        refit_bundle(settings(deployed, tmp_path / "kept", tmp_path / "new"))
    new, report = refit_bundle(
        settings(deployed, tmp_path / "kept", tmp_path / "new", high_cost="new")
    )
    assert new.manifest.classes == ("new", "no", "yes")
    X, y = make_rows(1000, 31, new_class=True)
    assert accuracy(tmp_path / "new", X, y) > accuracy(deployed / "bundle", X, y) + 0.15
    assert report.verdict == "better"
    differences = {c.part: c.difference for c in report.comparisons}
    assert differences["class new"] > 0.5


def test_too_few_labels_and_other_bundles_are_refused(deployed, tmp_path):
    X, y = make_rows(300, 40)
    keep_rows(tmp_path / "kept", deployed / "bundle", X, y, 10)
    with pytest.raises(InputError, match="a refit needs at least 20"):
        refit_bundle(settings(deployed, tmp_path / "kept", tmp_path / "new"))
    from tests.support import small_bundle

    other = small_bundle.write_bundle(tmp_path / "other")
    other_settings = msgspec.structs.replace(
        settings(deployed, tmp_path / "kept", tmp_path / "new"), bundle=other.path
    )
    with pytest.raises(InputError, match="kept instances lack"):
        refit_bundle(other_settings)


def test_labels_of_an_earlier_version_are_used_to_fit_but_not_to_compare(deployed, tmp_path):
    path = tmp_path / "kept"
    old_bundle = Bundle.open(deployed / "bundle")
    X, y = make_rows(800, 50)
    keep_rows(path, deployed / "bundle", X, y, 40, version="6")
    X, y = make_rows(800, 51)
    keep_rows(path, deployed / "bundle", X, y, 60, first_id=1000)
    row_split = split_kept_rows(
        path, old_bundle.manifest, comparison_share=0.4, rng=np.random.default_rng(3)
    )
    assert len(row_split.earlier_labels) == 1
    earlier_ids = row_split.earlier_labels[0].rows.ids
    assert 20 <= len(earlier_ids) <= 60
    assert all(int(row_id[:32], 16) < 800 for row_id in earlier_ids)
    for part in (row_split.comparison_rows, row_split.comparison_labels.rows):
        assert not np.isin(part.ids, earlier_ids).any()
    rows = fit_rows_of(
        row_split, old_bundle.manifest, cap=10.0, uses_unlabelled=False,
        rng=np.random.default_rng(0),
    )  # fmt: skip
    assert len(rows.y) == len(row_split.fit_labels) + len(earlier_ids)
    np.testing.assert_array_equal(
        rows.X[len(row_split.fit_labels) :], row_split.earlier_labels[0].rows.X
    )


def test_machine_labels_are_used_to_fit_but_not_to_compare(deployed, tmp_path):
    """A machine labels the instances that it sees, which are not a random sample."""
    path = tmp_path / "kept"
    X, y = make_rows(1500, 20)
    keep_rows(path, deployed / "bundle", X, y, 60)
    manifest = Bundle.open(deployed / "bundle").manifest

    def split_rows():
        return split_kept_rows(path, manifest, comparison_share=0.4, rng=np.random.default_rng(3))

    before = split_rows()
    _, rows = read_archive(path)["turn", "7"]
    labelled_ids = set(read_labels(path))
    labels = [
        MachineLabel(str(row_id), "pi-1", str(y[int(row_id[:32], 16)]), "bench", NOW)
        for row_id in rows.ids
        if row_id not in labelled_ids
    ]
    archive = open_folder(path)
    assert set(add_machine_labels(archive, labels, shards_in(archive.path))) == {"added"}
    after = split_rows()
    assert after.comparison_labels.rows.ids.tolist() == before.comparison_labels.rows.ids.tolist()
    assert after.comparison_rows.ids.tolist() == before.comparison_rows.ids.tolist()
    fit_ids = set(after.fit_labels.rows.ids.tolist())
    assert fit_ids == set(after.fit_rows.ids.tolist())
    assert len(fit_ids) > 3 * len(before.fit_labels)
    # A machine label has the weight of its own instance only.
    is_machine = np.isin(after.fit_labels.rows.ids, [label.id for label in labels])
    weights = after.fit_labels.weights[is_machine]
    np.testing.assert_array_equal(weights, after.fit_labels.rows.weights[is_machine])
