"""Tests of packed bundles: they decide as their system, and only bundles are overwritten."""

from __future__ import annotations

import copy
import errno
import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer
from sklearn.tree import DecisionTreeClassifier

from gatewise.errors import GatewiseError, InputError
from gatewise_export import Bundle, pack, self_test, set_operating_point, verify, verify_graphs
from gatewise_export.bundle.errors import BundleError, ConversionError
from gatewise_export.packing import bundle_writer
from gatewise_training import StagedCascade
from gatewise_training.learners.given_models import sklearn_transformers
from tests.support.bundle_files import read_contents

pytestmark = pytest.mark.slow  # fits models or starts processes


@pytest.fixture
def small_system(fit_system: Any) -> Any:
    """A system that is packed fast."""
    return fit_system("alone")


def list_leftover_files(path: Path) -> list[str]:
    """List the files beside a bundle."""
    return [sibling.name for sibling in path.parent.iterdir() if sibling != path]


# -- decisions -----------------------------------------------------------------------------


def test_all_operating_points_decide_every_row_as_the_system(
    fitted_system: Any, packed_bundle: Bundle
) -> None:
    points = fitted_system.system.operating_points_
    active_index = packed_bundle.manifest.active
    for point_index in sorted({0, len(points) // 2, len(points) - 1, active_index}):
        system = copy.copy(fitted_system.system)
        if point_index != active_index:
            system.operating_point_ = points[point_index]
        bundle = packed_bundle.with_active(point_index)
        assert len(bundle.manifest.stages) == len(system.stages_)
        report = verify(system, bundle, fitted_system.rows)
        assert report.agrees
        assert report.rows == len(fitted_system.rows)
        assert (report.max_margin_difference, report.cloud_label_differences) == (0.0, 0)
        assert report.cloud_probability_max_difference < 1e-5  # float32 compared with float64
        assert self_test(bundle).agrees
    graph_report = verify_graphs(packed_bundle, fitted_system.rows)
    assert graph_report.agrees
    assert graph_report.max_margin_difference == 0.0


# -- the manifest --------------------------------------------------------------------------


def test_the_manifest_describes_the_system(fitted_system: Any, packed_bundle: Bundle) -> None:
    system = fitted_system.system
    manifest = packed_bundle.manifest
    assert (manifest.name, manifest.version) == ("wards", "7")
    assert manifest.feature_names == system.feature_names_
    costs = manifest.feature_costs()
    expected_costs = system.feature_costs_
    assert costs.names == system.feature_names_
    for field_name in ("own", "shared", "group"):
        assert getattr(costs, field_name).tolist() == getattr(expected_costs, field_name).tolist()
    assert manifest.cloud_prices() == system.cloud_prices_
    assert manifest.missing.stages == system.missing_["stages"]
    assert manifest.missing.cloud == system.missing_["cloud"]
    assert len(manifest.chains) == len(system.chains_)
    assert [len(chain) for chain in manifest.chains] == [len(chain) for chain in system.chains_]
    distinct_stages = {id(stage) for chain in system.chains_ for stage in chain}
    assert len(manifest.every_stage) == len(distinct_stages)
    for stage_index, stage in enumerate(system.stages_):
        assert manifest.stage_inputs(stage_index).tolist() == stage.features.tolist()
        assert manifest.stages[stage_index].link == stage.link
        assert manifest.stages[stage_index].score == stage.score
    if system.high_cost_model_ is None:
        assert manifest.cloud is None
    else:
        assert manifest.cloud_inputs().tolist() == system.high_cost_model_.features.tolist()
    point = manifest.active_point
    assert point.cost == system.operating_point_.cost
    assert point.accuracy == system.operating_point_.accuracy
    assert manifest.reference_accuracy == system.frontier_.reference_accuracy


# -- reproducible files --------------------------------------------------------------------


def test_the_same_system_gives_the_same_bytes(
    fitted_system: Any, packed_bundle: Bundle, tmp_path: Path
) -> None:
    date = datetime(2026, 2, 2, tzinfo=UTC)
    settings: dict[str, Any] = {"sample": fitted_system.rows, "name": "wards", "version": "7"}
    second_bundle = pack(fitted_system.system, tmp_path / "repeated", created=date, **settings)
    first_files = read_contents(packed_bundle.path)
    second_files = read_contents(second_bundle.path)
    first_manifest = json.loads(first_files.pop("manifest.json"))
    second_manifest = json.loads(second_files.pop("manifest.json"))
    assert first_files == second_files
    assert first_manifest.pop("created") != date.isoformat()
    assert second_manifest.pop("created") == date.isoformat()
    assert first_manifest == second_manifest


def test_switching_the_operating_point_changes_no_graph(cancer_system: Any, tmp_path: Path) -> None:
    table = pd.DataFrame(cancer_system.rows, columns=cancer_system.system.feature_names_)
    path = pack(cancer_system.system, tmp_path / "bundle", sample=table[:9]).path
    files_before = read_contents(path)
    assert verify(cancer_system.system, Bundle.open(path), table).agrees
    system = cancer_system.system
    # a cheaper point of the same stages
    active_point = system.operating_point_
    point_index, cheaper_point = next(
        (index, point)
        for index, point in enumerate(system.frontier_.points)
        if point.chain == active_point.chain and point.cost < active_point.cost
    )
    cheaper_system = system.at(budget=cheaper_point.cost)
    bundle = set_operating_point(path, point_index)
    files_after = read_contents(path)
    assert files_after.pop("manifest.json") != files_before.pop("manifest.json")
    assert files_after == files_before
    assert verify(cheaper_system, bundle, cancer_system.rows).agrees
    report = verify(cancer_system.system, bundle, cancer_system.rows)
    assert report.differing_costs >= report.differing_decisions > 0
    assert report.max_margin_difference == 0
    assert not report.agrees


def test_a_zip_holds_the_same_files(small_system: Any, tmp_path: Path) -> None:
    created = datetime(2026, 1, 1, tzinfo=UTC)
    folder = pack(
        small_system.system, tmp_path / "b", sample=small_system.rows[:9], created=created
    )
    archive = pack(
        small_system.system, tmp_path / "b.gwb", sample=small_system.rows[:9], created=created
    )
    assert archive.manifest == folder.manifest
    for name in folder.manifest.files:
        assert archive.read(name) == folder.read(name)
    archive_content = (tmp_path / "b.gwb").read_bytes()
    pack(small_system.system, tmp_path / "b.gwb", sample=small_system.rows[:9], created=created)
    assert (tmp_path / "b.gwb").read_bytes() == archive_content
    folder_bytes = sum(path.stat().st_size for path in (tmp_path / "b").iterdir())
    assert len(archive_content) < folder_bytes


# -- destination ---------------------------------------------------------------------------


def test_pack_replaces_an_existing_bundle(small_system: Any, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "bundle"
    path.mkdir(parents=True)  # an empty folder is accepted
    pack(small_system.system, path, sample=small_system.rows[:5], version="1")
    bundle = pack(small_system.system, path, sample=small_system.rows[:5], version="2")
    assert Bundle.open(path).manifest == bundle.manifest
    assert bundle.manifest.version == "2"
    assert list_leftover_files(path) == []


def test_a_link_stays_and_its_target_is_replaced(small_system: Any, tmp_path: Path) -> None:
    pack(small_system.system, tmp_path / "v1", sample=small_system.rows[:5])
    (tmp_path / "current").symlink_to("v1")
    pack(small_system.system, tmp_path / "current", sample=small_system.rows[:5], version="2")
    assert (tmp_path / "current").is_symlink()
    assert Bundle.open(tmp_path / "current").manifest.version == "2"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "v1"]


@pytest.mark.parametrize(
    ("name", "files", "message"),
    [
        ("notes", {"thesis.txt": "years of work"}, "is not a bundle"),
        ("notes", {"thesis.txt": "x", "manifest.json": '{"name": "an extension"}'}, "not a bundle"),
        ("b.gwb", {"x": ""}, "exists and is a directory"),
        ("data.gwb", "not a zip", "is not a bundle"),
        ("bundle", {"notes.txt": "mine"}, r"holds 'notes\.txt', which is not part of its bundle"),
    ],
)
def test_only_a_bundle_is_overwritten(
    small_system: Any, tmp_path: Path, name: str, files: dict[str, str] | str, message: str
) -> None:
    path = tmp_path / name
    if name == "bundle":
        pack(small_system.system, path, sample=small_system.rows[:5])
    if isinstance(files, str):
        path.write_text(files)
    else:
        path.mkdir(exist_ok=True)
        for file_name, content in files.items():
            (path / file_name).write_text(content)
    content_before = read_contents(path) if path.is_dir() else path.read_bytes()
    with pytest.raises(BundleError, match=message):
        pack(small_system.system, path, sample=small_system.rows[:5])
    assert content_before == (read_contents(path) if path.is_dir() else path.read_bytes())


# -- refused systems -----------------------------------------------------------------------


def test_probing_detects_a_wrong_converter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    X = X.astype(np.float32)
    system = StagedCascade(
        make_pipeline(Normalizer("max"), DecisionTreeClassifier(max_depth=4, random_state=0)),
        n_stages=1, families=("linear",), random_state=0,
    ).fit(X, y)  # fmt: skip
    path = tmp_path / "bundle"
    path.mkdir()
    probed = pack(system, path, sample=X[:32]).manifest.cloud.probed
    assert probed.rows == sum(probed.kinds.values()) > 4000
    assert {"one critical value", "sides of a boundary"} < set(probed.kinds)

    def divide_by_largest(model: Any, rows: Any) -> Any:
        """ONNX's own operator does this; scikit-learn divides by the largest absolute value."""
        return rows / rows.max()

    monkeypatch.setitem(sklearn_transformers.TRANSFORMER_WRITERS, "Normalizer", divide_by_largest)
    message = r"Pipeline answers \d+ of \d+ probed rows differently; .* as class .* --backend"
    with pytest.raises(ConversionError, match=message):
        pack(system, tmp_path / "other", sample=X[:32])  # the sample has no negative values
    assert list_leftover_files(path) == []


def test_a_stage_that_is_too_large_for_devices_is_refused(
    small_system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundle_writer, "MAX_MODEL_BYTES", 100)
    message = r"files of at most 100 B.* stage_0\.npz of [0-9]+ B.*: fit with max_bytes="
    with pytest.raises(InputError, match=message):
        pack(small_system.system, tmp_path / "b", sample=small_system.rows)
    assert list_leftover_files(tmp_path / "b") == []


def test_a_failure_keeps_the_old_bundle(
    small_system: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = pack(small_system.system, tmp_path / "bundle", sample=small_system.rows[:5]).path
    files_before = read_contents(path)

    def raise_disk_full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", raise_disk_full)
    with pytest.raises(OSError, match="No space left"):
        pack(small_system.system, path, sample=small_system.rows[:5], version="2")
    assert read_contents(path) == files_before
    assert list_leftover_files(path) == []


def test_lazy_stages_acquire_features_on_the_path(fit_system: Any, tmp_path: Path) -> None:
    lazy_system = fit_system("lazy")
    system, rows = lazy_system.system, lazy_system.rows
    bundle = pack(system, tmp_path / "bundle", sample=rows[:20])
    sample = bundle.sample()
    for stage_index, (stage, spec) in enumerate(
        zip(system.stages_, bundle.manifest.stages, strict=True)
    ):
        assert (spec.kind, spec.graph) == ("lazy", None)
        acquired = stage.acquired(sample["X"])
        assert sample[f"bought_{stage_index}"].tolist() == acquired[:, stage.features].tolist()
        assert not acquired.all(axis=0)[stage.features].all()
    costs = system.cost(rows)
    upper_bounds = bundle.manifest.exit_costs()[system.exit_stage(rows)]
    assert (costs <= upper_bounds).all()
    assert np.mean(costs < upper_bounds) > 0.5  # most rows acquire only some features of a stage


def test_trees_with_invalid_thresholds_are_not_packed(fit_system: Any, tmp_path: Path) -> None:
    system = copy.copy(fit_system("lazy-forest").system)
    stage = system.stages_[0]
    threshold = stage.model.threshold.copy()
    threshold[0] = np.nan
    broken_stage = replace(stage, model=replace(stage.model, threshold=threshold))
    system.chains_ = tuple((broken_stage,) for _ in system.chains_)
    with pytest.raises(BundleError, match="the stage: 'threshold' holds values that") as error_info:
        pack(system, tmp_path / "deep" / "bundle", sample=fit_system("lazy-forest").rows[:5])
    assert len(str(error_info.value).splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": "a/b"}, "name .a/b. cannot be a level of MQTT topics"),
        ({"name": "x" * 65}, "name .x{65}. cannot be a level"),
        ({"version": ""}, "version .. cannot be a level"),
        ({"sample": np.zeros((0, 13))}, "rows of 13 features"),
        ({"sample": np.zeros((5, 12))}, "rows of 13 features"),
        ({"sample": np.zeros(13)}, "rows of 13 features"),
        ({"sample": [["hot"] * 13]}, "sample must hold numbers: .*'hot'; .* encoder="),
        ({"system": LinearRegression()}, "LinearRegression cannot be packed: .* fit StagedCascade"),
        ({"system": make_pipeline(LinearRegression())}, "an estimator on the columns"),
    ],
)
def test_systems_and_samples_that_cannot_be_packed_are_refused(
    small_system: Any, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    arguments = {"system": small_system.system, "sample": small_system.rows[:5]} | change
    with pytest.raises(GatewiseError, match=message) as error_info:
        pack(path=tmp_path / "bundle", **arguments)
    assert "\n" not in str(error_info.value)
    assert list(tmp_path.iterdir()) == []
