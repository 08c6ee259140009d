"""Tests of ``gatewise inspect``, and of all commands on a broken bundle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatewise_export import Bundle
from gatewise_export.commands import bundle_tables
from tests.support.processes import run_python

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


def test_classes_without_a_recall_hide_no_class_of_low_recall(
    bundle: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    manifest = Bundle.open(bundle).manifest
    point = msgspec.structs.replace(
        manifest.active_point, recall=(None, 0.9, 0.5), precision=(None, 0.8, 0.7)
    )
    points = list(manifest.operating_points)
    points[manifest.active] = point
    monkeypatch.setattr(bundle_tables, "MAX_CLASSES_SHOWN", 2)
    bundle_tables.print_bundle(msgspec.structs.replace(manifest, operating_points=tuple(points)))
    # class 0 has no rows
    _, second_class, third_class = manifest.classes
    class_text = f"{second_class} 0.900 / 0.800, {third_class} 0.500 / 0.700, ..."
    assert class_text in capsys.readouterr().out


def test_inspect_prints_the_contents(bundle: Path, run_command: RunCommand) -> None:
    status, output, _ = run_command("inspect", bundle)
    assert status == 0
    for word in ("wine 1", "every hash is correct", "margins", "cloud", "1 groups"):
        assert word in output
    assert Bundle.open(bundle).manifest.stages[0].inputs[0] in output[output.index("acquires") :]
    status, output, _ = run_command("inspect", bundle, "--json")
    document = json.loads(output)
    assert document["manifest"] == json.loads((bundle / "manifest.json").read_text())
    assert document["bytes"] == sum(path.stat().st_size for path in bundle.iterdir()) - (
        (bundle / "manifest.json").stat().st_size
    )


def test_inspect_is_light_enough_for_a_device(bundle: Path) -> None:
    heavy_packages = (
        "{'sklearn', 'scipy', 'lightgbm', 'onnx', 'skl2onnx', 'matplotlib', 'numba', 'pandas'}"
    )
    program = (
        "import sys, contextlib, io\n"
        "from gatewise_export.commands.bundle_cli import inspect\n"
        "from pathlib import Path\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    inspect(Path({str(bundle)!r}))\n"
        f"print(sorted({heavy_packages} & {{m.split('.')[0] for m in sys.modules}}))"
    )
    assert run_python(program) == "[]"


@pytest.mark.parametrize("command", ["inspect", "frontier", "verify"])
def test_commands_refuse_broken_bundles(
    bundle: Path, assert_refused: AssertRefused, tmp_path: Path, command: str
) -> None:
    assert "does not exist" in assert_refused(command, tmp_path / "nowhere")
    (bundle / "cloud.onnx").write_bytes(b"something else")
    assert "cloud.onnx is not the file that was packed" in assert_refused(command, bundle)
    document = json.loads((bundle / "manifest.json").read_text())
    document["cloud"]["file"] = "../cloud.onnx"
    (bundle / "manifest.json").write_text(json.dumps(document))
    assert "cloud.file" in assert_refused(command, bundle)
