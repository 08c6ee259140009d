"""skl2onnx with the project's converters gives what the estimators say, alone and in pipelines."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import skl2onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import gatewise_training as gt
from gatewise_export import ConversionError, register_converters, to_onnx
from gatewise_export.packing.skl2onnx_converters import ESTIMATORS
from tests.support.bundle_files import assert_graph_answers, run_onnx

pytestmark = pytest.mark.slow  # fits models or starts processes

X, Y = load_wine(return_X_y=True)
F0 = make_pipeline(StandardScaler(), LogisticRegression())
MODELS: dict[str, Any] = {
    "StagedCascade": gt.StagedCascade(
        F0, n_stages=3, families=("boosting", "linear"), effort="low", random_state=0
    ),
    "AdaptGBRT": gt.AdaptGBRT(F0, p_full=(0.3,), penalties=(0.01,), n_rounds=15, random_state=0),
    "AdaptLin": gt.AdaptLin(F0, p_full=(0.3,), penalties=(0.05,), random_state=0),
    "AdaptLstsq": gt.AdaptLstsq(F0, p_full=(0.3,), penalties=(0.05,), random_state=0),
    "L1Cascade": gt.L1Cascade(F0, random_state=0),
    "ConfidenceCascade": gt.ConfidenceCascade(F0, random_state=0),
    "BudgetForest": gt.BudgetForest(n_estimators=5, random_state=0),
    "BudgetPrune": gt.BudgetPrune(n_estimators=5, random_state=0),
    "GreedyMiser": gt.GreedyMiser(n_rounds=10, random_state=0),
    "CEGBClassifier": gt.CEGBClassifier(penalties=(0.05,), n_rounds=10, random_state=0),
    "CEGBClassifier-coupled": gt.CEGBClassifier(
        accounting="coupled", penalties=(0.05,), n_rounds=10, random_state=0
    ),
    "CEGBRegressor": gt.CEGBRegressor(
        accounting="coupled", penalties=(0.05,), n_rounds=10, random_state=0
    ),
    "CEGBRanker": gt.CEGBRanker(penalties=(0.05,), n_rounds=10, random_state=0),
}


def fit(name: str, x: Any) -> Any:
    fits, judges = np.arange(len(Y)) % 3 > 0, np.arange(len(Y)) % 3 == 0
    queries = np.arange(len(Y)) % 20
    if name == "CEGBRanker":
        held = (x[judges], Y[judges], queries[judges])
        return MODELS[name].fit(x[fits], Y[fits], qid=queries[fits], validation=held)
    return MODELS[name].fit(x[fits], Y[fits], validation=(x[judges], Y[judges]))


def test_every_estimator_of_the_project_is_known():
    tried = {name.split("-")[0] for name in MODELS}
    fitted = {n for n in gt.__all__ if hasattr(getattr(gt, n), "fit")}
    assert set(ESTIMATORS) == tried
    # Two given models are packed as they are; encoders and blocks belong to the bundle.
    assert fitted - tried == {"BlockFeatures", "PairCascade", "TableEncoder"}


@pytest.mark.parametrize("name", MODELS)
def test_alone_and_behind_a_scaler(name):
    register_converters()
    register_converters()  # again: nothing doubles
    scaler = StandardScaler().fit(X)
    scaled = scaler.transform(X)
    model = fit(name, scaled)
    narrow = scaled.astype(np.float32)
    own = run_onnx(to_onnx(model), narrow)
    assert_graph_answers(model, own, narrow)
    pipeline = make_pipeline(scaler, model)
    others = [
        run_onnx(skl2onnx.to_onnx(model, narrow), narrow),
        run_onnx(skl2onnx.to_onnx(model, scaled), scaled),  # float64 is rounded as in fit
        run_onnx(to_onnx(pipeline), X),
        run_onnx(skl2onnx.to_onnx(pipeline, X), X),
    ]
    for out in others:
        assert list(out) == list(own)
        for key, value in own.items():
            assert np.array_equal(out[key], value), key


def test_a_scaler_is_exact_in_float64_where_the_cast_matters():
    # seconds since 1970 and a hint of signal: a float32 step is 128 here
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 600)
    x = np.column_stack([1.7e9 + 40 * y + rng.normal(0, 20, 600), rng.normal(size=600) + y])
    model = gt.CEGBClassifier(penalties=(0.01,), n_rounds=15, random_state=0)
    pipeline = make_pipeline(StandardScaler(), model).fit(x, y)
    said = pipeline.predict(x)
    assert run_onnx(to_onnx(pipeline), x)["label"].tolist() == said.tolist()
    narrow = x.astype(np.float32)
    assert (pipeline.predict(narrow) != said).any()  # the float32 rows are other rows
    kinds = [("x", FloatTensorType([None, 2]))]
    register_converters()
    cast = run_onnx(skl2onnx.to_onnx(pipeline, initial_types=kinds), narrow)["label"]
    assert (cast != said).any()


def test_several_inputs_become_one_row():
    register_converters()
    model = fit("GreedyMiser", X)
    graph = skl2onnx.to_onnx(
        model, initial_types=[("a", FloatTensorType([None, 5])), ("b", FloatTensorType([None, 8]))]
    )
    x = X.astype(np.float32)
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    label = session.run(["label"], {"a": x[:, :5], "b": x[:, 5:]})[0]
    assert label.tolist() == model.predict(x).tolist()


def test_what_cannot_be_converted_is_named():
    x, y = load_diabetes(return_X_y=True)
    register_converters()
    model = gt.CEGBRegressor(penalties=(0.05,), n_rounds=5, random_state=0).fit(x, y)
    with pytest.raises(ConversionError, match="fitted on 10 columns, and the graph gives it 3"):
        skl2onnx.to_onnx(model, initial_types=[("x", FloatTensorType([None, 3]))])
    labels = np.where(y > 140, 1.0, 2.0)
    halves = gt.CEGBClassifier(penalties=(0.05,), n_rounds=5, random_state=0)
    with pytest.raises(ConversionError, match="neither whole numbers nor text"):
        to_onnx(halves.fit(x, labels))

    class Unknown(StandardScaler):
        pass

    with pytest.raises(ConversionError, match="skl2onnx cannot convert"):
        to_onnx(make_pipeline(Unknown(), model).fit(x, y))
