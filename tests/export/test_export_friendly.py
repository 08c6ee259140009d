from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest

from gatewise_export import ConversionError, to_onnx
from gatewise_training.decision import labels, probabilities
from gatewise_training.stage import Stage


def run(model: Any, x: Any) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more threads add up the trees in another order
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert [o.name for o in session.get_outputs()] == ["label", "probabilities", "score"]
    out: list[Any] = session.run(None, {"x": x})
    return out


def test_every_stage_as_a_graph_for_others(fitted: Any) -> None:
    system = fitted.system
    for stage in system.stages_:
        model = to_onnx(stage, n_features=fitted.rows.shape[1], classes=system.classes_)
        label, chances, score = run(model, fitted.rows)
        margins, expected = stage.run(fitted.rows)
        assert label.tolist() == system.classes_[labels(margins)].tolist()
        assert np.allclose(chances, probabilities(margins, stage.link), atol=1e-6)
        assert np.array_equal(score, expected)
        props = {p.key: json.loads(p.value) for p in model.metadata_props}
        assert props["classes"] == system.classes_.tolist()


@pytest.mark.parametrize("name", ["gated-trees", "gated-lines", "lazy-forest", "miser"])
def test_a_system_of_one_stage(fit_system: Any, name: str) -> None:
    fitted = fit_system(name)
    system = fitted.system
    label, chances, score = run(to_onnx(system), fitted.rows)
    stays = system.exit_stage(fitted.rows) == 0
    assert stays.any()
    assert label[stays].tolist() == system.predict(fitted.rows)[stays].tolist()
    assert np.allclose(chances[stays], system.predict_proba(fitted.rows)[stays], atol=1e-6)
    threshold = np.float32(system.operating_point_.thresholds[0])
    assert ((score >= threshold) == stays).all()


def test_a_stage_alone_speaks_of_class_indices(heart: Any) -> None:
    label = run(to_onnx(heart.system.stages_[0], n_features=30), heart.rows)[0]
    assert label.dtype == np.int64
    assert set(label.tolist()) <= {0, 1}


def test_what_cannot_be_written(heart: Any) -> None:
    with pytest.raises(ConversionError, match="has 4 stages"):
        to_onnx(heart.system)
    stage = heart.system.stages_[0]
    with pytest.raises(ConversionError, match="say n_features"):
        to_onnx(stage)
    with pytest.raises(ConversionError, match="neither whole numbers nor text"):
        to_onnx(stage, n_features=30, classes=np.array([0.5, 1.5]))


def test_a_model_of_values_has_one_output(random_trees: Any) -> None:
    tried = 0
    for seed in range(40):
        trees, rows = random_trees(seed)
        if trees.n_outputs > 1 or not len(trees.used()):
            continue
        tried += 1
        stage = Stage.of(trees, "identity", acquisition="node")
        model = to_onnx(stage, n_features=trees.n_features)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        assert [o.name for o in session.get_outputs()] == ["value"]
        one_by_one = [session.run(None, {"x": row[None]})[0] for row in rows]
        assert np.concatenate(one_by_one).tolist() == trees.margins(rows)[:, 0].tolist()
    assert tried > 3
