"""A device adopts a bundle at once and completely, and its observer gets each outcome."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import PendingInstance
from gatewise_edge.errors import SelfTestError, SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.bundle.bundle import Bundle
from tests.support.bundle_files import replace_file
from tests.support.small_bundle import HARD_ROW, SURE_ROW, FakeLink, cloud_answers, respond
from tests.support.waiting import wait_until

NAN = float("nan")


def test_instance_ends_with_the_bundle_with_which_it_began(bundle, make_bundle):
    sent_calls = []
    new_bundle = make_bundle(version="8", classes=("cold", "hot"))
    with Device(bundle, link=FakeLink(lambda *arguments: sent_calls.append(arguments))) as device:
        old_instance = device.begin(HARD_ROW)
        device.adopt(new_bundle)
        new_instance = device.begin(HARD_ROW)
        assert isinstance(old_instance, PendingInstance)
        assert isinstance(new_instance, PendingInstance)
        versions = [wire.decode_request(payload).version for payload, _ in sent_calls]
        assert versions == ["7", "8"]
        for payload, receive in sent_calls:
            respond(payload, receive)
        assert device.advance(old_instance).label == "no"
        assert device.advance(new_instance).label == "cold"
        assert device.bundle is new_bundle


def with_wrong_sample(bundle):
    """Change a bundle so that its sample has other outputs than its stage computes."""
    sample = read_arrays(bundle.read("sample.npz"))
    sample["stage_0"] = sample["stage_0"] + 1  # the array that was read is read-only
    replace_file(bundle.path, "sample.npz", write_arrays(sample))
    return Bundle.open(bundle.path)


def with_reversed_features(bundle):
    """Reverse the order of a bundle's features."""
    sample = read_arrays(bundle.read("sample.npz"))
    sample["X"] = np.ascontiguousarray(sample["X"][:, ::-1])
    replace_file(bundle.path, "sample.npz", write_arrays(sample))
    manifest = Bundle.open(bundle.path).manifest
    manifest = msgspec.structs.replace(manifest, features=manifest.features[::-1])
    (bundle.path / "manifest.json").write_bytes(manifest.to_json())
    return Bundle.open(bundle.path)


def test_rows_are_matched_by_name_with_each_adopted_bundle(bundle, make_bundle):
    """The adopted bundle has another order of features; rows keep the order of `row_names`."""
    new_bundle = with_reversed_features(make_bundle(version="8"))
    rows = [SURE_ROW, [-1.0, 0, 0, 0, 0, 0], HARD_ROW, [0.1, 0, 0.1, 0, 1.0, 0]]
    link = InProcessLink(cloud_answers)
    with Device(bundle, link=link, row_names=bundle.manifest.feature_names) as device:
        answers_before = [device.answer(row) for row in rows]
        device.adopt(new_bundle)
        answers_after = [device.answer(row) for row in rows]
        answers_together = device.answer_many(rows)
        assert [answer.label for answer in answers_before] == ["yes", "no", "no", "yes"]
        for answers in (answers_after, answers_together):
            assert [(answer.label, answer.cost, answer.route) for answer in answers] == [
                (answer.label, answer.cost, answer.route) for answer in answers_before
            ]
        with pytest.raises(InputError, match="must have 6 features"):
            device.answer([1.0])


def test_bundle_with_a_feature_that_rows_lack_is_refused(bundle):
    with pytest.raises(InputError, match="no feature 'f'"):
        Device(bundle, row_names="abcde")
    with Device(bundle, row_names="fedcbag") as device:
        assert device.answer([0, 0, 0, 0, 0, 1.0, 9.0]).label == "yes"


def test_active_bundle_stays_if_another_one_fails(bundle, make_bundle):
    new_bundle = make_bundle(version="8")
    broken_bundle = with_wrong_sample(make_bundle("broken", version="9"))
    other_bundle = make_bundle("named", version="9", classes=("no", "yes"))
    sensors = Sensors({name: lambda: 1.0 for name in "abce"})
    with Device(bundle, link=FakeLink(), sensors=sensors) as device:
        device.adopt(new_bundle)
        with pytest.raises(SelfTestError, match="stage_0"):
            device.adopt(broken_bundle)
        assert device.bundle is new_bundle
        assert device.answer(SURE_ROW).label == "yes"
        device.adopt(other_bundle)
        assert device.bundle is other_bundle
    with Device(bundle, link=FakeLink(), policy="cloud-only") as device:
        with pytest.raises(InputError, match="no high-cost model"):
            device.adopt(make_bundle("local", has_cloud=False))
        assert device.bundle is bundle


def test_adopting_a_bundle_does_not_disturb_other_threads(bundle, make_bundle):
    new_bundle = make_bundle(version="8", classes=("cold", "hot"))
    is_over = threading.Event()

    def answer_rows(seed):
        """Answer rows until `is_over`; return their number."""
        rng = np.random.default_rng(seed)
        n_rows = 0
        while not is_over.is_set():
            feature_e = rng.choice([-1.0, 1.0])
            answer = device.answer([0.1, 0, 0.1, 0, feature_e, 0])
            assert (answer.route, answer.class_index) == ("cloud", feature_e > 0)
            n_rows += 1
        return n_rows

    link = InProcessLink(cloud_answers)
    with Device(bundle, link=link, deadline_ms=20_000) as device, ThreadPoolExecutor(4) as pool:
        row_counts = pool.map(answer_rows, range(4))
        for adoption_number in range(10):
            device.adopt(new_bundle if adoption_number % 2 == 0 else bundle)
        wait_until(lambda: device.counters["answered"] > 200, "some answers")
        is_over.set()
        n_rows = sum(row_counts)
        counters = device.counters
    assert counters["cloud"] == n_rows == counters["answered"]
    assert counters["mismatched"] == counters["fallback"] == 0


def test_observer_gets_each_outcome_once(bundle, caplog):
    outcomes = []

    def observe(outcome):
        outcomes.append(outcome)
        if isinstance(outcome, SensorError):
            raise ValueError("a bug in the observer")

    with Device(bundle, link=InProcessLink(cloud_answers), observe=observe) as device:
        answers = [device.answer(row) for row in (SURE_ROW, HARD_ROW)]
        with pytest.raises(SensorError):
            device.answer([NAN, 0, 0, 0, 0, 0])
        answers += device.answer_many([HARD_ROW, SURE_ROW])
    types = [type(outcome) for outcome in outcomes]
    assert types == [Answer, Answer, SensorError, Answer, Answer]
    assert set(map(id, outcomes)) - {id(outcomes[2])} == set(map(id, answers))
    assert "observer failed" in caplog.text
