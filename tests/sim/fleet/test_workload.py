"""Tests of arrivals and their distributions, and of parsed workloads.

Numbers may differ by four standard deviations from their means. A correct draw fails a test with a
p-value of 1e-3 for one seed in a thousand.
"""

import math

import numpy as np
import pytest
from scipy import stats

from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_sim.fleet.workload import (
    Bursty,
    Diurnal,
    Periodic,
    Poisson,
    Replay,
    draw_arrivals,
    read_workload,
)
from tests.support.refused import assert_refused

#: Times and rows of three devices.
TRACE = (
    [np.array([0.0, 1.5, 2.0, 2.0, 90.0]), np.array([30.0]), np.array([0.1, 119.0])],
    [np.arange(5), np.array([7]), np.array([3, 4])],
)
WORKLOADS = {
    "poisson": Poisson(0.1),
    "periodic": Periodic(7.0, jitter_s=3.0),
    "aligned": Periodic(7.0, is_aligned=True),
    "bursty": Bursty(0.2, rate_ratio=30, mean_burst_s=20, mean_period_s=100),
    "diurnal": Diurnal(0.1, peak_time_of_day=200.0, rate_ratio=9),
    "replay": Replay(*TRACE, period_s=120.0),
    "replay once": Replay(*TRACE),
}


@pytest.mark.parametrize("workload_name", WORKLOADS)
def test_arrivals_are_sorted_and_follow_from_the_seed(workload_name):
    arrivals, repeated_arrivals, other_arrivals = (
        draw_arrivals(WORKLOADS[workload_name], 40, 600.0, n_rows=11, seed=seed)
        for seed in (0, 0, 1)
    )
    for column, repeated_column in zip(arrivals, repeated_arrivals, strict=True):
        assert np.array_equal(column, repeated_column)
    if workload_name not in ("aligned", "replay once"):
        assert not np.array_equal(arrivals.time, other_arrivals.time)
    assert 0 <= arrivals.time[0] <= arrivals.time[-1] < 600
    gaps = np.diff(arrivals.time)
    assert ((gaps > 0) | ((gaps == 0) & (np.diff(arrivals.device) >= 0))).all()
    assert set(arrivals.device) <= set(range(40))
    assert set(arrivals.row) <= set(range(11))
    subset = arrivals.subset(arrivals.device < 7)
    assert set(subset.device) <= set(range(7))
    assert len(subset.time) == (arrivals.device < 7).sum()


def test_poisson_gaps_are_exponential_and_counts_poisson():
    times, devices, rows = draw_arrivals(Poisson(0.5), 200, 1000.0, n_rows=20)
    assert stats.chisquare(np.bincount(rows, minlength=20)).pvalue > 1e-3
    expected_count = 200 * 1000 * 0.5
    assert abs(len(times) - expected_count) < 4 * math.sqrt(expected_count)
    gaps = np.concatenate([np.diff(times[devices == device], prepend=0.0) for device in range(200)])
    assert stats.kstest(gaps, "expon", args=(0, 2.0)).pvalue > 1e-3
    counts = np.bincount(devices, minlength=200)
    dispersion = counts.var(ddof=1) / counts.mean()  # 1 for Poisson, chi-square with 199 degrees
    assert abs(dispersion - 1) < 4 * math.sqrt(2 / 199)


def test_periodic_arrivals_without_jitter_are_exact():
    times, devices, _ = draw_arrivals(Periodic(10.0), 50, 1000.0, n_rows=1)
    assert np.bincount(devices).tolist() == [100] * 50
    first_times = times[:50]
    assert first_times.max() < 10
    assert stats.kstest(first_times / 10, "uniform").pvalue > 1e-3
    for device in range(50):
        np.testing.assert_allclose(np.diff(times[devices == device]), 10.0, rtol=1e-9)


