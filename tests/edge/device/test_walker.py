"""A stage that buys node by node: the bits of training, the price of the paths, and no more reads.

The hand-made bundle has a stage of one tree over a, c and d: ``a <= 0`` is a sure no; else
``c <= 0`` is a weak no; else ``d <= 0`` is a weak yes and above it a sure one. Where it is not
sure the cloud reads a, c and e. Feature c and d share the price of "blood".
"""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.costs import request_bytes
from gatewise.decision import ALWAYS_STOP
from gatewise.models.trees import TreeEnsemble
from gatewise_edge.device import walker
from gatewise_edge.device.device import Device
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.walker import Walker
from gatewise_edge.errors import SelfTestError, SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle, BundleError
from gatewise_export.bundle.flat_models import read_model, write_model
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.support.bundle_files import replace_file
from tests.support.processes import run_python
from tests.support.small_bundle import answer_sample, cloud_says
from tests.support.trees import random_trees

NAN = float("nan")
OFFLOAD = 0.25 + 0.5 + 0.001 * request_bytes(3)
INPUTS = ("a", "c", "d")
EASY = [-1.0, 9, 9, 9, 9, 9]
SURE = [1.0, 9, 1.0, 1.0, 9, 9]
HARD = [1.0, 9, -1.0, 9, -1.0, 9]


def write_trees(trees: TreeEnsemble) -> bytes:
    return write_model(trees.canonical())


def tree(**changes) -> TreeEnsemble:
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
    """Put files into a bundle, and a manifest that vouches for them."""
    for name, content in files.items():
        replace_file(bundle.path, name, content)
    document = json.loads((bundle.path / "manifest.json").read_text()) | fields
    names = [[s[key] for key in ("arrays", "graph") if key in s] for s in document["stages"]]
    used = {name for own in names for name in own} | {"sample.npz"}
    if document["cloud"] is not None:
        used.add(document["cloud"]["file"])
    else:
        document["largest_request"] = 0
    document["files"] = {k: v for k, v in document["files"].items() if k in used}
    for stage, own in zip(document["stages"], names, strict=True):
        stage["bytes"] = sum(document["files"][name]["size"] for name in own)
    (bundle.path / "manifest.json").write_text(json.dumps(document))
    return Bundle.open(bundle.path)


@pytest.fixture
def make_lazy(make_bundle):
    """Make the hand-made bundle; with `second`, the small bundle's first stage comes before."""

    def make(name: str = "lazy", *, second: bool = False, trees: TreeEnsemble | None = None, **new):
        bundle = make_bundle(name, **new)
        trees = tree() if trees is None else trees
        document = json.loads(bundle.manifest.to_json())
        lazy = document["stages"][1] | {"kind": "lazy", "inputs": INPUTS}
        del lazy["graph"]
        sample = read_arrays(bundle.read("sample.npz"))
        x = sample["X"][:, [0, 2, 3]]
        number = 1 if second else 0
        sample[f"stage_{number}"] = trees.margins(x)
        sample[f"bought_{number}"] = trees.visited(x)
        return replace_files(
            bundle,
            {"stage_1.npz": write_trees(trees), "sample.npz": write_arrays(sample)},
            stages=[document["stages"][0], lazy] if second else [lazy],
            chains=[[0, 1] if second else [0]],
            operating_points=[
                p | {"thresholds": [1.0, 1.0] if second else [1.0]}
                for p in document["operating_points"]
            ],
        )

    return make


@pytest.fixture
def lazy(make_lazy) -> Bundle:
    return make_lazy()


# -- the walk ------------------------------------------------------------------------------


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), mixed=st.booleans(), listed=st.booleans())
def test_walker_gives_the_outputs_and_acquired_features_of_training(seed, mixed, listed):
    trees, rows = random_trees(seed, mixed=mixed)
    sizes = {"n_inputs": trees.n_features, "n_outputs": trees.n_outputs}
    flat = read_model(write_trees(trees), "lazy", "s.npz", **sizes)
    with pytest.MonkeyPatch.context() as patch:
        if not listed:
            patch.setattr(walker, "_MAX_LIST_NODES", 0)
        walk = Walker(flat).walk
    margins, visited = trees.margins(rows), trees.visited(rows)
    for x, expected, bought in zip(rows, margins, visited, strict=True):
        asked: list[int] = []

        def ask(column, x=x, asked=asked):
            asked.append(column)
            return float(x[column])

        out = walk(ask)
        assert out.shape == (1, trees.n_outputs)
        assert out.dtype == np.float32
        assert out[0].view(np.uint32).tolist() == expected.view(np.uint32).tolist()
        assert len(asked) == len(set(asked))
        assert sorted(asked) == np.flatnonzero(bought).tolist()


