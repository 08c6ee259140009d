"""Values far outside the training range are named, counted and, if requested, offloaded."""

from __future__ import annotations

import numpy as np
import pytest

from gatewise.columns.value_ranges import TrainingRanges
from gatewise.errors import InputError
from gatewise_edge import Device
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.link.offload_rules import OffloadRules
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_export import Bundle, BundleError
from tests.support.machine_table import draw_machines, make_raw_bundle
from tests.support.small_bundle import HARD_ROW, SURE_ROW, cloud_answers, sample_rows, write_bundle
from tests.support.window_system import draw_windows, make_window_bundle, roughness

RANGES = TrainingRanges.of_rows(sample_rows(500))
# Stage 0 stops for both rows. The training rows have a standard deviation of 0.4.
ROW_WITH_FAR_A = [1000.0, 0, 0, 0, 0, 0]


@pytest.fixture(scope="module")
def bundle_with_ranges(tmp_path_factory):
    return write_bundle(
        tmp_path_factory.mktemp("bundle-with-ranges") / "bundle", ranges=RANGES.arrays()
    )


def replace_values(row, **values):
    """Copy a row and replace the values of some features."""
    changed_row = list(row)
    for name, value in values.items():
        changed_row["abcdef".index(name)] = value
    return changed_row


def test_reason_of_an_answer_names_the_implausible_feature(bundle_with_ranges):
    rows = [
        SURE_ROW,
        ROW_WITH_FAR_A,
        replace_values(SURE_ROW, f=1e9),
        replace_values(HARD_ROW, e=-9.0),
        replace_values(HARD_ROW, c=50.0),
    ]
    with Device(bundle_with_ranges, link=InProcessLink(cloud_answers)) as device:
        answers = [device.answer(row) for row in rows]
        assert [(answer.route, answer.reason) for answer in answers] == [
            ("edge", "stopped"),
            ("edge", "implausible:a"),
            ("edge", "stopped"),  # f was not read
            ("cloud", "implausible:e"),
            ("edge", "implausible:c"),
        ]
        assert device.counters["implausible"] == 3


@pytest.mark.parametrize(
    ("implausible", "route", "reason"),
    [
        ("answer", "edge", "implausible:a"),
        ("offload", "cloud", "implausible:a"),
        ("ignore", "edge", "stopped"),
    ],
)
def test_rule_decides_the_treatment_of_implausible_instances(
    implausible, route, reason, bundle_with_ranges
):
    with Device(
        bundle_with_ranges,
        link=InProcessLink(cloud_answers),
        offload_rules=OffloadRules(implausible=implausible),
    ) as device:
        answer = device.answer(ROW_WITH_FAR_A)
        assert (answer.route, answer.reason) == (route, reason)
        assert device.answer(SURE_ROW).route == "edge"


def test_stage_answers_an_implausible_instance_without_a_link(bundle_with_ranges):
    with Device(bundle_with_ranges, offload_rules=OffloadRules(implausible="offload")) as device:
        answer = device.answer(ROW_WITH_FAR_A)
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "no-link", 0)
        assert device.counters["implausible"] == 1
    with Device(
        bundle_with_ranges, offload_rules=OffloadRules(implausible="offload"), policy="edge-only"
    ) as device:
        assert device.answer(ROW_WITH_FAR_A).reason == "implausible:a"
    with pytest.raises(InputError, match="choose one of answer, offload, ignore"):
        OffloadRules(implausible="never")


def test_no_value_is_implausible_in_a_bundle_without_ranges(bundle):
    with Device(bundle) as device:
        assert device.answer(ROW_WITH_FAR_A).reason == "stopped"


@pytest.mark.parametrize("shape", [(2, 6), (3, 5)])  # the valid shape is (3, 6)
def test_ranges_of_another_shape_are_refused(shape, tmp_path):
    path = tmp_path / "bundle"
    write_bundle(path, ranges={"features": np.zeros(shape, np.float32)})
    with pytest.raises(BundleError, match=r"ranges\.npz: ranges of shape"):
        Device(path)


def test_walker_compares_each_value_that_it_reads_with_its_range(bundle_with_ranges):
    limits = RANGES.features.limits()
    _, upper_limits = limits
    meter = Meter(bundle_with_ranges.manifest.feature_costs(), limits=limits)
    row = np.array(replace_values(SURE_ROW, c=np.nan, d=upper_limits[3]), np.float32)
    reading = Reading(row, meter, lambda: 1.0)
    # The walker reads by position: positions 0, 1 and 2 are the features a, c and d.
    read_value = reading.value_getter([0, 2, 3], allow_missing=True)
    assert read_value(0) == 1.0
    assert reading.implausible == ""
    read_value(2)
    assert reading.implausible == ""  # a value at the limit is plausible
    row[3] = np.nextafter(upper_limits[3], np.inf, dtype=np.float32)
    read_value(2)
    assert reading.implausible == "d"


@pytest.mark.slow
def test_reason_names_an_implausible_raw_column(make_once):
    _, _, path = make_once("raw-bundle", make_raw_bundle)
    frame, _ = draw_machines(20, seed=1)
    rows = frame.assign(mass=frame["mass"] * 1e6).to_dict("records")
    with Device(path) as device:
        reasons = {answer.reason for answer in map(device.answer, rows) if answer.route == "edge"}
        assert "implausible:mass" in reasons
        assert not [
            answer
            for answer in map(device.answer, frame.to_dict("records"))
            if ":" in answer.reason
        ]


@pytest.mark.slow
def test_reason_names_a_dead_or_saturated_channel(make_once):
    bundle = Bundle.open(make_once("window-bundle", make_window_bundle))
    window_array, _ = draw_windows(12, seed=9)
    dead_windows, saturated_windows, far_windows = (window_array.copy() for _ in range(3))
    dead_windows[:, :, 1] = 0
    saturated_windows[:, :, 0] = 2500  # a constant of a normal size
    far_windows[:, 3, 1] = 32000  # one sample, almost the largest int16
    with Device(bundle, blocks={"roughness": roughness}, policy="edge-only") as device:
        for faulty_windows, channel_name in (
            (dead_windows, "acc_y"),
            (saturated_windows, "acc_x"),
            (far_windows, "acc_y"),
        ):
            assert {answer.reason for answer in device.answer_many(faulty_windows)} == {
                f"implausible:{channel_name}"
            }
        assert not [
            answer
            for answer in device.answer_many(window_array)
            if answer.reason.startswith("implausible")
        ]