def test_jitter_moves_arrivals_across_start_and_end():
    times, devices, _ = draw_arrivals(Periodic(10.0, jitter_s=10.0), 400, 100.0, n_rows=1)
    assert set(np.bincount(devices, minlength=400)) <= {9, 10, 11}
    # each count differs from 10, by one, with a probability below one half
    assert abs(len(times) - 4000) < 4 * math.sqrt(400 / 2)
    first_times = np.array([times[devices == device][0] for device in range(400)])
    # A device with the phase 10 u has no arrival in the first period if the jitter moves one of the
    # period before out of the run, with the probability 1 - u, and the next one out of the period,
    # with the probability u. The integral of u (1 - u) is 1/6, and 1/6 * 5/6 is the variance.
    assert abs((first_times < 10).sum() - 400 * 5 / 6) < 4 * math.sqrt(400 * 5 / 36)


def test_bursty_arrivals_keep_the_mean_rate_and_form_clusters():
    workload = Bursty(0.1, rate_ratio=20, mean_burst_s=30, mean_period_s=300)
    seconds, n_devices = 30_000.0, 100
    _, devices, _ = draw_arrivals(workload, n_devices, seconds, n_rows=1)
    counts = np.bincount(devices, minlength=n_devices)
    # the variance of a count over T is mean + 2 (r1 - r0)^2 p q T / s with s = 1/on + 1/off, if T
    # is much longer than 1/s (Fischer and Meier-Hellstern 1993)
    quiet_rate, burst_rate = workload.rates
    burst_share = 0.1  # 30 s of 300 s
    assert quiet_rate * (1 - burst_share) + burst_rate * burst_share == pytest.approx(0.1)
    switching_rate = 1 / 30 + 1 / 270  # mean lengths of a burst and of a quiet time
    share_variance = burst_share * (1 - burst_share)
    rate_variance = 2 * (burst_rate - quiet_rate) ** 2 * share_variance / switching_rate
    variance = seconds * (0.1 + rate_variance)
    assert abs(counts.mean() - 0.1 * seconds) < 4 * math.sqrt(variance / n_devices)
    assert counts.var(ddof=1) / variance == pytest.approx(1, abs=4 * math.sqrt(2 / (n_devices - 1)))
    assert variance > 10 * 0.1 * seconds  # a Poisson process has a variance of 0.1 * seconds


def test_diurnal_rate_follows_the_cosine():
    workload = Diurnal(1 / 60, peak_time_of_day=14 * 3600.0, rate_ratio=5)
    times, _, _ = draw_arrivals(workload, 100, DAY, n_rows=1)
    counts_by_hour = np.bincount((times // 3600).astype(int), minlength=24)
    # integrate over steps of 10 s by the midpoint rule; an hour has 360 of them
    rate_times = np.linspace(0, DAY, 24 * 360 + 1)
    expected_counts = 100 * np.add.reduceat(
        workload.rate_at(rate_times[:-1] + 5) * 10, np.arange(0, 8640, 360)
    )
    # 100 devices with one arrival per minute of a day
    assert expected_counts.sum() == pytest.approx(144_000, rel=1e-6)
    assert (np.abs(counts_by_hour - expected_counts) < 4 * np.sqrt(expected_counts)).all()
    rates = workload.rate_at(np.array([14 * 3600.0, 2 * 3600.0]))
    assert rates[0] / rates[1] == pytest.approx(5)
    afternoon_workload = read_workload(
        "diurnal:1/min:peak=14:00:ratio=5", start_time_of_day=14 * 3600.0
    )
    assert afternoon_workload.rate_at(np.array([0.0])) == pytest.approx(rates[0])


def test_trace_is_replayed_exactly():
    times, devices, rows = draw_arrivals(Replay(*TRACE), 4, 100.0, n_rows=8)
    assert times.tolist() == [0.0, 0.0, 0.1, 1.5, 1.5, 2.0, 2.0, 2.0, 2.0, 30.0, 90.0, 90.0]
    assert devices.tolist() == [0, 3, 2, 0, 3, 0, 0, 3, 3, 1, 0, 3]
    assert rows.tolist() == [0, 0, 3, 1, 1, 2, 3, 2, 3, 7, 4, 4]


def test_trace_repeats_and_copies_start_at_other_times():
    times, devices, rows = draw_arrivals(WORKLOADS["replay"], 60, 360.0, n_rows=8)
    device_times = times[devices == 0]
    np.testing.assert_allclose(device_times.reshape(3, 5) - [[0], [120], [240]], [TRACE[0][0]] * 3)
    # three periods of 5, 1 and 2 arrivals
    assert np.bincount(devices).tolist() == [15, 3, 6] * 20
    assert set(rows[devices % 3 == 1]) == {7}  # the only row of the second device
    first_times = [times[devices == device][0] for device in range(4, 60, 3)]
    assert len(set(first_times)) == len(first_times)


def test_trace_with_an_unknown_row_is_refused():
    with pytest.raises(InputError, match="row 7 is beyond the 5 rows of the table"):
        draw_arrivals(WORKLOADS["replay"], 3, 60.0, n_rows=5)


def test_trace_is_read_from_a_file(tmp_path):
    path = tmp_path / "trace.csv"
    path.write_text("time,device,row\n5,b,1\n1,a,0\n3,b,2\n")
    trace = read_workload(f"replay:{path}:every=1min")
    assert [times.tolist() for times in trace.times] == [[3.0, 5.0], [1.0]]
    assert [rows.tolist() for rows in trace.rows] == [[2, 1], [0]]
    assert trace.period_s == 60
    path.write_text("time\n0.5\n")
    arrivals = draw_arrivals(read_workload(f"replay:{path}"), 2, 10.0, n_rows=1)
    assert arrivals.time.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("time\n", "has no arrivals"),
        ("when\n1\n", "needs a column 'time'"),
        ("time,who\n1,2\n", "unknown column 'who'"),
        ("time\nx\n", "line 2: time: 'x' is not a number"),
        ("time\n-1\n", "line 2: time"),
        ("time,row\n1,-1\n", "row '-1' is not a row number"),
    ],
)
def test_error_of_an_invalid_trace_names_the_line(tmp_path, text, message):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    assert_refused(read_workload, f"replay:{path}", message=message)


