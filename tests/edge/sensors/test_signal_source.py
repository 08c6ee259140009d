"""Faults of a signal are errors or counted; the rate and the width are converted if requested."""

from __future__ import annotations

import struct
import wave
from pathlib import Path

import numpy as np
import pytest
from scipy.signal import resample_poly

import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_edge.sensors.signal_source import SignalOptions, WindowResampler, open_signal
from gatewise_edge.stop_request import Stop

RATE = 100.0
LENGTH = 32
ACC = sig.Channels("acc", (0, 1), ("x", "y"), scale=0.5, unit="m/s2", rate_hz=RATE)
INPUT = sig.SignalInput(sig.SignalGraph([sig.Mean(ACC)]), (LENGTH, 2), "int16")
FLOAT_INPUT = sig.SignalInput(INPUT.graph, INPUT.shape)
RNG = np.random.default_rng(0)
COUNTS = RNG.integers(-3000, 3000, (10 * LENGTH, 2)).astype(np.int16)


def read(path, signal=INPUT, **options):
    """Read the windows and errors of a signal, and its counts; the last error may have ended it."""
    instances = []
    try:
        source = open_signal(str(path), signal, Stop(), SignalOptions(**options))
        instances += [instance for instance, _ in source]
    except InputError as error:
        return [*instances, error], {}
    return instances, source.counts


def wave_bytes(counts=COUNTS, width=2, rate=RATE, tag=1, size=None):
    """Make the content of a .wav file with float or PCM samples at full scale."""
    if tag == 3:
        data = (counts / 32768).astype(f"<f{width}").tobytes()
    elif width == 1:
        data = ((counts >> 8) + 128).astype("u1").tobytes()
    elif width == 3:
        data = (counts.astype("<i4") << 8).view("u1").reshape(-1, 4)[:, :3].tobytes()
    else:
        data = (counts.astype(f"<i{width}") << (8 * width - 16)).tobytes()
    channels = counts.shape[1]
    format_chunk = struct.pack(
        "<HHIIHH",
        tag,
        channels,
        int(rate),
        int(rate) * channels * width,
        channels * width,
        8 * width,
    )
    if tag == 0xFFFE:
        format_chunk += struct.pack("<HHIH", 22, 8 * width, 3, 1) + bytes(14)
    size = len(data) if size is None else size
    chunks = b"fmt " + struct.pack("<I", len(format_chunk)) + format_chunk
    chunks += b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", size) + data
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def lines(times, counts=COUNTS, header="t,a,b\n"):
    return header + "".join(f"{t:.6f},{a},{b}\n" for t, (a, b) in zip(times, counts, strict=False))


def save(path, array):
    np.save(path, array)
    return path.read_bytes()


TIMES = np.arange(len(COUNTS)) / RATE
LOST = np.delete(TIMES, 40)
BACKWARDS = np.concatenate([TIMES[100:200], TIMES[:100], TIMES[200:]])

FAULTS = {
    "rate of a .wav": ("r.wav", lambda: wave_bytes(rate=200)),
    "rate by times": ("r.csv", lambda: lines(TIMES / 2)),
    "rate by slow times": ("r.csv", lambda: lines(TIMES * 1.2)),
    "times in ms": ("r.csv", lambda: lines(TIMES * 1000)),
    "times in us": ("r.csv", lambda: lines(TIMES * 1e6)),
    "no increase of times": ("r.csv", lambda: lines(TIMES * 0)),
    "8 bits": ("r.wav", lambda: wave_bytes(width=1)),
    "24 bits": ("r.wav", lambda: wave_bytes(width=3)),
    "32 bits": ("r.wav", lambda: wave_bytes(width=4)),
    "extensible 32 bits": ("r.wav", lambda: wave_bytes(width=4, tag=0xFFFE)),
    "floats": ("r.wav", lambda: wave_bytes(width=4, tag=3)),
    "A-law": ("r.wav", lambda: wave_bytes(tag=6)),
    "one channel": ("r.wav", lambda: wave_bytes(COUNTS[:, :1])),
    "a lost sample": ("r.csv", lambda: lines(LOST, np.delete(COUNTS, 40, 0))),
    "a line that says gap": ("r.csv", lambda: lines(TIMES) + "gap\n" + lines(TIMES, header="")),
    "rows out of order": ("r.csv", lambda: lines(BACKWARDS)),
    "two rows exchanged": ("r.csv", lambda: lines(TIMES[[0, 1, 3, 2, *range(4, 320)]])),
    "a row twice": ("r.csv", lambda: lines(np.insert(TIMES, 9, TIMES[9]))),
    "a column of another channel": ("r.csv", lambda: lines(TIMES, header="t,acc_x,acc_z\n")),
    "no time in a row": ("r.csv", lambda: lines(TIMES).replace("\n0.100000,", "\nnan,")),
    "half a line": ("r.csv", lambda: lines(TIMES)[:-8].rpartition(",")[0]),
    "channels first": ("r.npy", lambda: COUNTS.T),
    "other numbers": ("r.npy", lambda: COUNTS.astype(np.int32) * 65536),
    "floats as counts": ("r.npy", lambda: COUNTS / 32768),
    "times that go back": ("r.csv", lambda: lines(TIMES[::-1])),
    "another kind of file": ("r.mp3", COUNTS.tobytes),
    "a .wav as plain numbers": ("r.raw", wave_bytes),
    "cut .wav": ("r.wav", lambda: wave_bytes()[:-7]),
    "cut .npy": ("r.npy", lambda: None),
    "cut stream": ("r.raw", lambda: COUNTS.tobytes() + b"\1"),
    "a .wav of no length": ("r.wav", lambda: wave_bytes(size=0)),
    "a .wav without samples": ("r.wav", lambda: wave_bytes(COUNTS[:0])),
    "an empty .wav": ("r.wav", lambda: b""),
    "a cut header": ("r.wav", lambda: wave_bytes()[:30]),
    "an empty .csv": ("r.csv", lambda: ""),
    "too few samples": ("r.csv", lambda: lines(TIMES[:20])),
}