# -- a device ------------------------------------------------------------------------------


def test_sample_has_the_costs_and_labels_of_training(lazy):
    with Device(lazy, link=InProcessLink(cloud_says)) as device:
        answers = answer_sample(device)
    assert len({a.cost for a in answers}) > 2


def sensors_of(row, **special):
    """Sensors that count their reads: one a feature, c and d by their group."""
    reads: list[str] = []
    values = dict(zip("abcdef", row, strict=True))

    def reader(name, give):
        def read():
            reads.append(name)
            return give()

        return read

    single = {n: reader(n, special.get(n, lambda n=n: values[n])) for n in "abef"}
    blood = special.get("blood", lambda: [values["c"], values["d"]])
    return Sensors(single, groups={"blood": reader("blood", blood)}), reads


@pytest.mark.parametrize(
    ("row", "reads", "label", "route", "acquired", "cost"),
    [
        (EASY, ["a"], "no", "edge", (0,), 1.0),
        # d comes with its group, and is paid only where it is tested
        (SURE, ["a", "blood"], "yes", "edge", (0, 2, 3), 1.0 + 2.0 + 3.0 + 10.0),
        (HARD, ["a", "blood", "e"], "no", "cloud", (0, 2, 4), 1.0 + 2.0 + 10.0 + 4.0 + OFFLOAD),
    ],
)
def test_a_feature_is_read_and_paid_when_a_node_tests_it(
    lazy, row, reads, label, route, acquired, cost
):
    sensors, seen = sensors_of(row)
    link = InProcessLink(cloud_says)
    with Device(lazy, link=link, sensors=sensors) as device:
        answers = device.answer(), device.answer(row)
    assert seen == reads
    for answer in answers:
        found = (answer.label, answer.route, answer.acquired, answer.cost)
        assert found == (label, route, acquired, cost)


def test_failing_sensor_ends_the_walk(lazy, make_lazy):
    def broken():
        raise OSError("no such bus")

    sensors, _ = sensors_of(SURE, blood=broken)
    with Device(lazy, sensors=sensors) as device:
        with pytest.raises(SensorError, match="sensor 'blood' failed: OSError: no such bus"):
            device.answer()
        assert device.counters["errors"] == 1
    sensors, _ = sensors_of([0.1, 0, 1, 1, 1, 1], blood=broken)
    with Device(make_lazy("two", second=True), sensors=sensors) as device:
        answer = device.answer()
    # the first stage's answer stands in, and what was bought till then is paid
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:blood", 0)
    assert (answer.acquired, answer.cost) == ((0, 1), 1.5)


@pytest.mark.parametrize("second", [True, False])
def test_blocking_sensor_ends_the_walk_at_the_deadline(make_lazy, second):
    gate = threading.Event()
    row = [0.1, 0, 1, 1, 1, 1] if second else SURE
    sensors, seen = sensors_of(row, blood=lambda: gate.wait(60) and [1.0, 1.0])
    with Device(make_lazy(second=second), sensors=sensors, deadline_ms=100) as device:
        started = time.monotonic()
        if second:
            answer = device.answer()
            assert (answer.route, answer.reason) == ("fallback", "sensor-late:blood")
            assert (answer.stage, answer.cost) == (0, 1.5)
        else:
            with pytest.raises(SensorError, match="did not answer in time"):
                device.answer()
        assert time.monotonic() - started < 30
        gate.set()
    assert seen == (["a", "b", "blood"] if second else ["a", "blood"])


def test_values_that_are_refused(lazy, make_lazy):
    with Device(lazy, link=InProcessLink(cloud_says)) as device:
        for value, says in ((NAN, "missing"), (np.inf, "infinite"), (1e300, "infinite")):
            with pytest.raises(SensorError, match=f"column 'c' is {says}"):
                device.answer([1.0, 0, value, 0, 0, 0])
        # what no node tests is not looked at
        assert device.answer([-1.0, *[NAN] * 5]).cost == 1.0
        assert device.answer([-1.0, *[np.inf] * 5]).cost == 1.0
    link = InProcessLink(lambda X: cloud_says(np.nan_to_num(X)), allow_missing=True)
    both = make_lazy("both", missing=MissingSpec("refused", "allowed"))
    with Device(both, link=link) as device:
        answer = device.answer([1.0, 0, NAN, 0, -1.0, 0])
    assert (answer.route, answer.reason, answer.acquired) == ("cloud", "missing", (0, 2, 4))


