from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnxruntime
import pytest

from gatewise.decision import labels, probabilities
from gatewise.models.stage import Stage
from gatewise_export import ConversionError, to_onnx
from tests.support.bundle_files import assert_graph_answers, rows_as_table, run_onnx
from tests.support.trees import random_trees

pytestmark = pytest.mark.slow  # fits models or starts processes


def test_every_stage_as_a_graph_for_others(fitted: Any) -> None:
    system = fitted.system
    for stage in system.stages_:
        model = to_onnx(stage, n_features=fitted.rows.shape[1], classes=system.classes_)
        out = run_onnx(model, fitted.rows)
        assert list(out) == ["label", "probabilities", "score"]
        label, chances, score = out.values()
        margins, expected = stage.run(fitted.rows)
        assert label.tolist() == system.classes_[labels(margins)].tolist()
        assert np.allclose(chances, probabilities(margins, stage.link), atol=1e-6)
        assert np.array_equal(score, expected)
        props = {p.key: json.loads(p.value) for p in model.metadata_props}
        assert props["classes"] == system.classes_.tolist()


def test_every_system_as_one_graph(fitted: Any) -> None:
    system = fitted.system
    model = to_onnx(system)
    out = run_onnx(model, fitted.rows)
    assert (system.exit_stage(rows_as_table(system, fitted.rows)) < len(system.stages_)).any()
    assert_graph_answers(system, out, fitted.rows)
    props = {p.key: json.loads(p.value) for p in model.metadata_props}
    assert props["classes"] == system.classes_.tolist()


def test_a_graph_stands_at_the_operating_point_in_force(heart: Any) -> None:
    rates = set()
    points = heart.system.operating_points_
    for point in points[:: max(len(points) // 5, 1)]:
        system = heart.system.at(budget=point.cost)
        out = run_onnx(to_onnx(system), heart.rows)
        assert_graph_answers(system, out, heart.rows)
        rates.add(float(out["offload"].mean()))
    assert len(rates) > 1


def test_a_stage_alone_speaks_of_class_indices(heart: Any) -> None:
    stage = heart.system.stages_[0]
    label = run_onnx(to_onnx(stage, n_features=30), heart.rows)["label"]
    assert label.dtype == np.int64
    assert set(label.tolist()) <= {0, 1}
    with pytest.raises(ConversionError, match="say n_features"):
        to_onnx(stage)
    with pytest.raises(ConversionError, match="neither whole numbers nor text"):
        to_onnx(stage, n_features=30, classes=np.array([0.5, 1.5]))


def test_a_model_of_values_has_one_output() -> None:
    tried = 0
    for seed in range(40):
        trees, rows = random_trees(seed)
        if trees.n_outputs > 1 or not len(trees.used()):
            continue
        tried += 1
        stage = Stage.from_model(trees, "identity", acquisition="node")
        model = to_onnx(stage, n_features=trees.n_features)
        session = onnxruntime.InferenceSession(model.SerializeToString())
        assert [o.name for o in session.get_outputs()] == ["value"]
        one_by_one = [session.run(None, {"x": row[None]})[0] for row in rows]
        assert np.concatenate(one_by_one).tolist() == trees.margins(rows)[:, 0].tolist()
    assert tried > 3