def write_fault(folder, name):
    file, make = FAULTS[name]
    content = make()
    path = folder / file
    if content is None:
        path.write_bytes(save(path, COUNTS)[:-7])
    elif isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_of_a_recording_is_reported(name, tmp_path):
    instances, counts = read(write_fault(tmp_path, name))
    errors = [instance for instance in instances if isinstance(instance, InputError)]
    windows = [instance for instance in instances if not isinstance(instance, InputError)]
    valid_windows = []
    for window in windows:
        try:
            valid_windows.append(INPUT.checked(window[np.newaxis])[0])
        except InputError as error:
            errors.append(error)
    assert errors or counts["gaps"] or counts["flaws"], name
    # The windows that a device would answer have the recorded samples.
    n_starts = len(COUNTS) - LENGTH + 1
    recorded = {COUNTS[i : i + LENGTH].tobytes() for i in range(n_starts)}
    assert all(np.asarray(w, np.int16).tobytes() in recorded for w in valid_windows)


@pytest.mark.parametrize(
    ("name", "n_windows"),
    [("cut .wav", 9), ("cut .npy", 9), ("cut stream", 10), ("a .wav of no length", 10)],
)
def test_truncated_file_gives_its_complete_windows(name, n_windows, tmp_path):
    windows, counts = read(write_fault(tmp_path, name))
    np.testing.assert_array_equal(np.concatenate(windows), COUNTS[: n_windows * LENGTH])
    assert counts["flaws"] >= 1
    assert counts["windows"] == n_windows