def test_allowed_missing_value_is_walked_and_paid(make_lazy):
    bundle = make_lazy(missing=MissingSpec("allowed", "refused"))
    with Device(bundle, link=InProcessLink(cloud_says)) as device:
        first = device.answer([NAN, 0, 1.0, 1.0, 0, 0])  # NaN goes right at a
        assert (first.route, first.label, first.cost) == ("edge", "yes", 16.0)
        second = device.answer([1.0, 0, NAN, 1.0, 1.0, 0])  # and left at c, which is not sure
        assert (second.route, second.reason, second.cost) == ("fallback", "missing:c", 17.0)
        with pytest.raises(SensorError, match="infinite"):
            device.answer([-np.inf, 0, 0, 0, 0, 0])


def test_several_threads_walk_at_a_time(lazy):
    rows = [EASY, SURE]

    def ask(seed: int) -> None:
        for i in np.random.default_rng(seed).integers(0, 2, 300):
            assert device.answer(rows[i]).cost == (1.0, 16.0)[i]

    with Device(lazy) as device, ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))


# -- bundles that lie ----------------------------------------------------------------------


def forged(bundle: Bundle, trees: TreeEnsemble) -> Bundle:
    return replace_files(bundle, {"stage_1.npz": write_trees(trees)})


def test_the_self_test_finds_other_margins(lazy):
    assert self_test(lazy) == 32
    value = tree().value.copy()
    value[6] = np.nextafter(value[6], np.float32(3))
    with pytest.raises(SelfTestError, match="gives other results") as caught:
        self_test(forged(lazy, tree(value=value)))
    assert set(caught.value.differences) == {"stage_0"}


def test_the_self_test_finds_other_acquired_features(lazy):
    # another tree tests c first, for nothing: the same margins at another price
    whole, before = tree(), {"feature": [1, -1, -1], "left": [1, -1, -1], "right": [2, -1, -1]}
    both = {
        name: np.concatenate([before.get(name, [0, 0, 0]), getattr(whole, name)])
        for name in ("feature", "threshold", "nan_left", "left", "right")
    }
    for side in ("left", "right"):
        both[side][3:] += 3 * (both[side][3:] >= 0)
    arrays = {name: both[name].astype(getattr(whole, name).dtype) for name in both}
    value = np.concatenate([np.zeros((3, 1), np.float32), whole.value])
    roots, output = np.array([0, 3], np.int32), np.zeros(2, np.int32)
    trees = replace(whole, **arrays, value=value, roots=roots, output=output)
    with pytest.raises(SelfTestError) as caught:
        Device(forged(lazy, trees))
    assert set(caught.value.differences) == {"bought_0"}


def test_trees_that_cannot_be_trusted_are_refused_in_one_line(lazy):
    sample = read_arrays(lazy.read("sample.npz"))
    arrays = read_arrays(lazy.read("stage_1.npz"))
    circle = arrays | {"left": np.array([0, -1, 3, -1, 5, -1, -1], np.int32)}
    for content, says in (
        (write_arrays(circle), "'left' must point to a later node of the same tree"),
        (write_arrays(arrays)[:-40], "cannot be read"),
        (b"no zip at all", "cannot be read"),
    ):
        with pytest.raises(BundleError, match=rf"^stage_1\.npz:? .*{says}") as caught:
            Device(replace_files(lazy, {"stage_1.npz": content}))
        assert "\n" not in str(caught.value)
    del sample["bought_0"]
    replace_files(lazy, {"stage_1.npz": write_trees(tree())})
    with pytest.raises(BundleError, match="lacks the array 'bought_0'"):
        Device(replace_files(lazy, {"sample.npz": write_arrays(sample)}))


WITHOUT_GRAPHS = """
import sys
from gatewise_edge import Device
with Device(sys.argv[1]) as device:
    assert device.answer([-1.0, 0, 0, 0, 0, 0]).cost == 1.0
assert not {"onnxruntime", "numba", "sklearn", "scipy"} & set(sys.modules), "heavy"
"""


@pytest.mark.slow
def test_a_bundle_of_trees_alone_needs_neither_onnxruntime_nor_numba(make_lazy):
    bundle = make_lazy()
    document = json.loads(bundle.manifest.to_json())
    arrays = read_arrays(bundle.read("sample.npz"))
    sample = {k: v for k, v in arrays.items() if not k.startswith("cloud")}
    points = [p | {"thresholds": [ALWAYS_STOP]} for p in document["operating_points"]]
    (bundle.path / "cloud.onnx").unlink()
    alone = replace_files(
        bundle,
        {"sample.npz": write_arrays(sample)},
        cloud=None,
        operating_points=points,
    )
    run_python(WITHOUT_GRAPHS, alone.path)
