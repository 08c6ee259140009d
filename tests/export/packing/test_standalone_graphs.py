"""Exported graphs of stages and high-cost models answer as the models do."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from gatewise.decision import labels
from gatewise_export import ConversionError, to_onnx
from tests.support.bundle_files import run_onnx
from tests.support.fitted_systems import FittedSystem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cancer", "digits", "gated-trees", "gated-lines", "kernels"])
def test_a_stage_answers_as_in_training(
    fit_system: Callable[[str], FittedSystem], name: str
) -> None:
    fitted = fit_system(name)
    system = fitted.system
    x = np.asarray(fitted.rows, np.float32)
    for stage in system.stages_:
        graph = to_onnx(stage, n_features=x.shape[1], classes=system.classes_)
        out = run_onnx(graph.SerializeToString(), x)
        margins, score = stage.run(x)
        assert out["label"].tolist() == system.classes_[labels(margins)].tolist()
        assert np.array_equal(out["score"], score, equal_nan=True)
        assert out["probabilities"].shape == (len(x), len(system.classes_))
        assert json.loads(graph.metadata_props[0].value) == system.classes_.tolist()
        onnx.checker.check_model(graph, full_check=True)


def test_the_graph_of_a_high_cost_model_outputs_class_indices(cancer: FittedSystem) -> None:
    f0 = cancer.system.high_cost_model_
    x = np.asarray(cancer.rows, np.float32)
    out = run_onnx(to_onnx(f0).SerializeToString(), x[:, f0.features])
    expected = f0.answers(x)[0]
    class_indices = labels(out["margins"]) if "margins" in out else out["label"]
    assert class_indices.tolist() == expected.tolist()


def test_models_without_a_graph_are_refused(cancer: FittedSystem) -> None:
    system = cancer.system
    with pytest.raises(ConversionError, match="takes a Stage or a high-cost model"):
        to_onnx(system)
    with pytest.raises(ConversionError, match="give n_features"):
        to_onnx(system.stages_[0])
    with pytest.raises(ConversionError, match="neither whole numbers nor text"):
        to_onnx(system.stages_[0], n_features=99, classes=np.array([0.5, 1.5]))
