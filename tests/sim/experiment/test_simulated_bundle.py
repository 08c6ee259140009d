"""Tests of the operating point at which a bundle is simulated."""

import shutil

import pytest

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import repack
from gatewise_export.bundle.signing import keygen
from gatewise_sim.experiment.simulated_bundle import (
    bundle_at_goal,
    bundle_on_disk,
    frontier_points,
    open_complete_bundle,
)
from tests.support.bundle_files import read_contents

pytestmark = pytest.mark.slow


@pytest.fixture
def bundle(digits, tmp_path):
    """A copy of the small system's bundle."""
    shutil.copytree(digits.bundle.path, tmp_path / "bundle")
    return Bundle.open(tmp_path / "bundle")


@pytest.fixture
def other_bundle(bundle):
    """The bundle at another operating point than its active one."""
    chosen_bundle = bundle_at_goal(bundle, {"offload_rate": 0.1})
    assert chosen_bundle.manifest.active != bundle.manifest.active
    return chosen_bundle


def test_goal_chooses_the_same_point_as_the_estimator(digits, bundle):
    points = digits.system.frontier_.points
    for goal in ({"budget": points[2].cost}, {"offload_rate": 0.2}, {"max_loss": 0.03}):
        operating_point = bundle_at_goal(bundle, goal).manifest.active_point
        expected_point = digits.system.at(**goal).operating_point_
        assert (operating_point.cost, operating_point.accuracy) == (
            expected_point.cost,
            expected_point.accuracy,
        )
    assert bundle_at_goal(bundle, {}) is bundle
    with pytest.raises(InputError, match=r"no operating point costs at most 0\.001; the"):
        bundle_at_goal(bundle, {"budget": 0.001})


@pytest.mark.parametrize("is_archive", [False, True], ids=["directory", "gwb"])
def test_bundle_at_another_point_is_a_temporary_copy(bundle, other_bundle, tmp_path, is_archive):
    if is_archive:
        repack(bundle.path, tmp_path / "bundle.gwb")
        other_bundle = Bundle.open(tmp_path / "bundle.gwb").with_active(
            other_bundle.manifest.active
        )
    contents_before = read_contents(bundle.path)
    with bundle_on_disk(other_bundle) as path:
        assert path != other_bundle.path
        opened_bundle = Bundle.open(path)
        assert opened_bundle.manifest == other_bundle.manifest
        assert opened_bundle.read(opened_bundle.manifest.stages[0].arrays)
    assert not path.exists()
    assert read_contents(bundle.path) == contents_before
    assert Bundle.open(other_bundle.path).manifest.active == bundle.manifest.active


def test_signed_bundle_is_not_changed_to_another_point(bundle, other_bundle, tmp_path):
    private_key_file, _ = keygen(tmp_path / "fleet")
    repack(bundle.path, tmp_path / "signed", sign=private_key_file)
    signed_bundle = Bundle.open(tmp_path / "signed")
    with bundle_on_disk(signed_bundle) as path:
        assert path == signed_bundle.path
    with (
        pytest.raises(InputError, match=r"is signed for another operating point.*--engine virtual"),
        bundle_on_disk(signed_bundle.with_active(other_bundle.manifest.active)),
    ):
        pass


def test_frontier_equals_the_frontier_of_the_estimator(digits, bundle):
    frontier = frontier_points(bundle)
    assert [point.cost for point in frontier.points] == [
        point.cost for point in digits.system.frontier_.points
    ]
    assert frontier.active.cost == digits.system.operating_point_.cost
    assert frontier.reference_accuracy == digits.system.frontier_.reference_accuracy
    assert all(point in frontier.points for point in frontier.hull)
    # recalls are keyed by the names of the classes
    assert list(frontier.active.recall) == [str(label) for label in digits.system.classes_]


def test_device_bundle_is_refused(bundle):
    assert open_complete_bundle(bundle.path).manifest == bundle.manifest
    (bundle.path / bundle.manifest.cloud.file).unlink()
    with pytest.raises(
        InputError, match=r"is a device's bundle, without cloud\.onnx: simulate the"
    ):
        open_complete_bundle(bundle.path)
