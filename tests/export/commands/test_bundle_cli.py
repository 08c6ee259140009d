"""Tests of ``gatewise frontier``, ``inspect`` and ``verify``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from gatewise_export import Bundle
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.commands import bundle_tables
from gatewise_export.commands.manifest_frontier import print_frontier
from tests.support.bundle_files import read_contents, replace_file
from tests.support.processes import run_python
from tests.support.wine_table import load_wine_table, set_cell, write_changed_table

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


# -- frontier ------------------------------------------------------------------------------


def test_showing_the_frontier_changes_nothing(
    bundle: Path, run_command: RunCommand, assert_refused: AssertRefused
) -> None:
    files_before = read_contents(bundle)
    status, output, _ = run_command("frontier", bundle)
    assert status == 0
    assert "only one of" in assert_refused(
        "frontier", bundle, "--budget", "1", "--offload-rate", "0.5"
    )
    assert "nan" in assert_refused("frontier", bundle, "--max-loss", "nan")
    assert output.count("<- active") == 1
    status, output, _ = run_command("frontier", bundle, "--json")
    document = json.loads(output)
    manifest = Bundle.open(bundle).manifest
    assert document["active"] == manifest.active
    shown_costs = [point["cost"] for point in document["points"]]
    assert shown_costs == [point.cost for point in manifest.operating_points]
    assert read_contents(bundle) == files_before


@pytest.mark.parametrize("goal", ["budget", "max_loss", "offload_rate"])
def test_a_goal_switches_the_operating_point(
    bundle: Path, run_command: RunCommand, goal: str
) -> None:
    points = Bundle.open(bundle).manifest.operating_points
    goal_value = {
        "budget": points[0].cost,
        "max_loss": 1.0,
        "offload_rate": min(point.offload_rate for point in points),
    }[goal]
    files_before = read_contents(bundle)
    status, output, _ = run_command(
        "frontier", bundle, f"--{goal.replace('_', '-')}", goal_value, "--json"
    )
    assert status == 0
    files_after = read_contents(bundle)
    manifest = Bundle.open(bundle).manifest
    assert json.loads(output)["active"] == manifest.active
    if goal != "offload_rate":
        assert manifest.active == 0
    else:
        assert manifest.active_point.offload_rate == goal_value
    assert files_after.pop("manifest.json") != files_before.pop("manifest.json")
    assert files_after == files_before
    assert run_command("verify", bundle)[0] == 0


def test_plot_writes_a_picture(
    bundle: Path, run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    assert run_command("frontier", bundle, "--plot", tmp_path / "f.png")[0] == 0
    assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")
    message = assert_refused("frontier", bundle, "--budget", 0, "--plot", tmp_path / "f.txt")
    assert ".png, .svg or .pdf" in message


def test_only_points_within_max_bytes_are_chosen(
    bundle: Path, run_command: RunCommand, assert_refused: AssertRefused
) -> None:
    points = json.loads(run_command("frontier", bundle, "--json")[1])["points"]
    smallest_bytes = min(point["bytes"] for point in points)
    status, output, _ = run_command("frontier", bundle, "--max-bytes", smallest_bytes, "--json")
    document = json.loads(output)
    assert status == 0
    sizes_on_curve = {point["bytes"] for point in document["points"] if point["on_curve"]}
    assert sizes_on_curve == {smallest_bytes}
    status, output, _ = run_command(
        "frontier", bundle, "--max-bytes", smallest_bytes, "--max-loss", 1
    )
    assert status == 0
    assert "as C tables" in output
    manifest = Bundle.open(bundle).manifest
    assert manifest.active_point.bytes == smallest_bytes
    assert str(smallest_bytes) in assert_refused(
        "frontier", bundle, "--max-bytes", smallest_bytes - 1
    )
    assert "--max-bytes lots" in assert_refused("frontier", bundle, "--max-bytes", "lots")


def test_an_active_point_without_unused_stages_is_listed_once(bundle: Path, capsys: Any) -> None:
    """An active point whose stages that never stop were removed equals a point of the curve."""
    manifest = Bundle.open(bundle).manifest
    points = manifest.operating_points
    copied_point = msgspec.structs.replace(points[0], chain=len(manifest.chains))
    chains = (*manifest.chains, manifest.chains[points[0].chain])
    manifest_with_copy = msgspec.structs.replace(
        manifest, chains=chains, operating_points=(*points, copied_point), active=len(points)
    )
    print_frontier(manifest_with_copy, hull_only=False)
    (active_line,) = (line for line in capsys.readouterr().out.splitlines() if "<- active" in line)
    assert active_line.split()[0] == str(len(points))
    assert "hull" in active_line
    assert "off the curve" not in active_line


# -- inspect -------------------------------------------------------------------------------


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
        "from gatewise_export.commands.bundle_cli import commands\n"
        "from pathlib import Path\n"
        "with contextlib.redirect_stdout(io.StringIO()):\n"
        f"    commands['inspect'](Path({str(bundle)!r}))\n"
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


# -- verify --------------------------------------------------------------------------------


def test_verify_compares_decisions_on_rows(
    wine_folder: Path, bundle: Path, run_command: RunCommand
) -> None:
    status, output, _ = run_command("verify", bundle)
    assert status == 0
    assert "the bundle's decisions agree" in output
    arguments = ["verify", bundle, "--data", wine_folder / "wine.csv", "--target", "cultivar"]
    status, output, _ = run_command(*arguments, "--json")
    document = json.loads(output)
    assert document["agrees"] is True
    figures = document["data"]
    assert (figures["rows"], figures["differing_decisions"], figures["max_margin_difference"]) == (
        178,
        0,
        0,
    )
    assert figures["accuracy"] > 0.8
    assert 0 <= figures["offload_rate"] <= 1
    load_wine_table().assign(spare=1.0).iloc[:, ::-1].to_csv(
        wine_folder / "reversed.csv", index=False
    )
    arguments[3] = wine_folder / "reversed.csv"  # columns are found by their names
    assert json.loads(run_command(*arguments, "--json")[1])["data"] == figures
    load_wine_table().drop(columns="cultivar").to_csv(wine_folder / "unlabelled.csv", index=False)
    arguments = ["verify", bundle, "--data", wine_folder / "unlabelled.csv"]
    assert (
        "note: " + str(arguments[3]) + " has no label, so accuracy is not measured"
        in run_command(*arguments)[1]
    )
    figures_without_labels = json.loads(run_command(*arguments, "--json")[1])["data"]
    assert "accuracy" not in figures_without_labels
    del figures_without_labels["remarks"]
    assert figures.items() >= figures_without_labels.items()
    rows_in_grams = load_wine_table().assign(
        **{name: load_wine_table()[name] * 1000 for name in load_wine_table().columns[:1]}
    )
    rows_in_grams.to_csv(wine_folder / "grams.csv", index=False)
    output = run_command(
        "verify", bundle, "--data", wine_folder / "grams.csv", "--target", "cultivar"
    )[1]
    assert "of these 178 rows have values far outside the training ranges, most" in output
    assert f"often in column {rows_in_grams.columns[0]!r}" in output
    test_rows_command = [
        "verify",
        bundle,
        "--data",
        wine_folder / "bundle-test.csv",
        "--json",
    ]  # no --target
    figures = json.loads(run_command(*test_rows_command)[1])["data"]
    assert figures["rows"] == 36
    assert "remarks" not in figures


def test_a_bundle_with_other_decisions_fails_verify(bundle: Path, run_command: RunCommand) -> None:
    manifest = Bundle.open(bundle).manifest
    arrays = dict(read_arrays((bundle / "sample.npz").read_bytes()))
    arrays["cloud_label"] = (arrays["cloud_label"] + 1) % manifest.n_classes
    replace_file(bundle, "sample.npz", write_arrays(arrays))
    status, output, _ = run_command("verify", bundle)
    assert status == 1
    assert "DIFFER: do not use it" in output
    status, output, _ = run_command("verify", bundle, "--json")
    assert status == 1
    assert json.loads(output)["agrees"] is False


def test_labels_of_another_type_are_the_same_classes(
    tmp_path: Path, run_command: RunCommand
) -> None:
    feature = np.arange(60.0)
    labels = np.select([feature < 20, feature < 40], ["1", "2"], "x")
    frame = pd.DataFrame({"a": feature, "b": feature[::-1], "label": labels})
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame[frame.label != "x"].to_csv(tmp_path / "some.csv", index=False)
    bundle_path = tmp_path / "bundle"
    run_command("train", tmp_path / "all.csv", "--method", "budget-forest", "--out", bundle_path)
    assert run_command("verify", bundle_path, "--data", tmp_path / "some.csv")[0] == 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda frame: frame.drop(columns="ash"), "no column 'ash'"),
        (set_cell("cultivar", "moon"), "label 'moon' is not among the bundle's classes"),
        (set_cell("hue", np.nan), "column 'hue' is empty (NaN)"),
        (set_cell("hue", "red"), "bad.csv, line 5: column 'hue': 'red' is not a number"),
        (
            lambda frame: frame[["cultivar", "hue"]],
            "no column 'alcohol' (and 3 more), which the bundle",
        ),
    ],
)
def test_rows_that_do_not_fit_the_bundle_are_refused(
    wine_folder: Path,
    bundle: Path,
    assert_refused: AssertRefused,
    edit: Callable[[pd.DataFrame], Any],
    message: str,
) -> None:
    arguments = [
        "verify",
        bundle,
        "--target",
        "cultivar",
        "--data",
        write_changed_table(wine_folder, edit),
    ]
    assert message in assert_refused(*arguments)
