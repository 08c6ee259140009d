"""A stage that acquires features node by node has the same bits and costs as in training.

The bundle of these tests has a stage of one tree over a, c and d. If ``a <= 0``, the answer is a
sure no; otherwise, if ``c <= 0``, a weak no; otherwise, if ``d <= 0``, a weak yes, and above it a
sure yes. If the stage is not sure, the cloud reads a, c and e. Features c and d share the price of
the group "blood".
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.costs import request_bytes
from gatewise.decision import ALWAYS_STOP
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device import tree_walker
from gatewise_edge.device.device import Device
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.tree_walker import TreeWalker
from gatewise_edge.errors import SelfTestError, SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle, BundleError
from gatewise_export.bundle.flat_models import read_model, write_model
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.support.bundle_files import replace_file
from tests.support.processes import run_python
from tests.support.small_bundle import answer_sample, cloud_answers
from tests.support.trees import draw_trees

NAN = float("nan")
#: Prices of a request, of an evaluation of the high-cost model, and of a request's bytes.
OFFLOAD_PRICE = 0.25 + 0.5 + 0.001 * request_bytes(3)
STAGE_INPUTS = ("a", "c", "d")
# Rows of a to f; no node tests a 9.
SURE_NO_ROW = [-1.0, 9, 9, 9, 9, 9]
SURE_YES_ROW = [1.0, 9, 1.0, 1.0, 9, 9]
UNSURE_ROW = [1.0, 9, -1.0, 9, -1.0, 9]


def write_trees(trees: TreeEnsemble) -> bytes:
    return write_model(trees.in_canonical_order())


def make_tree(**changes) -> TreeEnsemble:
    """Make the tree of these tests: the nodes 0, 2 and 4 test a, c and d, the others are leaves."""
    arrays = {
        "feature": np.array([0, -1, 1, -1, 2, -1, -1], np.int32),
        "threshold": np.zeros(7, np.float32),
        "left": np.array([1, -1, 3, -1, 5, -1, -1], np.int32),
        "right": np.array([2, -1, 4, -1, 6, -1, -1], np.int32),
        "nan_left": np.array([0, 0, 1, 0, 0, 0, 0], np.bool_),
        "value": np.array([[0], [-2], [0], [-0.1], [0], [0.1], [2]], np.float32),
        "roots": np.array([0], np.int32),
        "output": np.array([0], np.int32),
        "base": np.array([0], np.float32),
    }
    return TreeEnsemble(**arrays | changes, n_features=3)


def replace_files(bundle: Bundle, files: dict[str, bytes], **fields) -> Bundle:
    """Replace files of a bundle, fields of its manifest, and the hashes in it."""
    for name, content in files.items():
        replace_file(bundle.path, name, content)
    document = json.loads((bundle.path / "manifest.json").read_text()) | fields
    file_names_by_stage = [
        [stage[key] for key in ("arrays", "graph") if key in stage] for stage in document["stages"]
    ]
    used_files = {name for stage_files in file_names_by_stage for name in stage_files} | {
        "sample.npz"
    }
    if document["cloud"] is not None:
        used_files.add(document["cloud"]["file"])
    else:
        document["largest_request"] = 0
    document["files"] = {
        name: file_entry for name, file_entry in document["files"].items() if name in used_files
    }
    for stage, stage_files in zip(document["stages"], file_names_by_stage, strict=True):
        stage["bytes"] = sum(document["files"][name]["size"] for name in stage_files)
    (bundle.path / "manifest.json").write_text(json.dumps(document))
    return Bundle.open(bundle.path)


@pytest.fixture
def make_lazy_bundle(make_bundle):
    """Make the bundle; with `is_second` its stage follows the first stage of the small bundle."""

    def make_lazy_bundle(
        name: str = "lazy", *, is_second: bool = False, trees: TreeEnsemble | None = None, **changes
    ):
        bundle = make_bundle(name, **changes)
        trees = make_tree() if trees is None else trees
        document = json.loads(bundle.manifest.to_json())
        lazy_stage = document["stages"][1] | {"kind": "lazy", "inputs": STAGE_INPUTS}
        del lazy_stage["graph"]
        sample = read_arrays(bundle.read("sample.npz"))
        stage_rows = sample["X"][:, [0, 2, 3]]
        stage_index = 1 if is_second else 0
        sample[f"stage_{stage_index}"] = trees.margins(stage_rows)
        sample[f"bought_{stage_index}"] = trees.visited_features(stage_rows)
        return replace_files(
            bundle,
            {"stage_1.npz": write_trees(trees), "sample.npz": write_arrays(sample)},
            stages=[document["stages"][0], lazy_stage] if is_second else [lazy_stage],
            chains=[[0, 1] if is_second else [0]],
            operating_points=[
                point | {"thresholds": [1.0, 1.0] if is_second else [1.0]}
                for point in document["operating_points"]
            ],
        )

    return make_lazy_bundle


@pytest.fixture
def lazy_bundle(make_lazy_bundle) -> Bundle:
    return make_lazy_bundle()


# -- the walk ------------------------------------------------------------------------------


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), is_mixed=st.booleans(), uses_lists=st.booleans())
def test_walker_has_the_outputs_and_acquired_features_of_training(seed, is_mixed, uses_lists):
    trees, rows = draw_trees(seed, has_mixed_outputs=is_mixed)
    sizes = {"n_inputs": trees.n_features, "n_outputs": trees.n_outputs}
    flat_model = read_model(write_trees(trees), "lazy", "s.npz", **sizes)
    with pytest.MonkeyPatch.context() as patch:
        if not uses_lists:
            patch.setattr(tree_walker, "_MAX_LIST_NODES", 0)
        walk = TreeWalker(flat_model).walk
    margins, is_visited_by_row = trees.margins(rows), trees.visited_features(rows)
    for row, expected_margins, is_visited in zip(rows, margins, is_visited_by_row, strict=True):
        acquired_columns: list[int] = []

        def acquire(column, row=row, acquired_columns=acquired_columns):
            acquired_columns.append(column)
            return float(row[column])

        row_margins = walk(acquire)
        assert row_margins.shape == (1, trees.n_outputs)
        assert row_margins.dtype == np.float32
        assert row_margins[0].view(np.uint32).tolist() == expected_margins.view(np.uint32).tolist()
        assert len(acquired_columns) == len(set(acquired_columns))
        assert sorted(acquired_columns) == np.flatnonzero(is_visited).tolist()


# -- a device ------------------------------------------------------------------------------


def test_sample_has_the_costs_and_labels_of_training(lazy_bundle):
    with Device(lazy_bundle, link=InProcessLink(cloud_answers)) as device:
        answers = answer_sample(device)
    assert len({answer.cost for answer in answers}) > 2


def make_sensors(row, read_blood=None):
    """Make sensors for a row, with one sensor for c and d; return them and the list of reads."""
    reads: list[str] = []
    cells = dict(zip("abcdef", row, strict=True))

    def record_reads(name, read):
        def record_and_read():
            reads.append(name)
            return read()

        return record_and_read

    features = {name: record_reads(name, lambda name=name: cells[name]) for name in "abef"}
    blood = record_reads("blood", read_blood or (lambda: [cells["c"], cells["d"]]))
    return Sensors(features, groups={"blood": blood}), reads


@pytest.mark.parametrize(
    ("row", "expected_reads", "label", "route", "acquired", "cost"),
    [
        (SURE_NO_ROW, ["a"], "no", "edge", (0,), 1.0),
        # d is read with its group, and is charged only if a node tests it
        (SURE_YES_ROW, ["a", "blood"], "yes", "edge", (0, 2, 3), 1.0 + 2.0 + 3.0 + 10.0),
        (
            UNSURE_ROW,
            ["a", "blood", "e"],
            "no",
            "cloud",
            (0, 2, 4),
            1.0 + 2.0 + 10.0 + 4.0 + OFFLOAD_PRICE,
        ),
    ],
)
def test_feature_is_read_and_charged_when_a_node_tests_it(
    lazy_bundle, row, expected_reads, label, route, acquired, cost
):
    sensors, reads = make_sensors(row)
    link = InProcessLink(cloud_answers)
    with Device(lazy_bundle, link=link, sensors=sensors) as device:
        answers = device.answer(), device.answer(row)
    assert reads == expected_reads
    for answer in answers:
        assert (answer.label, answer.route) == (label, route)
        assert (answer.acquired, answer.cost) == (acquired, cost)


def test_failing_sensor_ends_the_walk(lazy_bundle, make_lazy_bundle):
    def fail_to_read():
        raise OSError("no such bus")

    sensors, _ = make_sensors(SURE_YES_ROW, read_blood=fail_to_read)
    with Device(lazy_bundle, sensors=sensors) as device:
        with pytest.raises(SensorError, match="sensor 'blood' failed: OSError: no such bus"):
            device.answer()
        assert device.counters["errors"] == 1
    sensors, _ = make_sensors([0.1, 0, 1, 1, 1, 1], read_blood=fail_to_read)
    with Device(make_lazy_bundle("two", is_second=True), sensors=sensors) as device:
        answer = device.answer()
    # The first stage answers, and the features acquired before are charged.
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:blood", 0)
    assert (answer.acquired, answer.cost) == ((0, 1), 1.5)


def test_missing_and_infinite_values_that_a_node_tests_are_refused(lazy_bundle, make_lazy_bundle):
    with Device(lazy_bundle, link=InProcessLink(cloud_answers)) as device:
        for cell, problem in ((NAN, "missing"), (np.inf, "infinite"), (1e300, "infinite")):
            with pytest.raises(SensorError, match=f"column 'c' is {problem}"):
                device.answer([1.0, 0, cell, 0, 0, 0])
        # Features that no node tests are not checked.
        assert device.answer([-1.0, *[NAN] * 5]).cost == 1.0
        assert device.answer([-1.0, *[np.inf] * 5]).cost == 1.0
    link = InProcessLink(lambda X: cloud_answers(np.nan_to_num(X)))
    bundle_with_missing = make_lazy_bundle(
        "cloud-allows", missing=MissingSpec("refused", "allowed")
    )
    with Device(bundle_with_missing, link=link) as device:
        answer = device.answer([1.0, 0, NAN, 0, -1.0, 0])
    assert (answer.route, answer.reason, answer.acquired) == ("cloud", "missing", (0, 2, 4))


def test_allowed_missing_value_is_tested_and_charged(make_lazy_bundle):
    bundle = make_lazy_bundle(missing=MissingSpec("allowed", "refused"))
    with Device(bundle, link=InProcessLink(cloud_answers)) as device:
        first_answer = device.answer([NAN, 0, 1.0, 1.0, 0, 0])  # NaN goes right at a
        assert (first_answer.route, first_answer.label, first_answer.cost) == ("edge", "yes", 16.0)
        # NaN goes left at c, to a weak no.
        second_answer = device.answer([1.0, 0, NAN, 1.0, 1.0, 0])
        assert (second_answer.route, second_answer.reason, second_answer.cost) == (
            "fallback",
            "missing:c",
            17.0,
        )
        with pytest.raises(SensorError, match="infinite"):
            device.answer([-np.inf, 0, 0, 0, 0, 0])


def test_several_threads_can_walk_at_the_same_time(lazy_bundle):
    rows = [SURE_NO_ROW, SURE_YES_ROW]

    def answer_rows(seed: int) -> None:
        for row_index in np.random.default_rng(seed).integers(0, 2, 300):
            # a 1; with c 2, d 3 and their group's 10 it is 16
            assert device.answer(rows[row_index]).cost == (1.0, 16.0)[row_index]

    with Device(lazy_bundle) as device, ThreadPoolExecutor(4) as pool:
        list(pool.map(answer_rows, range(4)))


# -- manipulated bundles -------------------------------------------------------------------


def with_other_trees(bundle: Bundle, trees: TreeEnsemble) -> Bundle:
    """Replace the trees of a bundle and their hash, so that only the self-test can detect it."""
    return replace_files(bundle, {"stage_1.npz": write_trees(trees)})


def test_self_test_detects_other_margins(lazy_bundle):
    assert self_test(lazy_bundle) == 32  # the rows of the sample
    leaf_values = make_tree().value.copy()
    leaf_values[6] = np.nextafter(leaf_values[6], np.float32(3))
    with pytest.raises(SelfTestError, match="gives other results") as error_info:
        self_test(with_other_trees(lazy_bundle, make_tree(value=leaf_values)))
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
        Device(with_other_trees(lazy_bundle, trees))
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
    replace_files(lazy_bundle, {"stage_1.npz": write_trees(make_tree())})
    with pytest.raises(BundleError, match="lacks the array 'bought_0'"):
        Device(replace_files(lazy_bundle, {"sample.npz": write_arrays(sample)}))


WITHOUT_GRAPHS = """
import sys
from gatewise_edge import Device
with Device(sys.argv[1]) as device:
    assert device.answer([-1.0, 0, 0, 0, 0, 0]).cost == 1.0
assert not {"onnxruntime", "numba", "sklearn", "scipy"} & set(sys.modules), "heavy"
"""


@pytest.mark.slow
def test_bundle_with_only_trees_needs_neither_onnxruntime_nor_numba(make_lazy_bundle):
    bundle = make_lazy_bundle()
    document = json.loads(bundle.manifest.to_json())
    arrays = read_arrays(bundle.read("sample.npz"))
    sample = {name: array for name, array in arrays.items() if not name.startswith("cloud")}
    operating_points = [
        point | {"thresholds": [ALWAYS_STOP]} for point in document["operating_points"]
    ]
    (bundle.path / "cloud.onnx").unlink()
    bundle_without_cloud = replace_files(
        bundle, {"sample.npz": write_arrays(sample)}, cloud=None, operating_points=operating_points
    )
    run_python(WITHOUT_GRAPHS, bundle_without_cloud.path)
