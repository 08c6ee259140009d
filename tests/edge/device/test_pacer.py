"""A budget is kept while the world drifts, over restarts, and never silently."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatewise.decision import ALWAYS_STOP
from gatewise.errors import InputError
from gatewise_edge.device.auditor import Audit
from gatewise_edge.device.device import Device
from gatewise_edge.device.pacer import Pacer, PacerFile
from gatewise_edge.link.link import InProcessLink
from tests.support.small_bundle import FakeLink, cloud_says
from tests.support.waiting import wait_until

EASY = [1.0, 0, 0, 0, 0, 0]


def attached(text: str, threshold: float | None = 0.0, **more):
    pacer = Pacer.parse(text)
    unit = {"local": 5.0, "offload": 9.0, "bytes": 200.0} | more
    return pacer, pacer.attach("m/1/0", threshold=threshold, **unit)


def goes_on(pace, score: float) -> bool:
    threshold = pace.threshold()
    return threshold is None or not np.float32(score) >= np.float32(threshold)


def run(pace, scores, *, reaches=1.0, rng=None, gap=0.0, unit=1.0) -> np.ndarray:
    """Decide instance by instance; which were sent on."""
    rng = np.random.default_rng(0) if rng is None else rng
    sent = []
    for i, score in enumerate(scores):
        at_gate = rng.random() < reaches
        sent.append(at_gate and goes_on(pace, score))
        pace.observe(score if at_gate else None, unit * sent[-1], i * gap)
    return np.array(sent)


@pytest.mark.parametrize(
    ("text", "name", "metric", "hourly"),
    [
        ("offload_rate=0.1", "offload_rate", "offloads", False),
        ("bytes = 120", "bytes", "bytes", False),
        ("cost=5.5", "cost", "cost", False),
        ("offloads_per_hour=100", "offloads_per_hour", "offloads", True),
        ("bytes_per_hour=1e6", "bytes_per_hour", "bytes", True),
        ("cost_per_hour=3", "cost_per_hour", "cost", True),
    ],
)
def test_budgets_are_read(text, name, metric, hourly):
    budget = Pacer.parse(text).budget
    assert (budget.name, budget.metric, budget.hourly) == (name, metric, hourly)


@pytest.mark.parametrize(
    "text",
    ["", "0.1", "offload_rate", "offload_rate=", "offload_rate=x", "rate=0.1", "offload_rate=0",
     "offload_rate=1", "bytes=-1", "bytes=inf", "cost=nan", "offload_rate=0.1=2"],
)  # fmt: skip
def test_budgets_that_are_none(text):
    with pytest.raises(InputError, match="pacer"):
        Pacer.parse(text)


def test_begins_where_the_packed_threshold_is():
    _, pace = attached("offload_rate=0.3", threshold=0.25)
    rng = np.random.default_rng(0)
    for score in rng.random(63):
        pace.observe(float(score), float(score < 0.25), 0.0)
        assert not pace.moved
        assert pace.threshold() == 0.25
    pace.observe(0.9, 0.0, 0.0)
    assert pace.moved
    assert pace.threshold() == pytest.approx(0.25, abs=0.08)


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.6])
@pytest.mark.parametrize("reaches", [1.0, 0.7])
def test_a_rate_is_held_whatever_the_scores_do(rate, reaches):
    rng = np.random.default_rng(1)
    _, pace = attached(f"offload_rate={rate}")
    scores = np.concatenate(
        [rng.normal(0, 1, 5000), rng.normal(40, 9, 5000), rng.integers(0, 6, 5000)]
    )
    sent = run(pace, scores.tolist(), reaches=reaches, rng=rng)
    assert sent.mean() == pytest.approx(rate, rel=0.05)
    for part in np.split(sent, 3):
        assert part.mean() == pytest.approx(rate, rel=0.15)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.02, 0.9), st.integers(0, 2**32 - 1), st.sampled_from(["walk", "jumps", "flat"]))
def test_never_above_the_budget_for_long(rate, seed, kind):
    """Underspending may be all that is possible; overspending is bounded for any sequence."""
    rng = np.random.default_rng(seed)
    scores = {
        "walk": np.cumsum(rng.normal(0, 1, 4000)),
        "jumps": rng.normal(0, 1, 4000) * 10.0 ** rng.integers(-3, 4, 4000),
        "flat": np.ones(4000),
    }[kind]
    pacer, pace = attached(f"offload_rate={rate}", threshold=None)
    sent = run(pace, scores.tolist(), rng=rng)
    assert 0.0 <= pace.level <= 1.0
    # 64 by the packed threshold, which sends everything; then the level moves by at least
    # 0.1 * rate a step (0.02 where that is more), and swings no wider than from end to end.
    step = min(0.1 * rate, 0.02)
    assert sent.sum() <= rate * len(sent) + 64 + 2 / step
    assert abs(pacer.debt) <= 10 / step * rate


@settings(max_examples=30, deadline=None)
@given(st.floats(0.02, 0.9), st.integers(0, 2**32 - 1), st.booleans())
def test_a_gate_stays_within_its_limits_whatever_the_budget(rate, seed, never):
    """Bounds on recall come first, and no level is wound up behind them."""
    rng = np.random.default_rng(seed)
    limits = (0.4, None) if never else (0.4, 0.6)
    _, pace = attached(f"offload_rate={rate}", threshold=0.5, limits=limits)
    levels = []
    for i, score in enumerate(rng.random(1500).tolist()):
        threshold = pace.threshold()
        assert threshold is None if threshold is None else threshold >= 0.4
        assert never or threshold <= 0.6
        pace.observe(score, float(goes_on(pace, score)), i)
        levels.append(pace.level)
    # the limits are at these levels: the gate is free again as soon as the budget lets it be
    assert 0.3 <= pace.level <= (1.0 if never else 0.7)
    kept = 0.4 if rate < 0.4 else rate if never else min(rate, 0.6)
    # It swings with what came last.
    assert np.mean(levels[500:]) == pytest.approx(kept, abs=0.08)


def test_an_hourly_budget_follows_the_clock_not_the_instances():
    rng = np.random.default_rng(2)
    _, pace = attached("offloads_per_hour=360")  # one in 10 s
    scores = rng.random(12_000).tolist()
    slow = run(pace, scores[:4000], gap=4.0)  # 900 an hour
    assert slow[500:].mean() == pytest.approx(0.4, rel=0.1)
    _, pace = attached("offloads_per_hour=360")
    fast = run(pace, scores, gap=0.5)  # 7200 an hour
    assert fast[2000:].mean() == pytest.approx(0.05, rel=0.1)


def test_a_long_silence_does_not_save_up_for_a_flood():
    _, pace = attached("offloads_per_hour=100")
    rng = np.random.default_rng(3)
    run(pace, rng.random(3000).tolist(), gap=3.6)
    sent = []
    for i in range(1000):
        score = float(rng.random())
        sent.append(goes_on(pace, score))
        # A week later, all within ten minutes.
        pace.observe(score, float(sent[-1]), 3000 * 3.6 + 7 * 86400 + 0.6 * i)
    assert sum(sent) <= 100


def test_bytes_and_costs_are_counted_in_offloads():
    rng = np.random.default_rng(4)
    scores = rng.random(10_000).tolist()
    _, pace = attached("bytes=50")  # an offload has 200
    assert run(pace, scores, unit=200.0)[1000:].mean() == pytest.approx(0.25, rel=0.05)
    _, pace = attached("cost=6")  # 5 at the gate, 9 offloaded
    spent = []
    for score in scores:
        sent = goes_on(pace, score)
        spent.append(9.0 if sent else 5.0)
        pace.observe(score, spent[-1], 0.0)
    assert np.mean(spent) == pytest.approx(6.0, rel=0.01)
    with pytest.raises(InputError, match="costs no more"):
        attached("cost=6", local=9.0)


def test_the_ends_are_never_and_always():
    _, pace = attached("offload_rate=0.5")
    run(pace, np.random.default_rng(5).random(100).tolist())
    pace.level = 0.0
    assert pace.threshold() == ALWAYS_STOP
    pace.level = 1.0
    assert pace.threshold() is None


def test_what_could_not_be_sent_teaches_nothing():
    pacer, pace = attached("offload_rate=0.1")
    run(pace, np.random.default_rng(6).random(500).tolist())
    before = (pace.level, pacer.debt)
    for _ in range(1000):
        pace.observe(0.001, None, 0.0)
    assert (pace.level, pacer.debt) == before


# -- over bundles and restarts -------------------------------------------------------------


def test_state_is_kept_over_a_restart(tmp_path):
    path = tmp_path / "pace.json"
    pacer, pace = attached("offload_rate=0.2")
    file = PacerFile(pacer, path)
    rng = np.random.default_rng(7)
    run(pace, rng.random(1000).tolist())
    file.save()
    again = Pacer.parse("offload_rate=0.2")
    PacerFile(again, path)
    unit = {"threshold": 0.0, "local": 5.0, "offload": 9.0, "bytes": 200.0}
    resumed = again.attach("m/1/0", **unit)
    assert resumed.moved
    assert (resumed.threshold(), again.debt) == (pace.threshold(), pacer.debt)
    # Another bundle has other scores; what is owed stays owed.
    other = again.attach("m/2/0", **unit)
    assert not other.moved
    assert again.debt == pacer.debt
    assert [p.name for p in tmp_path.iterdir()] == ["pace.json"]


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '"text"',
        "{}",
        '{"budget": "offload_rate", "amount": 0.3, "debt": 0}',
        '{"budget": "offload_rate", "amount": 0.2}',
        '{"budget": "offload_rate", "amount": 0.2, "debt": NaN}',
        '{"budget": "offload_rate", "amount": 0.2, "debt": 0, "scores": 7}',
        '{"budget": "offload_rate", "amount": 0.2, "debt": 0, "scores": ["x"]}',
        '{"budget": "offload_rate", "amount": 0.2, "debt": 0, "level": null}',
        '{"budget": "offload_rate", "amount": 0.2, "debt": 1' + "0" * 400 + "}",
        "[" * 100_000,
        "\xff\xfe",
    ],
)
def test_a_file_that_is_no_state_is_not_used(tmp_path, content, caplog):
    path = tmp_path / "pace.json"
    path.write_bytes(content.encode("latin-1"))
    pacer = Pacer.parse("offload_rate=0.2")
    file = PacerFile(pacer, path)
    assert "is not used" in caplog.text
    assert pacer.debt == 0.0
    file.save()
    assert json.loads(path.read_text())["amount"] == 0.2


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path, caplog):
    pacer, _ = attached("offload_rate=0.2")
    file = PacerFile(pacer, tmp_path / "nowhere" / "pace.json")
    for _ in range(3):
        file.save()
    assert caplog.text.count("cannot be written") == 1


def test_written_a_minute_after_the_last_time_and_in_the_background(tmp_path):
    path = tmp_path / "pace.json"
    pacer, _ = attached("offload_rate=0.2")
    file = PacerFile(pacer, path)
    for now in (0.0, 30.0, 59.0):
        file.save_when_due(now)
    assert not path.exists()
    file.save_when_due(60.0)
    wait_until(path.exists, "the state to be written")


# -- in a device ---------------------------------------------------------------------------


def test_a_device_paces_and_says_so(bundle, tmp_path, caplog):
    path = tmp_path / "pace.json"
    rng = np.random.default_rng(8)
    rows = rng.normal(0, 0.15, (3000, 6)).astype(np.float32)
    settings = {"deadline_ms": 20_000, "pacer_state": path}

    def device():
        pacer = Pacer.parse("offload_rate=0.1")
        return Device(bundle, link=InProcessLink(cloud_says), pacer=pacer, **settings)

    with Device(bundle, link=InProcessLink(cloud_says), deadline_ms=20_000) as fixed:
        plain = [fixed.answer(row) for row in rows[:500]]
    assert not any(a.paced for a in plain)
    with device() as paced:
        answers = [paced.answer(row) for row in rows]
        counters, gauges = paced.counters, paced.gauges
    assert "offload_rate=0.1" in caplog.text
    assert np.mean([a.route == "cloud" for a in plain]) > 0.3
    assert np.mean([a.route == "cloud" for a in answers]) == pytest.approx(0.1, rel=0.1)
    assert counters["paced"] == sum(a.paced for a in answers) > 2000
    assert 0 < gauges["pacer_level"] < 1
    # Only the gate moved: who stops before it stops as ever, and is no answer of the pacer's.
    assert all(not a.paced for a in answers if a.stage == 0 and a.route == "edge")
    with device() as again:
        first = [again.answer(row) for row in rows[:300]]
    assert any(a.paced for a in first[:20])
    assert np.mean([a.route == "cloud" for a in first]) < 0.2


def test_a_bundle_that_is_not_taken_leaves_the_pacer_as_it_was(bundle, make_bundle):
    point = msgspec.structs.replace(bundle.manifest.operating_points[0], agreement=0.9)
    audited, pacer = make_bundle(operating_points=(point,)), Pacer.parse("offload_rate=0.1")
    link = InProcessLink(cloud_says)
    with Device(audited, link=link, pacer=pacer, audit=Audit()) as device:
        pace = pacer.pace
        with pytest.raises(InputError, match="audit"):
            device.adopt(bundle)  # which says nothing of agreement
        assert pacer.pace is pace


def test_the_alarm_of_drift_is_not_hidden_by_the_pacer(bundle):
    pacer = Pacer.parse("offload_rate=0.2")
    link = InProcessLink(cloud_says)
    rng = np.random.default_rng(9)
    with Device(bundle, link=link, pacer=pacer, deadline_ms=20_000) as device:
        for k in range(1500):
            hard = k > 500 or k % 5 == 0
            c = float(rng.uniform(0.0, 0.2)) if hard else 1.0
            device.answer([0.1, 0, c, 0, 1.0, 0])
        assert device.counters["drift_alarms"] == 1


def test_a_guarantee_is_said_to_be_void(make_bundle, caplog):
    bundle = make_bundle()
    point = bundle.manifest.active_point
    promised = msgspec.structs.replace(point, guarantee={"loss": 0.01})
    bundle = make_bundle("promised", operating_points=(promised,))
    Device(bundle, link=FakeLink(), pacer=Pacer.parse("offload_rate=0.1")).close()
    assert "guarantee no longer holds" in caplog.text


def test_a_pacer_needs_something_to_pace(bundle, tmp_path):
    pacer = Pacer.parse("offload_rate=0.1")
    for more in (
        {},
        {"link": FakeLink(), "policy": "edge-only"},
        {"link": FakeLink(), "policy": "cloud-only"},
    ):
        with pytest.raises(InputError, match="pacer needs"):
            Device(bundle, pacer=pacer, **more)
    with pytest.raises(InputError, match="without a pacer"):
        Device(bundle, pacer_state=tmp_path / "x")
