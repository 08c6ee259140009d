"""Boosters that have no exact graph are packed as their libraries' model files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from catboost import CatBoostClassifier
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer

from gatewise.errors import InputError
from gatewise.graph_loading import GraphLoadError, LoadLimits, check_loads
from gatewise.models.booster_files import FILE_EXTENSIONS, LOADERS, BoosterFile
from gatewise_cloud.models.cloud_model import CloudModel
from gatewise_export import Bundle, pack, self_test, verify
from gatewise_export.bundle.repacking import repack
from gatewise_export.packing.converters import convert_and_probe
from gatewise_training import StagedCascade
from gatewise_training.learners.given_models.raw_boosters import write_library_file
from gatewise_training.learners.high_cost_model import HighCostModel

# A third of the rows and six columns, so that fits are fast. The first column holds categories,
# which are unordered whole numbers: 1, 4 and 6 for one class, 0, 2 and 5 for the other, and 3.
_ALL_ROWS, _ALL_LABELS = load_breast_cancer(return_X_y=True)
X = _ALL_ROWS[::3, :6].astype(np.float32)
LABELS = _ALL_LABELS[::3]
_CHOICES = np.random.default_rng(0).integers(0, 3, len(LABELS))
X[:, 0] = np.where(LABELS, np.array([1, 4, 6])[_CHOICES], np.array([0, 2, 5])[_CHOICES])
X[::7, 0] = 3
#: Options of LightGBM for a fast fit.
SMALL_BOOSTER = {"n_estimators": 8, "verbose": -1, "n_jobs": 1, "random_state": 0}


def fit_cancelling_leaves() -> Any:
    """Fit a model with leaves of 1e9 in its first tree and -1e9 in its last one.

    A float32 sum loses the leaves between them.
    """
    model = lightgbm.LGBMClassifier(**SMALL_BOOSTER).fit(X, LABELS)
    booster = model.booster_
    for tree_index, leaf_value in ((0, 1e9), (7, -1e9)):  # of eight trees
        n_leaves = booster.dump_model()["tree_info"][tree_index]["num_leaves"]
        for leaf in range(n_leaves):
            booster.set_leaf_output(tree_index, leaf, leaf_value)
    return model


MODELS: dict[str, Callable[[], Any]] = {
    "linear leaves": lambda: lightgbm.LGBMClassifier(linear_tree=True, **SMALL_BOOSTER).fit(
        X, LABELS
    ),
    "categories": lambda: lightgbm.LGBMClassifier(min_data_per_group=1, **SMALL_BOOSTER).fit(
        X, LABELS, categorical_feature=[0]
    ),
    "cancelling leaves": fit_cancelling_leaves,
    "linear booster": lambda: xgboost.XGBClassifier(
        n_estimators=8, booster="gblinear", n_jobs=1
    ).fit(X, LABELS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_booster_without_an_exact_graph_is_packed_as_a_library_file(
    name: str, tmp_path: Path, run_command: Callable[..., tuple[int, str, str]]
) -> None:
    model = MODELS[name]()
    system = StagedCascade(
        model, n_stages=1, families=("linear",), effort="low", offload_rate=0.5, random_state=0
    ).fit(X, LABELS, validation=(X, LABELS))
    bundle = pack(system, tmp_path / "b", sample=X[::9])
    cloud = bundle.manifest.cloud
    assert cloud is not None
    assert cloud.kind == ("xgboost" if name == "linear booster" else "lightgbm")
    assert cloud.file == f"cloud.{FILE_EXTENSIONS[cloud.kind]}"
    assert cloud.graph_problem
    if name == "cancelling leaves":
        assert "answers" in cloud.graph_problem
        assert "probed rows differently" in cloud.graph_problem
    assert cloud.probed is not None
    assert cloud.probed.rows > 4000
    assert verify(system, bundle, X).agrees
    assert self_test(Bundle.open(bundle.path)).agrees
    # A device does not fetch the high-cost model's file.
    assert repack(bundle.path, tmp_path / "d", for_device=True).absent_files() == (cloud.file,)
    # A worker answers with the library, and `inspect` names it.
    rows = X[:, bundle.manifest.cloud_inputs()]
    answers = CloudModel.from_bundle(bundle).answer(rows)
    assert answers.labels.tolist() == model.predict(rows).tolist()
    status, stdout, _ = run_command("inspect", tmp_path / "b")
    assert status == 0
    assert f"a model file of {cloud.kind}, which workers need" in " ".join(stdout.split())


@pytest.mark.slow
def test_a_library_file_is_loaded_within_limits_of_memory_and_time() -> None:
    model = MODELS["linear leaves"]()
    content = model.booster_.model_to_string().encode()
    with pytest.raises(GraphLoadError, match=r"MemoryError|memory|ended with status"):
        check_loads(
            content, X[:4], LoadLimits(bytes=1000, seconds=60), library="lightgbm", n_classes=2
        )


def test_a_booster_with_exact_trees_stays_a_graph() -> None:
    model = lightgbm.LGBMClassifier(**SMALL_BOOSTER).fit(X, LABELS)
    f0 = HighCostModel.from_model(model, np.unique(LABELS), X.shape[1])
    graph = convert_and_probe(f0, X[:64], allow_missing=False, n_rows=500)
    assert (graph.name, graph.kind, graph.graph_problem) == ("cloud.onnx", "margins", None)


def predict_with_file(model: Any) -> NDArray[np.float64]:
    """Write a model's file, and predict with the model that is read from it."""
    f0 = HighCostModel.from_model(model, np.unique(LABELS), X.shape[1])
    kind_and_content = write_library_file(f0)
    assert kind_and_content is not None
    return BoosterFile(*kind_and_content, 2).predict_proba(X)


def test_a_file_uses_the_best_rounds_after_early_stopping() -> None:
    early_stopped = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=2, n_jobs=1)
    early_stopped.fit(X[:100], LABELS[:100], eval_set=[(X[100:], 1 - LABELS[100:])], verbose=False)
    assert early_stopped.best_iteration < 5  # of 60
    catboost_model = CatBoostClassifier(
        iterations=8, verbose=0, thread_count=1, allow_writing_files=False
    ).fit(X, LABELS)
    for model in (early_stopped, catboost_model):
        np.testing.assert_allclose(predict_with_file(model), model.predict_proba(X), atol=1e-6)


def test_a_model_of_only_some_classes_has_no_library_file() -> None:
    model = lightgbm.LGBMClassifier(**SMALL_BOOSTER).fit(X, LABELS)
    assert write_library_file(HighCostModel.from_model(model, np.array([1, 0]), X.shape[1])) is None
    assert write_library_file(HighCostModel.from_model(model, np.arange(3), X.shape[1])) is None


@pytest.mark.parametrize("library", LOADERS)
def test_a_file_that_its_library_cannot_read_is_refused(library: Any) -> None:
    with pytest.raises(InputError, match=f"{library} cannot read the model"):
        BoosterFile(library, b"{}", 2)


def test_a_file_with_another_number_of_classes_is_refused() -> None:
    model = lightgbm.LGBMClassifier(**SMALL_BOOSTER).fit(X, LABELS)
    booster = BoosterFile("lightgbm", model.booster_.model_to_string().encode(), 3)
    with pytest.raises(InputError, match=f"for {len(LABELS)} rows and 3 classes"):
        booster.predict_proba(X)
