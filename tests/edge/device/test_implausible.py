"""Values far outside of those in training are named, counted and, on demand, offloaded."""

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
from tests.support.machine_table import machine_table, make_raw_bundle
from tests.support.small_bundle import HARD, cloud_says, sample_rows, write_bundle
from tests.support.window_system import make_window_bundle, roughness, windows

RANGES = TrainingRanges.of_rows(sample_rows(500))
FAR_A = [1000.0, 0, 0, 0, 0, 0]
EASY = [1.0, 0, 0, 0, 0, 0]


@pytest.fixture(scope="module")
def ranged(tmp_path_factory):
    return write_bundle(tmp_path_factory.mktemp("ranged") / "bundle", ranges=RANGES.arrays())


def changed(row, **values):
    changed_row = list(row)
    for name, value in values.items():
        changed_row["abcdef".index(name)] = value
    return changed_row


def test_answers_say_what_is_implausible(ranged):
    with Device(ranged, link=InProcessLink(cloud_says)) as device:
        found = [(a.route, a.reason) for a in map(device.answer, [
            EASY, FAR_A, changed(EASY, f=1e9), changed(HARD, e=-9.0), changed(HARD, c=50.0),
        ])]  # fmt: skip
        assert found == [
            ("edge", "stopped"),
            ("edge", "implausible:a"),
            ("edge", "stopped"),  # nobody read f
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
def test_setting_decides_about_implausible_instances(implausible, route, reason, ranged):
    with Device(
        ranged, link=InProcessLink(cloud_says), offloading=OffloadRules(implausible=implausible)
    ) as device:
        answer = device.answer(FAR_A)
        assert (answer.route, answer.reason) == (route, reason)
        assert device.answer(EASY).route == "edge"


def test_without_a_way_to_the_cloud_the_stage_answers(ranged):
    with Device(ranged, offloading=OffloadRules(implausible="offload")) as device:
        answer = device.answer(FAR_A)
        assert (answer.route, answer.reason, answer.stage) == ("fallback", "no-link", 0)
        assert device.counters["implausible"] == 1
    with Device(
        ranged, offloading=OffloadRules(implausible="offload"), policy="edge-only"
    ) as device:
        assert device.answer(FAR_A).reason == "implausible:a"
    with pytest.raises(InputError, match="choose one of answer, offload, ignore"):
        OffloadRules(implausible="never")


def test_a_bundle_without_ranges_compares_nothing(bundle):
    with Device(bundle) as device:
        assert device.answer(FAR_A).reason == "stopped"


@pytest.mark.parametrize("shape", [(2, 6), (3, 5)])
def test_ranges_of_another_shape_are_refused(shape, tmp_path):
    path = tmp_path / "bundle"
    write_bundle(path, ranges={"features": np.zeros(shape, np.float32)})
    with pytest.raises(BundleError, match=r"ranges\.npz: ranges of shape"):
        Device(path)


def test_walker_compares_each_value_that_it_reads_with_its_range(ranged):
    limits = RANGES.features.limits()
    meter = Meter(ranged.manifest.feature_costs(), limits=limits)
    row = np.array(changed(EASY, c=np.nan, d=limits[1][3]), np.float32)
    reading = Reading(row, meter, lambda: 1.0)
    value_of = reading.one_by_one([0, 2, 3], allow_missing=True)
    assert [value_of(0), value_of(2)][0] == 1.0
    assert reading.implausible == ""
    value_of(2)
    assert reading.implausible == ""  # at its limit
    row[3] = np.nextafter(limits[1][3], np.inf, dtype=np.float32)
    value_of(2)
    assert reading.implausible == "d"


def test_raw_columns_are_named(make_once):
    _, _, path = make_once("raw-bundle", make_raw_bundle)
    frame, _ = machine_table(20, seed=1)
    rows = frame.assign(mass=frame["mass"] * 1e6).to_dict("records")
    with Device(path) as device:
        reads_mass = {a.reason for a in map(device.answer, rows) if a.route == "edge"}
        assert "implausible:mass" in reads_mass
        assert not [a for a in map(device.answer, frame.to_dict("records")) if ":" in a.reason]


def test_a_dead_channel_is_named(make_once):
    bundle = Bundle.open(make_once("window-bundle", make_window_bundle))
    x, _ = windows(12, seed=9)
    dead, saturated, far = (x.copy() for _ in range(3))
    dead[:, :, 1] = 0
    saturated[:, :, 0] = 2500
    far[:, 3, 1] = 32000
    with Device(bundle, blocks={"roughness": roughness}, policy="edge-only") as device:
        for given, name in ((dead, "acc_y"), (saturated, "acc_x"), (far, "acc_y")):
            assert {a.reason for a in device.answer_many(given)} == {f"implausible:{name}"}
        assert not [a for a in device.answer_many(x) if a.reason.startswith("implausible")]
