"""Tests of the operating point at which a bundle is simulated."""

import shutil

import pytest

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen
from gatewise_sim.experiment.simulated_bundle import at_goal, frontier_points, on_disk, open_whole
from tests.support.bundle_files import contents

pytestmark = pytest.mark.slow


@pytest.fixture
def packed(small, tmp_path):
    shutil.copytree(small.bundle.path, tmp_path / "bundle")
    return Bundle.open(tmp_path / "bundle")


@pytest.fixture
def other(packed):
    """Another operating point than the one in force."""
    found = at_goal(packed, {"offload_rate": 0.1})
    assert found.manifest.active != packed.manifest.active
    return found


def test_goal_chooses_the_same_point_as_the_estimator(small, packed):
    points = small.system.frontier_.points
    for goal in ({"budget": points[2].cost}, {"offload_rate": 0.2}, {"max_loss": 0.03}):
        point = at_goal(packed, goal).manifest.active_point
        wanted = small.system.at(**goal).operating_point_
        assert (point.cost, point.accuracy) == (wanted.cost, wanted.accuracy)
    assert at_goal(packed, {}) is packed
    with pytest.raises(InputError, match=r"no operating point costs at most 0\.001; the"):
        at_goal(packed, {"budget": 0.001})


@pytest.mark.parametrize("archive", [False, True], ids=["directory", "gwb"])
def test_another_point_is_a_temporary_copy(packed, other, tmp_path, archive):
    if archive:
        repack(packed.path, tmp_path / "bundle.gwb")
        other = Bundle.open(tmp_path / "bundle.gwb").with_active(other.manifest.active)
    before = contents(packed.path)
    with on_disk(other) as path:
        assert path != other.path
        opened = Bundle.open(path)
        assert opened.manifest == other.manifest
        assert opened.read(opened.manifest.stages[0].arrays)
    assert not path.exists()
    assert contents(packed.path) == before
    assert Bundle.open(other.path).manifest.active == packed.manifest.active


def test_signed_bundle_is_not_changed_to_another_point(packed, other, tmp_path):
    key, _ = keygen(tmp_path / "fleet")
    repack(packed.path, tmp_path / "signed", sign=key)
    signed = Bundle.open(tmp_path / "signed")
    with on_disk(signed) as path:
        assert path == signed.path
    with (
        pytest.raises(InputError, match=r"is signed for another operating point.*--engine virtual"),
        on_disk(signed.with_active(other.manifest.active)),
    ):
        pass


def test_frontier_equals_that_of_the_estimator(small, packed):
    points = frontier_points(packed)
    assert [p.cost for p in points.points] == [p.cost for p in small.system.frontier_.points]
    assert points.active.cost == small.system.operating_point_.cost
    assert points.reference_accuracy == small.system.frontier_.reference_accuracy
    assert all(point in points.points for point in points.hull)
    # Recalls carry the names of the classes.
    assert list(points.active.recall) == [str(label) for label in small.system.classes_]


def test_device_bundle_is_refused(packed):
    assert open_whole(packed.path).manifest == packed.manifest
    (packed.path / packed.manifest.cloud.file).unlink()
    with pytest.raises(
        InputError, match=r"is a device's bundle, without cloud\.onnx: simulate the"
    ):
        open_whole(packed.path)
