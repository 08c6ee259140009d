"""A device adopts a bundle at once and completely, and its observer gets each outcome."""

from __future__ import annotations

import hashlib
import io
import threading
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.device.answer import Answer
from gatewise_edge.device.device import Device
from gatewise_edge.device.pending import Pending
from gatewise_edge.errors import SelfTestError, SensorError
from gatewise_edge.link import wire
from gatewise_edge.link.link import InProcessLink
from gatewise_edge.sensors.sensors import Sensors
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.manifest_records import FileSpec
from tests.support.small_bundle import HARD, FakeLink, cloud_says, respond
from tests.support.waiting import wait_until

EASY = [1.0, 0, 0, 0, 0, 0]
NAN = float("nan")


def test_instance_ends_with_the_bundle_with_which_it_began(bundle, make_bundle):
    messages = []
    newer = make_bundle(version="8", classes=("cold", "hot"))
    with Device(bundle, link=FakeLink(lambda *message: messages.append(message))) as device:
        before = device.begin(HARD)
        device.adopt(newer)
        after = device.begin(HARD)
        assert isinstance(before, Pending)
        assert isinstance(after, Pending)
        versions = [wire.decode_request(payload).version for payload, _ in messages]
        assert versions == ["7", "8"]
        for payload, receive in messages:
            respond(payload, receive)
        assert device.advance(before).label == "no"
        assert device.advance(after).label == "cold"
        assert device.bundle is newer


def rewrite_bundle(bundle, change_sample, **changes):
    """Change a bundle's sample and fields of its manifest, including the hash of the sample."""
    with np.load(io.BytesIO(bundle.read("sample.npz"))) as arrays:
        sample = dict(arrays)
    change_sample(sample)
    stream = io.BytesIO()
    np.savez(stream, **sample)
    content = stream.getvalue()
    entry = FileSpec(hashlib.sha256(content).hexdigest(), len(content))
    files = bundle.manifest.files | {"sample.npz": entry}
    manifest = msgspec.structs.replace(bundle.manifest, files=files, **changes)
    (bundle.path / "sample.npz").write_bytes(content)
    (bundle.path / "manifest.json").write_bytes(manifest.to_json())
    return Bundle.open(bundle.path)


def miscomputing(bundle):
    """Change a bundle so that its sample has other outputs than its stage computes."""
    return rewrite_bundle(bundle, lambda sample: sample.update(stage_0=sample["stage_0"] + 1))


def with_reversed_features(bundle):
    """Reverse the order of a bundle's features."""

    def reverse(sample):
        sample["X"] = np.ascontiguousarray(sample["X"][:, ::-1])

    return rewrite_bundle(bundle, reverse, features=bundle.manifest.features[::-1])


def test_rows_are_matched_by_name_with_each_adopted_bundle(bundle, make_bundle):
    """The adopted bundle has another order of features; rows keep the order of `row_names`."""
    newer = with_reversed_features(make_bundle(version="8"))
    rows = [EASY, [-1.0, 0, 0, 0, 0, 0], HARD, [0.1, 0, 0.1, 0, 1.0, 0]]
    link = InProcessLink(cloud_says)
    with Device(bundle, link=link, row_names=bundle.manifest.feature_names) as device:
        before = [device.answer(row) for row in rows]
        device.adopt(newer)
        after = [device.answer(row) for row in rows]
        together = device.answer_many(rows)
        assert [a.label for a in before] == ["yes", "no", "no", "yes"]
        for answers in (after, together):
            assert [(a.label, a.cost, a.route) for a in answers] == [
                (a.label, a.cost, a.route) for a in before
            ]
        with pytest.raises(InputError, match="must have 6 features"):
            device.answer([1.0])


def test_bundle_with_a_feature_that_rows_lack_is_refused(bundle):
    with pytest.raises(InputError, match="no feature 'f'"):
        Device(bundle, row_names="abcde")
    with Device(bundle, row_names="fedcbag") as device:
        assert device.answer([0, 0, 0, 0, 0, 1.0, 9.0]).label == "yes"


def test_active_bundle_stays_if_another_one_fails(bundle, make_bundle):
    newer = make_bundle(version="8")
    broken = miscomputing(make_bundle("broken", version="9"))
    other = make_bundle("named", version="9", classes=("no", "yes"))
    sensors = Sensors({n: lambda: 1.0 for n in "abce"})
    with Device(bundle, link=FakeLink(), sensors=sensors) as device:
        device.adopt(newer)
        with pytest.raises(SelfTestError, match="stage_0"):
            device.adopt(broken)
        assert device.bundle is newer
        assert device.answer(EASY).label == "yes"
        device.adopt(other)
        assert device.bundle is other
    with Device(bundle, link=FakeLink(), policy="cloud-only") as device:
        with pytest.raises(InputError, match="no cloud model"):
            device.adopt(make_bundle("local", cloud=False))
        assert device.bundle is bundle


def test_adopting_a_bundle_does_not_disturb_other_threads(bundle, make_bundle):
    newer = make_bundle(version="8", classes=("cold", "hot"))
    stop = threading.Event()

    def answer_rows(seed):
        """Answer rows until the stop; return their number."""
        rng = np.random.default_rng(seed)
        n_rows = 0
        while not stop.is_set():
            e = rng.choice([-1.0, 1.0])
            answer = device.answer([0.1, 0, 0.1, 0, e, 0])
            assert (answer.route, answer.class_index) == ("cloud", e > 0)
            n_rows += 1
        return n_rows

    link = InProcessLink(cloud_says)
    with Device(bundle, link=link, deadline_ms=20_000) as device, ThreadPoolExecutor(4) as pool:
        numbers = pool.map(answer_rows, range(4))
        for k in range(10):
            device.adopt(newer if k % 2 == 0 else bundle)
        wait_until(lambda: device.counters["answered"] > 200, "some answers")
        stop.set()
        n_rows = sum(numbers)
        counters = device.counters
    assert counters["cloud"] == n_rows == counters["answered"]
    assert counters["mismatched"] == counters["fallback"] == 0


def test_observer_gets_each_outcome_once(bundle, caplog):
    outcomes = []

    def observe(outcome):
        outcomes.append(outcome)
        if isinstance(outcome, SensorError):
            raise ValueError("a bug in the observer")

    with Device(bundle, link=InProcessLink(cloud_says), observe=observe) as device:
        answers = [device.answer(row) for row in (EASY, HARD)]
        with pytest.raises(SensorError):
            device.answer([NAN, 0, 0, 0, 0, 0])
        answers += device.answer_many([HARD, EASY])
    types = [type(outcome) for outcome in outcomes]
    assert types == [Answer, Answer, SensorError, Answer, Answer]
    assert set(map(id, outcomes)) - {id(outcomes[2])} == set(map(id, answers))
    assert "observer failed" in caplog.text
