"""Checks that find bundles that differ from their system or are damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from gatewise.errors import InputError
from gatewise_export import Bundle, BundleError, pack, self_test, verify, verify_graphs
from gatewise_export.bundle.flat_models import write_model
from gatewise_export.bundle.repacking import repack
from gatewise_export.onnx_writer import write_graph
from gatewise_export.packing.verification import run_graph
from tests.support.bundle_files import replace_file
from tests.support.machine_table import draw_machines, make_raw_bundle
from tests.support.onnx_graphs import node, one_output_graph

pytestmark = pytest.mark.slow  # fits models or starts processes


def replace_bundle_file(bundle: Bundle, name: str, content: bytes) -> Bundle:
    """Replace a file of a bundle, with a manifest that lists its hash."""
    replace_file(bundle.path, name, content)
    return Bundle.open(bundle.path)


def test_verify_detects_an_altered_weight(fit_system: Any, tmp_path: Path) -> None:
    fitted_system = fit_system("gated-lines")
    bundle = pack(fitted_system.system, tmp_path / "bundle", sample=fitted_system.rows)
    stage_spec = bundle.manifest.stages[0]
    model = bundle.read_model(stage_spec)
    model = replace(model, bias=model.bias + np.float32(0.5))
    replace_bundle_file(bundle, stage_spec.arrays, write_model(model))
    bundle = replace_bundle_file(bundle, stage_spec.graph, write_graph(model))
    # The margins of all classes are shifted by 0.5, and rounded.
    assert self_test(bundle).max_margin_difference == pytest.approx(0.5)
    assert verify(fitted_system.system, bundle, fitted_system.rows).max_margin_difference > 0.4


def test_verify_encodes_raw_rows(make_once: Any) -> None:
    system, encoder, path = make_once("raw-bundle", make_raw_bundle)
    bundle = Bundle.open(path)
    frame = draw_machines(30, seed=2)[0]
    assert verify(system, bundle, frame) == verify(system, bundle, encoder.transform(frame))
    assert verify(system, bundle, frame).agrees
    with pytest.raises(InputError, match="rows must hold numbers"):
        verify(system, bundle, frame.to_numpy())
    with pytest.raises(InputError, match="not a DataFrame"):
        verify(path, frame, None)  # type: ignore[arg-type]


def test_the_self_test_detects_another_high_cost_model(fit_system: Any, tmp_path: Path) -> None:
    digits = fit_system("digits")
    bundle = pack(digits.system, tmp_path / "bundle", sample=digits.rows)
    model = onnx.load_model_from_string(bundle.read("cloud.onnx"))
    # Exchange the classes of the trees' leaves.
    targets = next(
        attribute for attribute in model.graph.node[0].attribute if attribute.name == "target_ids"
    )
    targets.ints[:] = [(class_index + 1) % 6 for class_index in targets.ints]
    bundle = replace_bundle_file(bundle, "cloud.onnx", model.SerializeToString())
    report = self_test(bundle)
    assert report.cloud_label_differences > 0
    assert report.cloud_probability_max_difference > 0.5
    assert report.max_margin_difference == 0


def test_verify_detects_a_graph_that_differs_from_its_arrays(
    cancer_system: Any, tmp_path: Path
) -> None:
    bundle = pack(cancer_system.system, tmp_path / "bundle", sample=cancer_system.rows[:20])
    first_stage = bundle.manifest.stages[0]
    last_stage = bundle.manifest.stages[-1]
    altered_bundle = replace_bundle_file(bundle, first_stage.graph, bundle.read(last_stage.graph))
    with pytest.raises(BundleError, match=f"{first_stage.graph} differs from the graph of"):
        verify_graphs(altered_bundle, cancer_system.rows)


def test_a_bundle_for_devices_is_verified_without_the_high_cost_model(
    fit_system: Any, tmp_path: Path, run_command: Any, assert_refused: Any
) -> None:
    kernels = fit_system("kernels")  # fitted on the data set wine
    pack(kernels.system, tmp_path / "full", sample=kernels.rows[:20])
    repack(tmp_path / "full", tmp_path / "device.gwb", for_device=True)
    status, output, _ = run_command("verify", tmp_path / "device.gwb")
    assert status == 0
    assert "not run: cloud.onnx" in output
    message = assert_refused("verify", tmp_path / "device.gwb", "--data", "wine")
    assert "is a bundle for devices, without cloud.onnx" in message


def test_a_graph_that_onnxruntime_refuses_is_an_error_without_log_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    graph = one_output_graph(node("Reshape", "x shape", "margins"), shape=np.array([1, 1]))
    with pytest.raises(BundleError, match=r"onnxruntime cannot run s: .*Reshape"):
        run_graph(graph, np.zeros((3, 2), np.float32), "s")
    assert capfd.readouterr() == ("", "")
