"""Bundles that answer with values: regressors and rankers, from manifest to device."""

from __future__ import annotations

import copy
import json
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_diabetes

from gatewise.cli import main
from gatewise.decision import answers, is_value, probabilities
from gatewise_edge import Device
from gatewise_edge.stages.stages import StageRunner
from gatewise_edge.stages.stages import self_test as device_self_test
from gatewise_export import (
    Bundle,
    ManifestError,
    pack,
    self_test,
    set_operating_point,
    verify,
    verify_graphs,
)
from gatewise_export.bundle.manifest import SAMPLE
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_training import CEGBRanker, CEGBRegressor, FeatureCosts

X, Y = load_diabetes(return_X_y=True)
X = X.astype(np.float32)
COSTS = FeatureCosts(np.linspace(0.2, 1.4, 10), group=["a"] * 4 + [None] * 6, shared={"a": 2})
QUERIES = np.arange(len(Y)) // 10
MODELS: dict[str, Any] = {
    "lazy": lambda: CEGBRegressor(COSTS, penalties=(0.1, 0.01), n_rounds=15, random_state=0),
    "coupled": lambda: CEGBRegressor(
        COSTS, accounting="coupled", penalties=(0.1, 0.01), n_rounds=15, random_state=0
    ),
    "missing": lambda: CEGBRegressor(
        COSTS, penalties=(0.02,), n_rounds=15, allow_missing=True, random_state=0
    ),
    "rank": lambda: CEGBRanker(COSTS, penalties=(0.02,), n_rounds=15, random_state=0),
}


def fit(name: str) -> tuple[Any, Any]:
    x = X.copy()
    if name == "missing":
        x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    if name == "rank":
        return MODELS[name]().fit(x, (Y > 150).astype(int), qid=QUERIES), x
    return MODELS[name]().fit(x, Y), x


@pytest.mark.parametrize("name", MODELS)
def test_a_device_gives_the_value_and_pays_as_the_estimator(name, tmp_path):
    model, x = fit(name)
    bundle = pack(model, tmp_path / "bundle.gwb", sample=x[:32])
    manifest = bundle.manifest
    assert manifest.task == ("rank" if name == "rank" else "regress")
    assert manifest.answers_values
    assert (manifest.classes, manifest.n_classes) == ((), 0)
    assert (manifest.link, manifest.cloud) == ("identity", None)
    assert manifest.reference_accuracy == model.frontier_.reference_accuracy
    for witness in (verify(model, bundle, x), verify_graphs(bundle, x), self_test(bundle)):
        assert witness.agrees
        assert witness.max_margin_difference == 0
    with Device(bundle) as device:
        said = [device.answer(row) for row in x]
    assert [a.label for a in said] == model.predict(x).tolist()
    assert {type(a.label) for a in said} == {float}
    assert {(a.class_index, len(a.probabilities), a.route, a.stage) for a in said} == {
        (-1, 0, "edge", 0)
    }
    assert [a.cost for a in said] == model.cost(x).tolist()


def test_the_runner_in_numpy_alone_says_the_same(tmp_path):
    model, x = fit("coupled")
    bundle = pack(model, tmp_path / "bundle", sample=x[:32])
    runner = StageRunner(bundle, runner="numpy")
    assert device_self_test(bundle, runner) == 32
    (output,) = runner.run_all(x)
    assert output.labels.dtype == np.float32
    assert output.labels.tolist() == model.predict(x).tolist()
    assert output.probabilities.shape == (len(x), 0)


def test_every_operating_point_goes_along(tmp_path):
    model, x = fit("lazy")
    bundle = pack(model, tmp_path / "bundle", sample=x[:32])
    points = bundle.manifest.operating_points
    assert [p.accuracy for p in points] == [p.accuracy for p in model.frontier_.points]
    assert len(points) > 1
    for number, point in enumerate(model.frontier_.points):
        other = model.at(budget=point.cost)
        moved = set_operating_point(tmp_path / "bundle", number)
        assert verify(other, moved, x).agrees
        assert device_self_test(moved) == 32
    assert "label" in moved.sample()
    assert moved.sample()["label"].dtype == np.float32


