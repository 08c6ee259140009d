"""Exported graphs of stages and high-cost models answer as the models do."""

from __future__ import annotations

import json
from collections.abc import Callable

import numpy as np
import onnx
import pytest

from gatewise.decision import labels
from gatewise_export import ConversionError, to_onnx
from gatewise_training import CEGBRegressor, FeatureCosts
from tests.support.bundle_files import run_onnx
from tests.support.fitted_systems import FittedSystem


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cancer", "digits", "gated-trees", "gated-lines", "kernels"])
def test_a_stage_answers_as_in_training(
    fit_system: Callable[[str], FittedSystem], name: str
) -> None:
    fitted_system = fit_system(name)
    system = fitted_system.system
    rows = np.asarray(fitted_system.rows, np.float32)
    for stage in system.stages_:
        graph = to_onnx(stage, n_features=rows.shape[1], classes=system.classes_)
        outputs = run_onnx(graph.SerializeToString(), rows)
        margins, scores = stage.run(rows)
        assert outputs["label"].tolist() == system.classes_[labels(margins)].tolist()
        assert np.array_equal(outputs["score"], scores, equal_nan=True)
        assert outputs["probabilities"].shape == (len(rows), len(system.classes_))
        assert json.loads(graph.metadata_props[0].value) == system.classes_.tolist()
        onnx.checker.check_model(graph, full_check=True)


@pytest.mark.slow
def test_the_graph_of_a_high_cost_model_outputs_class_indices(cancer_system: FittedSystem) -> None:
    f0 = cancer_system.system.high_cost_model_
    rows = np.asarray(cancer_system.rows, np.float32)
    outputs = run_onnx(to_onnx(f0).SerializeToString(), rows[:, f0.features])
    expected_indices, _ = f0.answers(rows)
    class_indices = labels(outputs["margins"]) if "margins" in outputs else outputs["label"]
    assert class_indices.tolist() == expected_indices.tolist()


def test_models_without_a_graph_are_refused(cancer_system: FittedSystem) -> None:
    system = cancer_system.system
    with pytest.raises(ConversionError, match="takes a Stage or a high-cost model"):
        to_onnx(system)
    with pytest.raises(ConversionError, match="give n_features"):
        to_onnx(system.stages_[0])
    with pytest.raises(ConversionError, match="neither whole numbers nor text"):
        to_onnx(system.stages_[0], n_features=99, classes=np.array([0.5, 1.5]))
    with pytest.raises(ConversionError, match="3 classes, but the stage has 2"):
        to_onnx(system.stages_[0], n_features=99, classes=np.arange(3))
    with pytest.raises(ConversionError, match="n_features=0, but the stage reads column"):
        to_onnx(system.stages_[0], n_features=0)


@pytest.mark.slow
def test_a_regressor_without_features_gives_its_constant_value() -> None:
    rows = np.arange(40.0, dtype=np.float32).reshape(20, 2)
    regressor = CEGBRegressor(feature_costs=FeatureCosts.uniform(2), budget=0.0)
    stage = regressor.fit(rows, rows[:, 0]).stages_[0]
    assert not stage.features.size
    outputs = run_onnx(to_onnx(stage, n_features=2).SerializeToString(), rows)
    margins, _ = stage.run(rows)
    assert outputs["value"].tolist() == margins[:, 0].tolist()