@pytest.mark.parametrize(
    ("text", "workload"),
    [
        ("poisson:1/min", Poisson(1 / 60)),
        ("periodic:10s", Periodic(10.0)),
        ("periodic:6/min:jitter=500ms:aligned=yes", Periodic(10.0, 0.5, True)),
        ("bursty:1/s", Bursty(1.0, 20, 30, 600)),  # the defaults of the docs
        ("bursty:1/s:ratio=5:burst=1s:every=1min", Bursty(1.0, 5, 1, 60)),
        ("diurnal:1/min:peak=14:00:ratio=5", Diurnal(1 / 60, 50_400, 5)),
        ("diurnal:24/day:ratio=2:peak=6:30", Diurnal(1 / 3600, 23_400, 2)),
    ],
)
def test_workloads_are_parsed(text, workload):
    assert read_workload(text) == workload


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "choose one of poisson, periodic, bursty, diurnal, replay"),
        ("poisson", "a rate (1/min) must follow poisson:"),
        ("poisson:1", "'1' is not a rate"),
        ("poisson:0/s", "must be above 0"),
        ("poisson:1/s:ratio=3", "unknown option 'ratio'; the options are none"),
        ("bursty:1/s:ratio=3:ratio=4", "the option ratio occurs twice"),
        ("bursty:1/s:ratio=0.5", "ratio must be at least 1"),
        ("bursty:1/s:ratio=x", "workload bursty: ratio: 'x' is not a number"),
        ("bursty:1/s:burst=20min", "burst must be above 0 and shorter than every"),
        ("periodic:0s", "the period must be above 0"),
        ("periodic:1s:jitter=2s", "jitter must not be longer than the period"),
        ("periodic:1s:aligned=maybe", "write yes or no"),
        ("diurnal:1/s:peak=25:00", "workload diurnal: peak: '25:00' is not a time of day"),
        ("diurnal:1/s:ratio=0.2", "ratio must be at least 1"),
        ("replay:nowhere.csv", "nowhere.csv does not exist"),
    ],
)
def test_invalid_workload_is_refused_in_one_line(text, message):
    assert_refused(read_workload, text, message=message)