def test_a_wrong_value_in_the_sample_is_seen(tmp_path):
    model, x = fit("lazy")
    path = tmp_path / "bundle"
    bundle = pack(model, path, sample=x[:32])
    arrays = dict(np.load(path / SAMPLE))
    key = f"stage_{bundle.manifest.chains[bundle.manifest.active_point.chain][0]}"
    arrays[key] = np.nextafter(arrays[key], np.float32(np.inf))
    altered = {name: arrays[name] for name in arrays}

    from gatewise_export.bundle.decisions import expected_sample

    changed = expected_sample(bundle.manifest, altered)["label"]
    assert (changed != bundle.sample()["label"]).all()
    assert changed.tolist() == arrays[key][:, 0].tolist()


def test_a_value_has_no_probabilities():
    margins = np.array([[0.5], [-2.0]], np.float32)
    assert is_value(margins, "identity")
    assert not is_value(margins, "sigmoid")
    assert answers(margins, "identity").tolist() == [0.5, -2.0]
    assert answers(margins, "sigmoid").tolist() == [1, 0]
    assert probabilities(margins, "identity").shape == (2, 0)


def wrong(document: dict[str, Any], change: Any) -> str:
    document = copy.deepcopy(document)
    change(document)
    with pytest.raises(ManifestError) as caught:
        read_manifest(json.dumps(document))
    return str(caught.value)


def test_a_manifest_of_values_is_read_strictly(tmp_path):
    model, x = fit("coupled")
    bundle = pack(model, tmp_path / "bundle", sample=x[:32])
    document = bundle.manifest.to_document()
    assert read_manifest(json.dumps(document)).to_document() == document

    def put(*path: Any, value: Any) -> Any:
        def change(doc: Any) -> None:
            for key in path[:-1]:
                doc = doc[key]
            doc[path[-1]] = value

        return change

    assert "task" in wrong(document, put("task", value="cluster"))
    assert "classes" in wrong(document, put("classes", value=[0, 1]))
    assert "classes" in wrong(document, put("task", value="classify"))
    assert "stages[0]" in wrong(document, put("stages", 0, "link", value="softmax"))
    assert "stages[0]" in wrong(document, put("stages", 0, "outputs", value=2))
    assert "accuracy" in wrong(document, put("operating_points", 0, "accuracy", value=1.5))
    cloud = {"file": SAMPLE, "inputs": [], "kind": "margins", "link": "identity"}
    assert "cloud" in wrong(document, put("cloud", value=cloud))
    both = list(range(len(document["stages"])))
    if len(both) > 1:
        assert "chains" in wrong(document, put("chains", 0, value=both))

    poor = copy.deepcopy(document)
    poor["operating_points"][0]["accuracy"] = -0.25  # R² has no floor
    assert read_manifest(json.dumps(poor)).operating_points[0].accuracy == -0.25
    poor["task"] = "rank"
    with pytest.raises(ManifestError, match="accuracy"):
        read_manifest(json.dumps(poor))


@pytest.mark.parametrize("name", ["coupled", "rank"])
def test_the_command_line_speaks_of_scores(name, tmp_path, capsys):
    model, x = fit(name)
    path = tmp_path / "bundle"
    bundle = pack(model, path, sample=x[:32])
    columns = [*bundle.manifest.feature_names, "target"]
    table = tmp_path / "table.csv"
    rows = [",".join(columns)]
    rows += [",".join(map(repr, [*map(float, r), float(v)])) for r, v in zip(x, Y, strict=True)]
    table.write_text("\n".join(rows) + "\n")
    word = {"coupled": "R²", "rank": "AP@5"}[name]
    for command in (["inspect", str(path)], ["frontier", str(path)]):
        assert main(command) == 0
        printed = capsys.readouterr().out
        assert word in printed
        assert "accuracy" not in printed
    assert main(["verify", str(path), "--data", str(table), "--target", "target", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["agrees"]
    assert told["task"] == bundle.manifest.task
    assert told["data"]["rows"] == len(x)
    if name == "coupled":
        assert told["data"]["r2"] == pytest.approx(model.score(x, Y), abs=1e-9)
    else:
        assert "r2" not in told["data"]
    assert "accuracy" not in told["data"]
    assert told["data"]["cost"] == pytest.approx(model.cost(x).mean())
    Bundle.open(path)
