"""Learned stop scores and tiers in a bundle: the same bits, decisions, costs; clear refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from sklearn.datasets import load_wine, make_classification
from sklearn.ensemble import ExtraTreesClassifier

from gatewise.decision import split
from gatewise.models.kernel_machine import fit_kernel
from gatewise.models.linear import LinearModel
from gatewise.models.stop_score_model import PlainModel, ScoredModel, score_inputs
from gatewise.models.trees import TreeEnsemble
from gatewise_cloud.models.model import CloudModel
from gatewise_edge import Device, InProcessLink
from gatewise_export import Bundle, pack
from gatewise_export.bundle.errors import ManifestError
from gatewise_export.bundle.manifest import Manifest
from gatewise_export.onnx_files.flat_reader import read_flat
from gatewise_export.packing.onnx_graph import flat_graph
from gatewise_export.packing.to_onnx import to_onnx
from gatewise_export.packing.verify import self_test, verify, verify_graphs
from gatewise_training import CloudPrices, StagedCascade
from gatewise_training.cascades.fit_problem import Chain, Problem
from gatewise_training.cascades.stop_scores import with_stop_scores
from gatewise_training.learners.boosting import fit_boosting
from gatewise_training.learners.model_families import Bounds, judged_stage

K = 6
Floats = NDArray[np.float32]


def session(content: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def classifier(kind: str, n_classes: int) -> tuple[PlainModel, Floats]:
    """A fitted model of a kind and the rows that it reads."""
    X, y = load_wine(return_X_y=True)
    X, y = X[y < n_classes].astype(np.float32), y[y < n_classes]
    if kind == "boosting":
        return fit_boosting(X, y, n_classes, rounds=15)[0], X
    if kind == "forest":
        forest = ExtraTreesClassifier(7, random_state=0).fit(X, y)
        return TreeEnsemble.from_forest(forest), X
    if kind == "svm":
        return fit_kernel(X, y, n_classes, n_landmarks=30)[0], X
    rng = np.random.default_rng(0)
    outputs = 1 if n_classes == 2 else n_classes
    weights = rng.normal(size=(X.shape[1], outputs)).astype(np.float32)
    flat = LinearModel(X.mean(0), 1 / X.std(0), weights, np.ones(outputs, np.float32))
    return flat, X


def scored(model: PlainModel, X: Floats, seed: int = 0) -> ScoredModel:
    """Stop trees that read every kind of input; what they learned does not matter here."""
    inputs = score_inputs(X, model.margins(X))
    target = np.random.default_rng(seed).integers(0, 2, len(X)) | (inputs[:, -1] > 1)
    stop, _ = fit_boosting(inputs, target.astype(np.int64), 2, rounds=25, seed=seed)
    return ScoredModel(model, stop)


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("kind", ["boosting", "forest", "svm", "linear"])
def test_the_graph_gives_the_same_bits_and_reads_back(kind: str, n_classes: int) -> None:
    model, X = classifier(kind, n_classes)
    both = scored(model, X)
    content = flat_graph(both).SerializeToString()
    rng = np.random.default_rng(1)
    x = np.concatenate([X, (X[rng.permutation(len(X))] + rng.normal(size=X.shape)).astype("f4")])
    expected = both.margins(x)
    got = session(content).run(None, {"x": x})[0]
    assert got.dtype == np.float32
    assert np.array_equal(got.view(np.uint32), expected.view(np.uint32))
    assert len(np.unique(expected[:, -1])) > 20  # the trees do say something
    assert not np.array_equal(
        split(expected, "column")[1], score_inputs(x, expected[:, :-1])[:, -1]
    )
    again = read_flat(content)
    assert isinstance(again, ScoredModel)
    assert np.array_equal(again.margins(x), expected)


def test_missing_values_take_the_same_way() -> None:
    model, X = classifier("boosting", 3)
    x = X.copy()
    x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
    inputs = score_inputs(x, model.margins(x))
    stop, _ = fit_boosting(inputs, (x[:, 0] > 13).astype(np.int64), 2, rounds=10)
    both = ScoredModel(model, stop)
    got = session(flat_graph(both).SerializeToString()).run(None, {"x": x})[0]
    assert np.array_equal(got.view(np.uint32), both.margins(x).view(np.uint32))


class TwoLines(StagedCascade):
    """Two linear stages, two features and all, whose stop scores are always learned."""

    def _fit_chains(self, problem: Problem) -> list[Chain]:
        fits = [
            judged_stage(problem.plan, "linear", np.arange(k), problem.n_classes, 0, Bounds())
            for k in (2, K)
        ]
        chain = Chain(tuple(s for s, _ in fits), tuple(outputs for _, outputs in fits))
        (learned,) = with_stop_scores([chain], problem, Bounds())
        return self._placed([learned or chain])


def fit(n_classes: int = 2, **settings: Any) -> tuple[TwoLines, Floats]:
    """Fit; where x1 is large the labels are dealt at random."""
    X, y = make_classification(
        2200, K, n_informative=4, n_redundant=0, n_classes=n_classes, class_sep=1.2,
        n_clusters_per_class=1, random_state=0,
    )  # fmt: skip
    y = np.where(X[:, 1] > 1, np.random.default_rng(0).integers(0, n_classes, len(y)), y)
    X = X.astype(np.float32)
    f0 = ExtraTreesClassifier(20, min_samples_leaf=3, random_state=0)
    system = TwoLines(f0, random_state=0, **settings)
    return system.fit(X[:1600], y[:1600]), X[1600:]


@pytest.mark.parametrize("n_classes", [2, 3])
def test_device_and_witnesses_decide_as_the_system(n_classes: int, tmp_path: Path) -> None:
    system, X = fit(n_classes)
    assert all(isinstance(s.model, ScoredModel) for s in system.stages_)
    _halve(system, X)
    assert set(system.exit_stage(X)) == {0, 1, 2}
    bundle = pack(system, tmp_path / "bundle", sample=X[:40])
    assert [s.score for s in bundle.manifest.stages] == ["column", "column"]
    for report in (verify(system, bundle, X), verify_graphs(bundle, X), self_test(bundle)):
        assert report.agrees
        assert report.max_margin_difference == 0
    link = InProcessLink(CloudModel.from_bundle(bundle).answer)
    with Device(bundle, link=link, deadline_ms=10_000) as device:
        answers = [device.answer(row) for row in X[:200]]
    assert [a.stage for a in answers] == system.exit_stage(X[:200]).tolist()
    assert [a.label for a in answers] == system.predict(X[:200]).tolist()
    assert [a.cost for a in answers] == system.cost(X[:200]).tolist()


def test_the_friendly_graph_gives_the_learned_score() -> None:
    system, X = fit()
    stage = system.stages_[1]
    content = to_onnx(stage, n_features=K, classes=system.classes_).SerializeToString()
    label, _, score = session(content).run(["label", "probabilities", "score"], {"x": X})
    margins, expected = stage.run(X)
    assert np.array_equal(score, expected)
    assert np.array_equal(label, system.classes_[(margins[:, 0] > 0).astype(int)])


def _halve(system: TwoLines, X: Floats) -> None:
    """Let half of the rows go on at each stage."""
    halves = tuple(float(np.median(stage.run(X)[1])) for stage in system.stages_)
    system.operating_point_ = replace(system.operating_point_, thresholds=halves)


# -- tiers ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> tuple[TwoLines, Bundle, Floats]:
    prices = CloudPrices(request=1.0, byte=0.01, evaluation=9.0, gateway=0.25)
    system, X = fit(tiers=("device", "gateway"), cloud_prices=prices)
    _halve(system, X)
    return system, pack(system, tmp_path_factory.mktemp("tiers") / "b", sample=X[:40]), X


def test_a_bundle_places_stages_and_charges_as_the_system(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    system, bundle, X = tiered
    manifest = Manifest.from_json(bundle.manifest.to_json())
    assert manifest.tiers == ("device", "gateway")
    assert manifest.prices == system.cloud_prices_
    assert set(system.exit_stage(X)) == {0, 1, 2}
    for report in (verify(system, bundle, X), verify_graphs(bundle, X), self_test(bundle)):
        assert report.agrees
    gateway, cloud = manifest.exit_costs()[1:]
    assert gateway == pytest.approx(K + 1.0 + 0.01 * (60 + 4 * K) + 0.25)
    assert cloud == pytest.approx(gateway + 9.0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda d: d["stages"][0].update(tier="gateway"), "tier"),
        (lambda d: d["stages"][1].update(tier="fog"), "tier"),
        (lambda d: d.update(chains=[[1, 0]], operating_points=d["operating_points"][:1]), "tier"),
        (lambda d: d["stages"][1].update(kind="lazy"), "tier"),
        (lambda d: d["prices"].update(gateway=-1.0), "gateway"),
        (lambda d: d["prices"].update(ether=1.0), "prices"),
    ],
)
def test_manifests_with_impossible_places_are_refused(
    tiered: tuple[TwoLines, Bundle, Floats],
    change: Callable[[dict[str, Any]], Any],
    field: str,
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    change(document)
    with pytest.raises(ManifestError) as told:
        Manifest.from_json(json.dumps(document))
    assert field in str(told.value)


def test_without_a_cloud_all_stages_are_the_devices(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    del document["files"][document["cloud"]["file"]]
    document["cloud"] = None
    for point in document["operating_points"]:
        point["thresholds"][-1] = float(np.finfo(np.float32).min)
    with pytest.raises(ManifestError, match="no cloud model"):
        Manifest.from_json(json.dumps(document))


def test_old_manifests_have_no_price_of_a_gateway(
    tiered: tuple[TwoLines, Bundle, Floats],
) -> None:
    document = json.loads(tiered[1].manifest.to_json())
    del document["prices"]["gateway"]
    assert Manifest.from_json(json.dumps(document)).prices.gateway == 0.0