@pytest.mark.parametrize(
    ("times", "advice"),
    [
        (TIMES * 1000, 'if the times are in ms, set time_unit = "ms"'),
        (TIMES / 2, "200 samples per second, but the bundle's blocks are for 100: set rate_hz"),
        (TIMES[::-1], "the times of the samples do not advance"),
        (TIMES * 0, "the times of the samples do not advance"),
    ],
)
def test_error_describes_times_of_another_rate(times, advice, tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(lines(times))
    (error,), _ = read(path)
    assert advice in str(error)


@pytest.mark.parametrize(
    ("times", "n_windows"),
    [
        (TIMES + RNG.uniform(-0.007, 0.007, len(TIMES)), 10),
        (TIMES + RNG.normal(0, 0.003, len(TIMES)), 10),
        (TIMES * 1.05, 10),
        (np.repeat(TIMES[::2], 2), 10),  # a driver that reads two samples at a time
        (TIMES.round(2) + 1.7e9, 10),
    ],
)
def test_jitter_and_clock_errors_are_no_gaps(times, n_windows, tmp_path):
    path = tmp_path / "r.csv"
    path.write_text(lines(times))
    windows, counts = read(path)
    assert (len(windows), counts["gaps"], counts["dropped_samples"]) == (n_windows, 0, 0)


def test_gap_is_detected_despite_jitter(tmp_path):
    times = TIMES + RNG.uniform(-0.004, 0.004, len(TIMES))
    times[100:] += 0.1
    path = tmp_path / "r.csv"
    path.write_text(lines(times))
    windows, counts = read(path)
    assert counts["gaps"] == 1
    assert [w[0, 0] for w in windows] == [*COUNTS[:96:LENGTH, 0], *COUNTS[100:292:LENGTH, 0]]


def test_columns_with_the_names_of_the_channels_may_have_any_order(tmp_path):
    path = tmp_path / "r.csv"
    for header, counts in (("sep=,\ny,x\n", COUNTS[:, ::-1]), ("acc_x,acc_y\n", COUNTS)):
        path.write_text(header + "".join(f"{a},{b}\n" for a, b in counts))
        assert np.array_equal(np.concatenate(read(path)[0]), COUNTS)
    rows = zip(COUNTS[:, 1], TIMES, COUNTS[:, 0], strict=True)
    path.write_text("y,time,x\n" + "".join(f"{b},{t},{a}\n" for b, t, a in rows))
    assert np.array_equal(np.concatenate(read(path)[0]), COUNTS)


@pytest.mark.parametrize(
    ("width", "tag", "tolerance"),
    [(1, 1, 255), (2, 1, 0), (3, 1, 0), (4, 1, 0), (4, 3, 0), (8, 3, 0), (2, 0xFFFE, 0)],
)
def test_every_width_is_converted_if_requested(width, tag, tolerance, tmp_path):
    path = tmp_path / "r.wav"
    path.write_bytes(wave_bytes(width=width, tag=tag))
    windows, _ = read(path, convert=True)
    assert windows[0].dtype == np.int16
    assert np.abs(np.concatenate(windows).astype(int) - COUNTS).max() <= tolerance
    float_windows, _ = read(path, FLOAT_INPUT, convert=True)
    np.testing.assert_allclose(np.concatenate(float_windows) * 32768, COUNTS, atol=tolerance)


def test_scale_and_offset_convert_to_the_counts_of_the_bundle(tmp_path):
    """A count of the sensor is 0.25 m/s2, and a count of the bundle 0.5 m/s2."""
    path = tmp_path / "r.npy"
    np.save(path, COUNTS.astype(np.int32) * 2 + 100)
    windows, _ = read(path, scale=(0.25,), offset=(-100.0,), unit="m/s2")
    assert np.array_equal(np.concatenate(windows), COUNTS)
    windows, _ = read(path, scale=(0.25, 0.5), offset=(-100.0,))
    assert np.array_equal(np.concatenate(windows), COUNTS * [1, 2])
    for options, message in (
        ({"unit": "g"}, r"unit g: channel 'acc_x' of the bundle is in m/s2"),
        ({"scale": (1.0, 2.0, 3.0)}, "scale: give one number, or one for each"),
        ({"scale": (0.0,)}, "scale is 0"),
        ({"time_unit": "min"}, "time_unit: must be 'ms' or 'ns'"),
    ):
        (error,), _ = read(path, **options)
        assert message in str(error)


@pytest.mark.parametrize("rate", [200.0, 44.1, 250.0])
def test_samples_of_another_rate_are_resampled_if_requested(rate, tmp_path):
    t = np.arange(2000) / rate
    tone = 3000 * np.sin(2 * np.pi * 5 * t)
    path = tmp_path / "r.npy"
    np.save(path, np.stack([tone, -tone], 1))
    source = open_signal(str(path), INPUT, Stop(), SignalOptions(rate_hz=rate, convert=True))
    for window, fields in source:
        begin = fields["time"]
        expected = 3000 * np.sin(2 * np.pi * 5 * (begin + np.arange(LENGTH) / RATE))
        np.testing.assert_allclose(window[:, 0], expected, atol=12)
    (error,), _ = read(path, rate_hz=rate)
    assert "convert = true in --settings resamples them" in str(error)


def test_window_resampler_is_exact_within_a_window():
    resampler = WindowResampler(200.0, 100.0, LENGTH)
    x = RNG.normal(size=(2000, 2))
    expected = resample_poly(x, 1, 2)
    window = resampler.resample(x[100 : 100 + resampler.length])
    begin = (100 + resampler.margin) // 2
    np.testing.assert_allclose(window, expected[begin : begin + LENGTH], atol=1e-12)


def test_flac_is_read_if_soundfile_is_installed(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "r.flac"
    soundfile.write(path, COUNTS, 100, subtype="PCM_16")
    windows, _ = read(path)
    assert np.array_equal(np.concatenate(windows), COUNTS)
    soundfile.write(path, COUNTS.astype(np.int32) << 16, 100, subtype="PCM_24")
    (error,), _ = read(path)
    assert "integers of 24 bits, but the bundle was trained on int16" in str(error)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    instances, counts = read(path, convert=True)
    assert not instances or isinstance(instances[-1], InputError) or counts["flaws"]
    monkeypatch.setitem(__import__("sys").modules, "soundfile", None)
    (error,), _ = read(path)
    assert "gatewise[audio]" in str(error)


def test_wave_file_of_the_standard_library_is_read(tmp_path):
    path = Path(tmp_path / "r.wav")
    with wave.open(str(path), "wb") as out:
        out.setparams((2, 2, int(RATE), 0, "NONE", ""))
        out.writeframes(COUNTS.astype("<i2").tobytes())
    assert np.array_equal(np.concatenate(read(path)[0]), COUNTS)
