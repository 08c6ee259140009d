"""Arrivals: their laws, and that neither chunks nor other devices change them."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.workload.arrivals import draw_arrivals, parse
from gatewise_sim.fleet.workload.kinds import (
    Bursty,
    Diurnal,
    Periodic,
    Poisson,
    Replay,
    Trace,
)
from gatewise_sim.fleet.workload.row_mix import RowMix
from tests.support.refused import refused

pytestmark = pytest.mark.slow  # fleets are simulated

LONG = Replay(
    Trace(
        [np.array([0.0, 1.5, 2.0, 2.0, 90.0]), np.array([30.0]), np.array([0.1, 119.0])],
        [np.arange(5), np.array([7]), np.array([3, 4])],
    ),
    every=120.0,
)
KINDS = {
    "poisson": Poisson(0.1),
    "fast": Poisson(5.0),
    "periodic": Periodic(7.0, jitter=3.0),
    "aligned": Periodic(7.0, aligned=True),
    "bursty": Bursty(0.2, ratio=30, burst=20, every=100),
    "diurnal": Diurnal(0.1, peak=200.0, ratio=9),
    "replay": LONG,
    "replay once": Replay(LONG.trace),
}
kinds = pytest.mark.parametrize("kind", KINDS)


def gather(spec, devices, seconds, seed=0, **options):
    chunks = list(draw_arrivals(spec, devices, seconds, np.random.default_rng(seed), **options))
    if not chunks:
        return np.empty(0), np.empty(0, np.int64), np.empty(0, np.int64)
    return tuple(np.concatenate(column) for column in zip(*chunks, strict=True))


def same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@kinds
@settings(max_examples=10, deadline=None)
@given(st.floats(1.0, 350.0))
def test_chunks_change_nothing(kind, chunk_s):
    whole = gather(KINDS[kind], 6, 250.0, rows=11, chunk_s=250.0)
    assert same(whole, gather(KINDS[kind], 6, 250.0, rows=11, chunk_s=chunk_s))


@kinds
def test_a_sample_of_a_fleet_is_part_of_it(kind):
    """Sorted, by the seed, and whatever the other devices do."""
    many = gather(KINDS[kind], 40, 600.0, rows=11)
    if kind not in ("aligned", "replay", "replay once"):
        assert not same(many, gather(KINDS[kind], 40, 600.0, seed=1, rows=11))
    times, device, row = many
    assert times.dtype == np.float64
    assert device.dtype == row.dtype == np.int64
    assert 0 <= times[0] <= times[-1] < 600
    assert ((np.diff(times) > 0) | ((np.diff(times) == 0) & (np.diff(device) >= 0))).all()
    assert set(device) <= set(range(40))
    assert set(row) <= set(range(11))
    some = gather(KINDS[kind], [3, 31, 8], 600.0, rows=11)
    assert same(some, tuple(column[np.isin(many[1], (3, 8, 31))] for column in many))


def test_the_generator_is_used_at_once_and_for_one_number():
    rng, other = np.random.default_rng(5), np.random.default_rng(5)
    draw_arrivals("poisson:1/s", 3, 10.0, rng)
    other.integers(0, 2**64, dtype=np.uint64)
    assert rng.random() == other.random()


def test_poisson_gaps_are_exponential_and_counts_poisson():
    times, device, row = gather(Poisson(0.5), 200, 1000.0, rows=20)
    assert stats.chisquare(np.bincount(row, minlength=20)).pvalue > 1e-3
    n, wanted = len(times), 200 * 1000 * 0.5
    assert abs(n - wanted) < 4 * math.sqrt(wanted)
    gaps = np.concatenate([np.diff(times[device == d], prepend=0.0) for d in range(200)])
    assert stats.kstest(gaps, "expon", args=(0, 2.0)).pvalue > 1e-3
    counts = np.bincount(device, minlength=200)
    dispersion = counts.var(ddof=1) / counts.mean()  # 1 for Poisson, chi-square with 199 degrees
    assert abs(dispersion - 1) < 4 * math.sqrt(2 / 199)


def test_a_period_without_jitter_is_exact():
    times, device, _ = gather(Periodic(10.0), 50, 1000.0)
    assert np.bincount(device).tolist() == [100] * 50
    first = times[:50]
    assert first.max() < 10
    aligned = gather(Periodic(10.0, aligned=True), 3, 25.0)[0]
    assert aligned.tolist() == [0.0] * 3 + [10.0] * 3 + [20.0] * 3
    assert stats.kstest(first / 10, "uniform").pvalue > 1e-3
    for d in range(50):
        np.testing.assert_allclose(np.diff(times[device == d]), 10.0, rtol=1e-9)


def test_jitter_carries_arrivals_over_the_start_as_over_the_end():
    times, device, _ = gather(Periodic(10.0, jitter=10.0), 400, 100.0)
    counts = np.bincount(device, minlength=400)
    assert set(counts) <= {9, 10, 11}
    # From 10 strays by one in either direction with a probability below one half.
    assert abs(len(times) - 4000) < 4 * math.sqrt(400 / 2)
    first = np.array([times[device == d][0] for d in range(400)])
    assert abs((first < 10).sum() - 400 * 5 / 6) < 4 * math.sqrt(400 * 5 / 36)


def test_bursts_keep_the_mean_and_cluster():
    spec = Bursty(0.1, ratio=20, burst=30, every=300)
    seconds, n = 30_000.0, 100
    _, device, _ = gather(spec, n, seconds)
    counts = np.bincount(device, minlength=n)
    # Variance of a count over T: mean + 2 (r1 - r0)^2 p q T / s, s = 1/on + 1/off (Fischer and
    # Meier-Hellstern 1993), T much longer than 1/s.
    quiet, busy = spec.rates
    share = 0.1
    assert quiet * (1 - share) + busy * share == pytest.approx(0.1)
    pace = 1 / 30 + 1 / 270
    variance = 0.1 * seconds + 2 * (busy - quiet) ** 2 * share * (1 - share) * seconds / pace
    assert abs(counts.mean() - 0.1 * seconds) < 4 * math.sqrt(variance / n)
    assert counts.var(ddof=1) / variance == pytest.approx(1, abs=4 * math.sqrt(2 / (n - 1)))
    assert variance > 10 * 0.1 * seconds  # a Poisson process would be far off


def test_the_day_has_its_shape():
    spec = Diurnal(1 / 60, peak=14 * 3600.0, ratio=5)
    times, _, _ = gather(spec, 100, DAY)
    hours = np.bincount((times // 3600).astype(int), minlength=24)
    fine = np.linspace(0, DAY, 24 * 360 + 1)
    wanted = 100 * np.add.reduceat(spec.rate_at(fine[:-1] + 5) * 10, np.arange(0, 8640, 360))
    assert wanted.sum() == pytest.approx(144_000, rel=1e-6)
    assert (np.abs(hours - wanted) < 4 * np.sqrt(wanted)).all()
    rates = spec.rate_at(np.array([14 * 3600.0, 2 * 3600.0]))
    assert rates[0] / rates[1] == pytest.approx(5)
    later = parse("diurnal:1/min:peak=14:00:ratio=5", day_begins=14 * 3600.0)
    assert later.rate_at(np.array([0.0])) == pytest.approx(rates[0])


def test_a_trace_is_played_as_it_was():
    times, device, row = gather(Replay(LONG.trace), 4, 100.0, rows=8)
    wanted = [(0.0, 0), (0.0, 3), (0.1, 2), (1.5, 0), (1.5, 3), (2.0, 0), (2.0, 0), (2.0, 3)]
    wanted += [(2.0, 3), (30.0, 1), (90.0, 0), (90.0, 3)]
    assert list(zip(times.tolist(), device.tolist(), strict=True)) == wanted
    assert row.tolist() == [0, 0, 3, 1, 1, 2, 3, 2, 3, 7, 4, 4]


def test_a_trace_comes_again_and_copies_are_out_of_step():
    times, device, row = gather(LONG, 60, 360.0, rows=8)
    mine = times[device == 0]
    np.testing.assert_allclose(mine.reshape(3, 5) - [[0], [120], [240]], [LONG.trace.times[0]] * 3)
    assert np.bincount(device).tolist() == [15, 3, 6] * 20
    assert set(row[device % 3 == 1]) == {7}
    firsts = [times[device == d][0] for d in range(4, 60, 3)]
    assert len(set(firsts)) == len(firsts)


def test_a_trace_may_ask_only_for_rows_that_are_there():
    with pytest.raises(InputError, match="row 7 is asked for, the table has 5"):
        gather(LONG, 3, 60.0, rows=5)


def test_a_trace_from_a_file(tmp_path):
    file = tmp_path / "trace.csv"
    file.write_text("time,device,row\n5,b,1\n1,a,0\n3,b,2\n")
    spec = parse(f"replay:{file}:every=1min")
    assert [t.tolist() for t in spec.trace.times] == [[3.0, 5.0], [1.0]]
    assert [r.tolist() for r in spec.trace.rows] == [[2, 1], [0]]
    assert spec.every == 60
    file.write_text("time\n0.5\n")
    assert gather(f"replay:{file}", 2, 10.0)[0].tolist() == [0.5, 0.5]
    file.write_text("time\n")
    with pytest.raises(InputError, match="holds no arrivals"):
        parse(f"replay:{file}")


def test_classes_drift_linearly_or_in_steps():
    labels = np.repeat([0, 1, 2], [50, 5, 20])
    mix = RowMix.parse("linear,0s=1/0/1,1000s=0/1/1", labels)
    times, _, row = gather(Poisson(2.0), 50, 1000.0, rows=mix)
    label = labels[row]
    for begin in range(0, 1000, 200):
        inside = (times >= begin) & (times < begin + 200)
        n, middle = inside.sum(), (begin + 100) / 1000
        for index, share in enumerate(((1 - middle) / 2, middle / 2, 0.5)):
            off = (label[inside] == index).sum() - n * share
            assert abs(off) < 4 * math.sqrt(n * share * (1 - share))
    rare = np.bincount(row[label == 1] - 50, minlength=5)  # rows of a class are equally likely
    assert stats.chisquare(rare).pvalue > 1e-3
    steps = RowMix.parse("steps,10s=1/0,20s=0/1", labels % 2)
    times, device, row = gather(Poisson(1.0), 10, 40.0, rows=steps)
    assert (labels[row] % 2 == (times >= 20)).all()
    assert same((times, device), gather(Poisson(1.0), 10, 40.0, rows=4)[:2])


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("poisson:1/min", Poisson(1 / 60)),
        ("periodic:10s", Periodic(10.0)),
        ("periodic:6/min:jitter=500ms:aligned=yes", Periodic(10.0, 0.5, True)),
        ("bursty:1/s", Bursty(1.0, 20, 30, 600)),
        ("bursty:1/s:ratio=5:burst=1s:every=1min", Bursty(1.0, 5, 1, 60)),
        ("diurnal:1/min:peak=14:00:ratio=5", Diurnal(1 / 60, 50_400, 5)),
        ("diurnal:24/day:ratio=2:peak=6:30", Diurnal(1 / 3600, 23_400, 2)),
    ],
)
def test_workloads_are_read(text, spec):
    assert parse(text) == spec


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "choose one of poisson, periodic, bursty, diurnal, replay"),
        ("uniform:1/s", "choose one of poisson"),
        ("poisson", "a rate (1/min) must follow poisson:"),
        ("poisson:1", "'1' is not a rate"),
        ("poisson:0/s", "must be above 0"),
        ("poisson:1/s:ratio=3", "unknown option 'ratio'; there are none"),
        ("bursty:1/s:ratio=3:ratio=4", "ratio is given twice"),
        ("bursty:1/s:ratio=0.5", "ratio must be at least 1"),
        ("bursty:1/s:ratio=x", "workload bursty: ratio: 'x' is not a number"),
        ("bursty:1/s:burst=20min", "burst must be above 0 and shorter than every"),
        ("periodic:0s", "the period must be above 0"),
        ("periodic:1s:jitter=2s", "jitter must not be longer than the period"),
        ("periodic:1s:jitter=2", "workload periodic: jitter: '2' is not a span"),
        ("periodic:1s:aligned=maybe", "say yes or no"),
        ("diurnal:1/s:peak=25:00", "workload diurnal: peak: '25:00' is not a time of day"),
        ("diurnal:1/s:ratio=0.2", "ratio must be at least 1"),
        ("replay:nowhere.csv", "nowhere.csv does not exist"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(text, complaint):
    refused(parse, text, says=complaint)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"devices": 0}, "at least one device"),
        ({"devices": [-1]}, "numbered from 0"),
        ({"seconds": 0.0}, "must be above 0"),
        ({"rows": 0}, "the table has no rows"),
    ],
)
def test_bad_arguments_are_refused_at_once(options, complaint):
    given = {"spec": "poisson:1/s", "devices": 1, "seconds": 1.0, **options}
    with pytest.raises(InputError, match=complaint):
        draw_arrivals(rng=np.random.default_rng(0), **given)
