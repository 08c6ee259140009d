"""A device refuses trees that differ from those of the training, and malformed ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gatewise_edge.device.device import Device
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.errors import SelfTestError
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import BundleError
from tests.support.lazy_bundle import make_tree, replace_files, replace_trees


def test_self_test_detects_other_margins(lazy_bundle):
    assert self_test(lazy_bundle) == 32  # the rows of the sample
    leaf_values = make_tree().value.copy()
    leaf_values[6] = np.nextafter(leaf_values[6], np.float32(3))
    with pytest.raises(SelfTestError, match="gives other results") as error_info:
        self_test(replace_trees(lazy_bundle, make_tree(value=leaf_values)))
    assert set(error_info.value.differences) == {"stage_0"}


def test_self_test_detects_other_acquired_features(lazy_bundle):
    # A further tree tests c first and adds 0: the margins are the same, but the cost is not.
    original_tree = make_tree()
    first_tree = {"feature": [1, -1, -1], "left": [1, -1, -1], "right": [2, -1, -1]}
    nodes = {
        name: np.concatenate([first_tree.get(name, [0, 0, 0]), getattr(original_tree, name)])
        for name in ("feature", "threshold", "nan_left", "left", "right")
    }
    # The nodes of the original tree follow three new ones; a leaf has the child -1.
    for child_field in ("left", "right"):
        nodes[child_field][3:] += 3 * (nodes[child_field][3:] >= 0)
    arrays = {name: nodes[name].astype(getattr(original_tree, name).dtype) for name in nodes}
    trees = replace(
        original_tree,
        **arrays,
        value=np.concatenate([np.zeros((3, 1), np.float32), original_tree.value]),
        roots=np.array([0, 3], np.int32),
        output=np.zeros(2, np.int32),
    )
    with pytest.raises(SelfTestError) as error_info:
        Device(replace_trees(lazy_bundle, trees))
    assert set(error_info.value.differences) == {"bought_0"}


def test_malformed_trees_are_refused_with_a_message_of_one_line(lazy_bundle):
    sample = read_arrays(lazy_bundle.read("sample.npz"))
    arrays = read_arrays(lazy_bundle.read("stage_1.npz"))
    arrays_with_cycle = arrays | {"left": np.array([0, -1, 3, -1, 5, -1, -1], np.int32)}
    for content, message in (
        (write_arrays(arrays_with_cycle), "'left' must point to a later node of the same tree"),
        (write_arrays(arrays)[:-40], "cannot be read"),
        (b"no zip at all", "cannot be read"),
    ):
        with pytest.raises(BundleError, match=rf"^stage_1\.npz:? .*{message}") as error_info:
            Device(replace_files(lazy_bundle, {"stage_1.npz": content}))
        assert "\n" not in str(error_info.value)
    del sample["bought_0"]
    replace_trees(lazy_bundle, make_tree())
    with pytest.raises(BundleError, match="lacks the array 'bought_0'"):
        Device(replace_files(lazy_bundle, {"sample.npz": write_arrays(sample)}))
