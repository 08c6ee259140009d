"""Test windows that are cut from whole signals, and from streams with gaps and jitter.

A late sample may be delayed by jitter or follow lost samples. The windower waits for later samples
before it decides. :meth:`.Windower.reset` makes it decide at once, so tests that count gaps call it
first. Delays and jitter are in sample intervals.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatewise.errors import InputError
from gatewise_signals import Windower, cut_windows


@given(
    st.integers(1, 12),
    st.integers(1, 20),
    st.lists(st.integers(0, 9), max_size=30),
    st.sampled_from([(), (3,)]),
)
def test_pushes_of_any_size_give_the_same_windows_as_cut_windows(length, hop, push_sizes, channels):
    n_samples = sum(push_sizes)
    signal = np.random.default_rng(0).integers(-99, 99, (n_samples, *channels)).astype(np.int16)
    expected_windows, starts = cut_windows(signal, length, hop)
    windower = Windower(length, hop, rate_hz=10.0)
    windows = []
    for push_size, end_sample in zip(push_sizes, np.cumsum(push_sizes), strict=True):
        first_sample = end_sample - push_size
        windows += windower.push(signal[first_sample:end_sample], time=5.0 + first_sample / 10.0)
    assert [window.start for window in windows] == starts.tolist()
    assert all(window.time == pytest.approx(5.0 + window.start / 10.0) for window in windows)
    np.testing.assert_array_equal(
        np.array([window.values for window in windows]).reshape(expected_windows.shape),
        expected_windows,
    )
    assert windower.n_gaps == 0


#: Sizes of pushes, and whether a gap precedes each.
PUSHES = st.lists(st.tuples(st.integers(2, 9), st.booleans()), min_size=1, max_size=20)


def push_with_gaps(windower, pushes):
    """Push the samples 0, 1, ... at 100 Hz; return their runs without a gap, and the windows."""
    time = 0.0
    n_samples = 0
    runs = [[]]
    windows = []
    for push_size, has_gap in pushes:
        if has_gap:
            time += 0.5
            runs.append([])
        samples = np.arange(n_samples, n_samples + push_size)
        windows += [window.values.tolist() for window in windower.push(samples, time)]
        runs[-1] += samples.tolist()
        n_samples += push_size
        time += push_size / 100.0
    return runs, windows


@given(PUSHES)
def test_no_window_spans_a_gap_and_samples_in_no_window_are_counted(pushes):
    windower = Windower(5, 2, rate_hz=100.0)
    runs, windows = push_with_gaps(windower, pushes)
    assert windows == [values.tolist() for run in runs for values in cut_windows(run, 5, 2)[0]]
    # nothing precedes the first push
    assert windower.n_gaps == sum(has_gap for _, has_gap in pushes[1:])
    samples_in_windows = {sample for window in windows for sample in window}
    # the samples of the last run may still get into a window
    samples_before_gaps = [sample for run in runs[:-1] for sample in run]
    assert windower.n_dropped == len(set(samples_before_gaps) - samples_in_windows)


def test_jitter_is_not_a_gap_but_a_decreasing_time_is():
    windower = Windower(4, rate_hz=10.0)
    assert not windower.push([0, 1], time=0.0)
    assert len(windower.push([2, 3], time=0.24)) == 1  # expected at 0.2 s
    assert windower.push([4, 5], time=0.0) == []
    assert windower.n_gaps == 1


@pytest.mark.parametrize("clock_error", [-0.05, 0.02, 0.05])
def test_a_clock_error_causes_neither_gaps_nor_drift(clock_error):
    """A sensor with a slow or fast clock delivers buffers of 32 samples."""
    windower = Windower(128, 64, rate_hz=104.0)
    true_rate_hz = 104.0 * (1 - clock_error)
    windows = []
    for start in range(0, 3200, 32):
        windows += windower.push(np.arange(start, start + 32), time=start / true_rate_hz)
    # 1 + (3200 - 128) / 64 windows
    assert (len(windows), windower.n_gaps, windower.n_dropped) == (49, 0, 0)
    # The time of a window is extrapolated at the nominal rate from the time of a push, which is at
    # most 96 samples away.
    for window in windows:
        assert window.time == pytest.approx(
            window.start / true_rate_hz, abs=96 * abs(clock_error) / true_rate_hz + 1e-9
        )
    windower.push(np.arange(32), time=3240 / true_rate_hz)  # 40 samples were lost
    assert windower.n_gaps == 1


@pytest.mark.parametrize(("delay_in_samples", "n_gaps"), [(3.1, 0), (3.3, 1), (-3.1, 0), (-3.3, 1)])
def test_a_clock_error_of_a_tenth_between_pushes_is_tolerated(delay_in_samples, n_gaps):
    """At 10 Hz, 32 samples take 3.2 s. A tenth of that is 3.2 sample intervals."""
    windower = Windower(64, rate_hz=10.0)
    windower.push(np.arange(32), time=0.0)
    assert len(windower.push(np.arange(32), time=3.2 + delay_in_samples / 10.0)) == 1 - n_gaps
    assert windower.n_gaps == n_gaps


@pytest.mark.parametrize(
    ("interval_ratio", "n_refused"), [(0.91, 0), (0.89, 1), (1.09, 0), (1.11, 1)]
)
def test_a_window_is_refused_if_its_mean_rate_differs_by_a_tenth(interval_ratio, n_refused):
    windower = Windower(65, rate_hz=10.0)
    windows = [
        window
        for number in range(65)
        for window in windower.push([number], time=number * interval_ratio / 10.0)
    ]
    assert (len(windows), windower.n_refused) == (1 - n_refused, n_refused)
    assert windower.n_gaps == 0
    assert windower.measured_hz == pytest.approx(10.0 / interval_ratio)


@pytest.mark.parametrize(
    ("jitter", "n_lost", "n_gaps"),
    [
        (0.7, 0, 0),  # some times are before the previous one
        (0.0, 1, 1),
        (0.3, 5, 1),  # a gap of several samples is found under jitter
    ],
)
def test_jitter_of_single_samples_is_not_a_gap_but_lost_samples_are(jitter, n_lost, n_gaps):
    windower = Windower(32, rate_hz=100.0)
    times = np.arange(200) + np.random.default_rng(0).uniform(-jitter, jitter, 200)
    times[100:] += n_lost
    for time in times / 100.0:
        windower.push([0], time=time)
    assert windower.n_gaps == n_gaps


def test_an_empty_push_changes_nothing():
    windower = Windower(4)
    samples = np.arange(4, dtype=np.int16)
    windower.push(samples[:3])
    assert windower.push([]) == []
    (window,) = windower.push(samples[3:])
    assert window.values.dtype == np.int16


def test_invalid_settings_and_samples_are_refused():
    for invalid_call in (
        lambda: Windower(0), lambda: Windower(4, 0), lambda: Windower(4, rate_hz=0),
        lambda: Windower(4).push([1], time=0.0),
        lambda: Windower(4, rate_hz=1).push([1], time=np.nan),
        lambda: Windower(4).push([["a"]]), lambda: cut_windows(np.zeros((2, 2, 2)), 1),
    ):  # fmt: skip
        with pytest.raises(InputError):
            invalid_call()
    windower = Windower(4)
    windower.push(np.zeros((2, 3)))
    with pytest.raises(InputError, match="channels"):
        windower.push(np.zeros((2, 2)))


def test_a_stream_with_constant_times_has_no_rate():
    windower = Windower(4, rate_hz=1.0)
    windower.push([0], time=3.0)
    assert windower.measured_hz is None
    windower.push([1], time=3.0)
    assert windower.is_timed
    assert windower.measured_hz is None
    windower.push([2], time=5.0)
    assert windower.measured_hz == 1.0


@pytest.mark.parametrize(("delay", "n_gaps"), [(0.75, 0), (0.9, 1)])
def test_a_delay_beyond_four_times_the_third_quartile_of_jitter_is_a_gap(delay, n_gaps):
    """Half of the pushes jitter by 0.2 intervals, so the third quartile is 0.2, and a gap 0.8."""
    windower = Windower(100, rate_hz=1.0)
    time = 0.0
    windower.push([0], time=time)
    for lateness in (0.0, 0.2, 0.0, -0.2) * 6:
        time += 1.0 + lateness
        windower.push([0], time=time)
    windower.push([0], time=time + 1.0 + delay)
    windower.reset()
    assert windower.n_gaps == n_gaps


@pytest.mark.parametrize(("delay", "n_gaps"), [(0.5, 0), (0.6, 1), (1.0, 1)])
def test_without_known_jitter_a_delay_of_half_an_interval_is_a_gap(delay, n_gaps):
    windower = Windower(10, rate_hz=1.0)
    for time in (0.0, 1.0, 2.0 + delay):
        windower.push([0], time=time)
    windower.reset()
    assert windower.n_gaps == n_gaps


@pytest.mark.parametrize(("delay", "n_gaps"), [(0.8, 0), (0.95, 1)])
def test_delays_are_measured_against_the_mean_rate_of_the_clock(delay, n_gaps):
    """Each push of four samples comes 0.4 intervals late, and half an interval more is a gap."""
    windower = Windower(1000, rate_hz=1.0)
    time = 0.0
    for _ in range(21):
        windower.push([0, 0, 0, 0], time=time)
        time += 4.4
    windower.push([0], time=time - 0.4 + delay)
    windower.reset()
    assert (windower.n_gaps, windower.n_samples) == (n_gaps, 85)  # 21 * 4 + 1


@pytest.mark.parametrize(("delay", "n_gaps"), [(1.9, 0), (2.1, 1)])
def test_the_mean_rate_is_the_median_of_the_latest_rates(delay, n_gaps):
    """Of 24 pushes of four samples, 14 come 0.4 intervals late and 10 on time.

    The median lateness is 0.4 intervals. The distances of the others from it have a third quartile
    of 0.4, and four times that is 1.6, so a gap begins at a delay of 2.0.
    """
    windower = Windower(1000, rate_hz=1.0)
    time = 0.0
    windower.push([0, 0, 0, 0], time=time)
    for lateness in [0.4, 0.0] * 10 + [0.4] * 4:
        time += 4.0 + lateness
        windower.push([0, 0, 0, 0], time=time)
    windower.push([0], time=time + 4.0 + delay)
    windower.reset()
    assert windower.n_gaps == n_gaps


def test_a_reset_drops_the_unfinished_window_and_counts_its_samples():
    windower = Windower(4, rate_hz=1.0)
    windower.reset()
    assert windower.n_dropped == 0
    assert not windower.is_timed
    windower.push([0, 1, 2])
    windower.reset()
    assert windower.n_dropped == 3
    assert [window.values.tolist() for window in windower.push([3, 4, 5, 6])] == [[3, 4, 5, 6]]


def test_times_of_single_samples_are_checked_after_sixteen_intervals():
    windower = Windower(100, rate_hz=1.0)
    times = [0.0, *np.arange(2.0, 17.0)]  # the second sample comes an interval late
    for time in times:
        windower.push([0], time=time)
    assert windower.n_gaps == 0  # 15 intervals
    windower.push([0], time=17.0)
    assert windower.n_gaps == 1
