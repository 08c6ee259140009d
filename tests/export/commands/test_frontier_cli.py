"""Tests of ``gatewise frontier``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from gatewise_export import Bundle
from gatewise_export.commands.manifest_frontier import print_frontier
from tests.support.bundle_files import read_contents

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


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
