"""A device with a stage of trees reads and charges the features that nodes test."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from gatewise.costs import request_bytes
from gatewise.decision import ALWAYS_STOP
from gatewise_edge.device.device import Device
from gatewise_edge.errors import SensorError
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.manifest_records import MissingSpec
from tests.support.lazy_bundle import (
    SURE_NO_ROW,
    SURE_YES_ROW,
    UNSURE_ROW,
    replace_files,
    write_lazy_bundle,
)
from tests.support.processes import run_python
from tests.support.small_bundle import answer_sample, cloud_answers

NAN = float("nan")
#: Prices of a request, of an evaluation of the high-cost model, and of a request's bytes.
OFFLOAD_PRICE = 0.25 + 0.5 + 0.001 * request_bytes(3)


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


def test_failing_sensor_ends_the_walk(lazy_bundle, tmp_path):
    def fail_to_read():
        raise OSError("no such bus")

    sensors, _ = make_sensors(SURE_YES_ROW, read_blood=fail_to_read)
    with Device(lazy_bundle, sensors=sensors) as device:
        with pytest.raises(SensorError, match="sensor 'blood' failed: OSError: no such bus"):
            device.answer()
        assert device.counters["errors"] == 1
    sensors, _ = make_sensors([0.1, 0, 1, 1, 1, 1], read_blood=fail_to_read)
    with Device(write_lazy_bundle(tmp_path / "two", is_second=True), sensors=sensors) as device:
        answer = device.answer()
    # The first stage answers, and the features acquired before are charged.
    assert (answer.route, answer.reason, answer.stage) == ("fallback", "sensor:blood", 0)
    assert (answer.acquired, answer.cost) == ((0, 1), 1.5)


def test_missing_and_infinite_values_that_a_node_tests_are_refused(lazy_bundle, tmp_path):
    with Device(lazy_bundle, link=InProcessLink(cloud_answers)) as device:
        for cell, problem in ((NAN, "missing"), (np.inf, "infinite"), (1e300, "infinite")):
            with pytest.raises(SensorError, match=f"column 'c' is {problem}"):
                device.answer([1.0, 0, cell, 0, 0, 0])
        # Features that no node tests are not checked.
        assert device.answer([-1.0, *[NAN] * 5]).cost == 1.0
        assert device.answer([-1.0, *[np.inf] * 5]).cost == 1.0
    link = InProcessLink(lambda X: cloud_answers(np.nan_to_num(X)))
    bundle_with_missing = write_lazy_bundle(
        tmp_path / "cloud-allows", missing=MissingSpec("refused", "allowed")
    )
    with Device(bundle_with_missing, link=link) as device:
        answer = device.answer([1.0, 0, NAN, 0, -1.0, 0])
    assert (answer.route, answer.reason, answer.acquired) == ("cloud", "missing", (0, 2, 4))


def test_allowed_missing_value_is_tested_and_charged(tmp_path):
    bundle = write_lazy_bundle(tmp_path / "lazy", missing=MissingSpec("allowed", "refused"))
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


WITHOUT_GRAPHS = """
import sys
from gatewise_edge import Device
with Device(sys.argv[1]) as device:
    assert device.answer([-1.0, 0, 0, 0, 0, 0]).cost == 1.0
assert not {"onnxruntime", "numba", "sklearn", "scipy"} & set(sys.modules), "heavy"
"""


@pytest.mark.slow
def test_bundle_with_only_trees_needs_neither_onnxruntime_nor_numba(lazy_bundle):
    document = json.loads(lazy_bundle.manifest.to_json())
    arrays = read_arrays(lazy_bundle.read("sample.npz"))
    sample = {name: array for name, array in arrays.items() if not name.startswith("cloud")}
    operating_points = [
        point | {"thresholds": [ALWAYS_STOP]} for point in document["operating_points"]
    ]
    (lazy_bundle.path / "cloud.onnx").unlink()
    bundle_without_cloud = replace_files(
        lazy_bundle,
        {"sample.npz": write_arrays(sample)},
        cloud=None,
        operating_points=operating_points,
    )
    run_python(WITHOUT_GRAPHS, bundle_without_cloud.path)
