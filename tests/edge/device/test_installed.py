"""A bundle is taken over at once and whole; an observer hears how each instance ended."""

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


def test_an_instance_under_way_ends_with_the_bundle_it_began_with(bundle, make_bundle):
    held = []
    newer = make_bundle(version="8", classes=("cold", "hot"))
    with Device(bundle, link=FakeLink(lambda *a: held.append(a))) as device:
        before = device.begin(HARD)
        device.adopt(newer)
        after = device.begin(HARD)
        assert isinstance(before, Pending)
        assert isinstance(after, Pending)
        versions = [wire.decode_request(payload).version for payload, _ in held]
        assert versions == ["7", "8"]
        for payload, receive in held:
            respond(payload, receive)
        assert device.advance(before).label == "no"
        assert device.advance(after).label == "cold"
        assert device.bundle is newer


def rewritten(bundle, change, **changes):
    """Change a bundle's sample and fields of its manifest, hash and all."""
    with np.load(io.BytesIO(bundle.read("sample.npz"))) as arrays:
        sample = dict(arrays)
    change(sample)
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
    return rewritten(bundle, lambda sample: sample.update(stage_0=sample["stage_0"] + 1))


def reordered(bundle):
    """List the same features the other way round."""

    def turn(sample):
        sample["X"] = np.ascontiguousarray(sample["X"][:, ::-1])

    return rewritten(bundle, turn, features=bundle.manifest.features[::-1])


def test_rows_are_matched_by_name_with_each_adopted_bundle(bundle, make_bundle):
    """The same features in another order: rows stay in the order that they were declared in."""
    newer = reordered(make_bundle(version="8"))
    rows = [EASY, [-1.0, 0, 0, 0, 0, 0], HARD, [0.1, 0, 0.1, 0, 1.0, 0]]
    link = InProcessLink(cloud_says)
    with Device(bundle, link=link, row_names=bundle.manifest.feature_names) as device:
        before = [device.answer(row) for row in rows]
        device.adopt(newer)
        after = [device.answer(row) for row in rows]
        many = device.answer_many(rows)
        assert [a.label for a in before] == ["yes", "no", "no", "yes"]
        for ends in (after, many):
            assert [(a.label, a.cost, a.route) for a in ends] == [
                (a.label, a.cost, a.route) for a in before
            ]
        with pytest.raises(InputError, match="must have 6 features"):
            device.answer([1.0])


def test_a_bundle_with_a_feature_that_rows_lack_is_not_adopted(bundle):
    with pytest.raises(InputError, match="no feature 'f'"):
        Device(bundle, row_names="abcde")
    with Device(bundle, row_names="fedcbag") as device:
        assert device.answer([0, 0, 0, 0, 0, 1.0, 9.0]).label == "yes"


def test_a_bundle_that_fails_changes_nothing(bundle, make_bundle):
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


def test_adopting_while_threads_ask_mixes_nothing(bundle, make_bundle):
    older, newer = bundle, make_bundle(version="8", classes=("cold", "hot"))
    stop = threading.Event()

    def ask(seed):
        rng, asked = np.random.default_rng(seed), 0
        while not stop.is_set():
            e = rng.choice([-1.0, 1.0])
            answer = device.answer([0.1, 0, 0.1, 0, e, 0])
            assert (answer.route, answer.class_index) == ("cloud", e > 0)
            asked += 1
        return asked

    link = InProcessLink(cloud_says)
    with Device(older, link=link, deadline_ms=20_000) as device, ThreadPoolExecutor(4) as pool:
        asked = pool.map(ask, range(4))
        for k in range(10):
            device.adopt(newer if k % 2 == 0 else older)
        wait_until(lambda: device.counters["answered"] > 200, "some answers")
        stop.set()
        total = sum(asked)
        counters = device.counters
    assert counters["cloud"] == total == counters["answered"]
    assert counters["mismatched"] == counters["fallback"] == 0


def test_every_end_is_observed_once(bundle, caplog):
    seen = []

    def observe(end):
        seen.append(end)
        if isinstance(end, SensorError):
            raise ValueError("a bug of the observer's")

    with Device(bundle, link=InProcessLink(cloud_says), observe=observe) as device:
        answers = [device.answer(row) for row in (EASY, HARD)]
        with pytest.raises(SensorError):
            device.answer([NAN, 0, 0, 0, 0, 0])
        answers += device.answer_many([HARD, EASY])
    kinds = [type(end) for end in seen]
    assert kinds == [Answer, Answer, SensorError, Answer, Answer]
    assert set(map(id, seen)) - {id(seen[2])} == set(map(id, answers))
    assert "observer failed" in caplog.text
