"""Faults of a signal are errors or counted; the rate and the width are converted if requested."""

from __future__ import annotations

import datetime
import struct
import sys

import numpy as np
import pytest
from scipy.signal import resample_poly

import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_edge.sensors.sample_conversion import WindowResampler
from gatewise_edge.sensors.signal_source import SignalOptions, open_signal
from gatewise_edge.stop_request import StopRequest

RATE_HZ = 100.0
#: Samples of a window.
LENGTH = 32
ACCELERATION = sig.Channels("acc", (0, 1), ("x", "y"), scale=0.5, unit="m/s2", rate_hz=RATE_HZ)
SIGNAL_INPUT = sig.SignalInput(sig.SignalGraph([sig.Mean(ACCELERATION)]), (LENGTH, 2), "int16")
FLOAT_SIGNAL_INPUT = sig.SignalInput(SIGNAL_INPUT.graph, SIGNAL_INPUT.shape)
RNG = np.random.default_rng(0)
#: Samples of ten windows.
COUNTS = RNG.integers(-3000, 3000, (10 * LENGTH, 2)).astype(np.int16)


def read_instances(path, signal=SIGNAL_INPUT, **options):
    """Read the windows and errors of a signal, and its counts; the last error may have ended it."""
    instances = []
    try:
        source = open_signal(str(path), signal, StopRequest(), SignalOptions(**options))
        instances += [instance for instance, _ in source]
    except InputError as error:
        return [*instances, error], {}
    return instances, source.counts


@pytest.fixture
def read_csv(tmp_path):
    """Function that writes the text of a recording, and reads its instances and counts."""

    def write_and_read(text, **options):
        (tmp_path / "r.csv").write_text(text)
        return read_instances(tmp_path / "r.csv", **options)

    return write_and_read


def assert_recorded(windows, expected_samples=COUNTS):
    np.testing.assert_array_equal(np.concatenate(windows), expected_samples)


#: Format tags of a .wav file, from Microsoft's `mmreg.h`.
PCM_TAG = 1
FLOAT_TAG = 3
A_LAW_TAG = 6
EXTENSIBLE_TAG = 0xFFFE


def wave_bytes(
    counts=COUNTS, sample_bytes=2, rate_hz=RATE_HZ, format_tag=PCM_TAG, n_stated_bytes=None
):
    """Make the content of a .wav file with float or PCM samples at full scale."""
    # Convert the 16-bit counts to the width: bytes are unsigned, wider integers are shifted left.
    if format_tag == FLOAT_TAG:
        samples = (counts / 32768).astype(f"<f{sample_bytes}").tobytes()
    elif sample_bytes == 1:
        samples = ((counts >> 8) + 128).astype("u1").tobytes()
    elif sample_bytes == 3:
        samples = (counts.astype("<i4") << 8).view("u1").reshape(-1, 4)[:, :3].tobytes()
    else:
        samples = (counts.astype(f"<i{sample_bytes}") << (8 * sample_bytes - 16)).tobytes()
    n_channels = counts.shape[1]
    format_chunk = struct.pack(
        "<HHIIHH",
        format_tag,
        n_channels,
        int(rate_hz),
        int(rate_hz) * n_channels * sample_bytes,
        n_channels * sample_bytes,
        8 * sample_bytes,
    )
    if format_tag == EXTENSIBLE_TAG:
        # Size of the extension, valid bits, mask of two speakers, and the GUID of PCM.
        format_chunk += struct.pack("<HHIH", 22, 8 * sample_bytes, 3, 1) + bytes(14)
    n_stated_bytes = len(samples) if n_stated_bytes is None else n_stated_bytes
    chunks = b"fmt " + struct.pack("<I", len(format_chunk)) + format_chunk
    # A chunk to skip; its odd length is padded.
    chunks += b"LIST" + struct.pack("<I", 3) + b"abc\0"
    chunks += b"data" + struct.pack("<I", n_stated_bytes) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def csv_lines(times, counts=COUNTS, header="t,a,b\n"):
    return header + "".join(
        f"{time:.6f},{x},{y}\n" for time, (x, y) in zip(times, counts, strict=False)
    )


def rows_of(counts=COUNTS):
    return "".join(f"{x},{y}\n" for x, y in counts)


TIMES = np.arange(len(COUNTS)) / RATE_HZ
TIMES_WITH_A_GAP = np.delete(TIMES, 40)  # within the second window
TIMES_OUT_OF_ORDER = np.concatenate([TIMES[100:200], TIMES[:100], TIMES[200:]])

#: File name and content of a recording with each fault.
FAULTS = {
    "rate of a .wav": ("r.wav", lambda: wave_bytes(rate_hz=200)),
    "rate by times": ("r.csv", lambda: csv_lines(TIMES / 2)),
    "rate by slow times": ("r.csv", lambda: csv_lines(TIMES * 1.2)),
    "times in ms": ("r.csv", lambda: csv_lines(TIMES * 1000)),
    "times in us": ("r.csv", lambda: csv_lines(TIMES * 1e6)),
    "no increase of times": ("r.csv", lambda: csv_lines(TIMES * 0)),
    "8 bits": ("r.wav", lambda: wave_bytes(sample_bytes=1)),
    "24 bits": ("r.wav", lambda: wave_bytes(sample_bytes=3)),
    "32 bits": ("r.wav", lambda: wave_bytes(sample_bytes=4)),
    "extensible 32 bits": ("r.wav", lambda: wave_bytes(sample_bytes=4, format_tag=EXTENSIBLE_TAG)),
    "floats": ("r.wav", lambda: wave_bytes(sample_bytes=4, format_tag=FLOAT_TAG)),
    "A-law": ("r.wav", lambda: wave_bytes(format_tag=A_LAW_TAG)),
    "one channel": ("r.wav", lambda: wave_bytes(COUNTS[:, :1])),
    "a lost sample": ("r.csv", lambda: csv_lines(TIMES_WITH_A_GAP, np.delete(COUNTS, 40, 0))),
    "a line gap": ("r.csv", lambda: csv_lines(TIMES) + "gap\n" + csv_lines(TIMES, header="")),
    "rows out of order": ("r.csv", lambda: csv_lines(TIMES_OUT_OF_ORDER)),
    "two rows exchanged": ("r.csv", lambda: csv_lines(TIMES[[0, 1, 3, 2, *range(4, 320)]])),
    "a row twice": ("r.csv", lambda: csv_lines(np.insert(TIMES, 9, TIMES[9]))),
    "a column of another channel": ("r.csv", lambda: csv_lines(TIMES, header="t,acc_x,acc_z\n")),
    "no time in a row": ("r.csv", lambda: csv_lines(TIMES).replace("\n0.100000,", "\nnan,")),
    "half a line": ("r.csv", lambda: csv_lines(TIMES)[:-8].rpartition(",")[0]),
    "channels first": ("r.npy", lambda: COUNTS.T),
    "other numbers": ("r.npy", lambda: COUNTS.astype(np.int32) * 65536),
    "floats as counts": ("r.npy", lambda: COUNTS / 32768),
    "times that go back": ("r.csv", lambda: csv_lines(TIMES[::-1])),
    "another kind of file": ("r.mp3", COUNTS.tobytes),
    "a .wav as plain numbers": ("r.raw", wave_bytes),
    "cut .wav": ("r.wav", lambda: wave_bytes()[:-7]),
    "cut .npy": ("r.npy", lambda: COUNTS),  # see `write_fault`
    "cut stream": ("r.raw", lambda: COUNTS.tobytes() + b"\1"),
    "a .wav of no length": ("r.wav", lambda: wave_bytes(n_stated_bytes=0)),
    "a .wav without samples": ("r.wav", lambda: wave_bytes(COUNTS[:0])),
    "an empty .wav": ("r.wav", lambda: b""),
    "a cut header": ("r.wav", lambda: wave_bytes()[:30]),
    "an empty .csv": ("r.csv", lambda: ""),
    "too few samples": ("r.csv", lambda: csv_lines(TIMES[:20])),
}


def write_fault(folder, fault_name):
    file_name, make_content = FAULTS[fault_name]
    content = make_content()
    path = folder / file_name
    if isinstance(content, np.ndarray):
        np.save(path, content)
    else:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    if fault_name == "cut .npy":
        path.write_bytes(path.read_bytes()[:-7])
    return path


@pytest.mark.parametrize("fault_name", FAULTS)
def test_every_fault_of_a_recording_is_reported(fault_name, tmp_path):
    instances, counts = read_instances(write_fault(tmp_path, fault_name))
    errors = [instance for instance in instances if isinstance(instance, InputError)]
    windows = [instance for instance in instances if not isinstance(instance, InputError)]
    valid_windows = []
    for window in windows:
        try:
            valid_windows.append(SIGNAL_INPUT.as_checked_array(window[np.newaxis])[0])
        except InputError as error:
            errors.append(error)
    assert errors or counts["gaps"] or counts["flaws"], fault_name
    # The windows that a device would answer have the recorded samples.
    n_starts = len(COUNTS) - LENGTH + 1
    recorded_windows = {COUNTS[i : i + LENGTH].tobytes() for i in range(n_starts)}
    assert all(
        np.asarray(window, np.int16).tobytes() in recorded_windows for window in valid_windows
    )


@pytest.mark.parametrize(
    ("fault_name", "n_windows"),
    # The cut of a file is in the last of ten windows; the stream has one byte too many.
    [("cut .wav", 9), ("cut .npy", 9), ("cut stream", 10), ("a .wav of no length", 10)],
)
def test_truncated_file_gives_its_complete_windows(fault_name, n_windows, tmp_path):
    windows, counts = read_instances(write_fault(tmp_path, fault_name))
    assert_recorded(windows, COUNTS[: n_windows * LENGTH])
    assert counts["flaws"] >= 1
    assert counts["windows"] == n_windows


@pytest.mark.parametrize("signature", [b"RF64", b"BW64"])
def test_a_long_wave_file_ends_at_the_size_in_its_ds64_chunk(signature, tmp_path):
    path = tmp_path / "r.wav"
    content = wave_bytes(n_stated_bytes=0xFFFFFFFF)
    long_sizes = struct.pack("<QQQI", len(content), COUNTS.nbytes, len(COUNTS), 0)
    ds64_chunk = b"ds64" + struct.pack("<I", len(long_sizes)) + long_sizes
    # Editors add chunks behind the samples.
    path.write_bytes(
        signature + content[4:12] + ds64_chunk + content[12:] + b"LIST\x40\0\0\0" + bytes(64)
    )
    windows, counts = read_instances(path)
    assert_recorded(windows)
    assert (counts["samples"], counts["flaws"]) == (len(COUNTS), 0)


@pytest.mark.parametrize(
    ("times", "time_unit", "advice"),
    [
        (TIMES * 1000, "s", 'if the times are in ms, set time_unit = "ms"'),
        (TIMES, "us", 'if the times are in s, set time_unit = "s"'),
        (TIMES * 1e6, "ms", 'if the times are in us, set time_unit = "us"'),
        (TIMES / 2, "s", "200 samples per second, but the bundle's blocks are for 100: set rate_h"),
        (TIMES[::-1], "s", "the times of the samples do not advance"),
        (TIMES * 0, "s", "the times of the samples do not advance"),
    ],
)
def test_error_describes_times_of_another_rate(times, time_unit, advice, read_csv):
    (error,), _ = read_csv(csv_lines(times), time_unit=time_unit)
    assert advice in str(error)


@pytest.mark.parametrize(
    "times",
    [
        # A sample takes 10 ms.
        TIMES + RNG.uniform(-0.007, 0.007, len(TIMES)),
        TIMES + RNG.normal(0, 0.003, len(TIMES)),
        TIMES * 1.05,  # a clock that is 5 % wrong
        np.repeat(TIMES[::2], 2),  # a driver that reads two samples at a time
        TIMES.round(2) + 1.7e9,  # seconds since 1970
    ],
)
def test_jitter_and_clock_errors_are_no_gaps(times, read_csv):
    windows, counts = read_csv(csv_lines(times))
    assert (len(windows), counts["gaps"], counts["dropped_samples"]) == (10, 0, 0)


def test_gap_is_detected_despite_jitter(read_csv):
    times = TIMES + RNG.uniform(-0.004, 0.004, len(TIMES))
    times[100:] += 0.1  # ten samples are lost
    windows, counts = read_csv(csv_lines(times))
    assert counts["gaps"] == 1
    # Three windows of 32 fit the 100 samples before the gap, and six the 220 after it.
    assert_recorded(windows, np.concatenate([COUNTS[:96], COUNTS[100:292]]))


def test_columns_with_the_names_of_the_channels_may_have_any_order(read_csv):
    for header, counts in (
        ("sep=,\ny,x\n", COUNTS[:, ::-1]),
        ("sep=\t\ny,x\n", COUNTS[:, ::-1]),
        ("acc_x,acc_y\n", COUNTS),
    ):
        assert_recorded(read_csv(header + rows_of(counts))[0])
    rows = zip(COUNTS[:, 1], TIMES, COUNTS[:, 0], strict=True)
    text = "y,time,x\n" + "".join(f"{y},{time},{x}\n" for y, time, x in rows)
    assert_recorded(read_csv(text)[0])


def test_header_without_the_names_of_the_channels_is_logged(read_csv, caplog):
    assert_recorded(read_csv("acc_x,acc_y\n" + rows_of())[0])
    assert not caplog.text
    # a gyroscope's channels, or other names of the same
    assert_recorded(read_csv("gx,gy\n" + rows_of())[0])
    assert caplog.text.count("the columns are gx, gy, not the bundle's channels") == 1


def test_column_that_is_read_as_the_time_is_logged(read_csv, caplog):
    caplog.set_level("INFO", logger="gatewise_edge")
    (error,), _ = read_csv("acc_x,acc_y,temperature\n" + "1,2,20.5\n" * LENGTH)
    assert "the times of the samples do not advance" in str(error)
    assert "the times are read from the column 'temperature' (numbers in s)" in caplog.text


@pytest.mark.parametrize("zone", ["", "Z", "+02:00"])
def test_times_may_be_in_iso_8601(zone, read_csv):
    start = datetime.datetime(2026, 3, 29, 1, 59, 59)  # in Europe the next second is 3 o'clock
    rows = [
        f"{(start + datetime.timedelta(seconds=time)).isoformat()}{zone},{x},{y}\n"
        for time, (x, y) in zip(TIMES, COUNTS, strict=True)
    ]
    del rows[3 * LENGTH]
    windows, counts = read_csv("time,x,y\n" + "".join(rows))
    assert (len(windows), counts["gaps"], counts["bad_samples"]) == (9, 1, 0)
    error = read_csv("time,x,y\n29.3.2026 2:00,1,2\n" + "".join(rows))[0][0]
    assert "line 2: '29.3.2026 2:00' is not a time: give a number, or ISO 8601" in str(error)


def test_cells_may_have_quotes(read_csv):
    quoted_rows = "".join(f'"{x}","{y}"\n' for x, y in COUNTS)
    assert_recorded(read_csv('"acc_x","acc_y"\n' + quoted_rows)[0])


def test_cells_beside_the_columns_of_the_header_are_no_values(read_csv):
    # R writes the names of rows, but no cell above them.
    (_, error), _ = read_csv("acc_x,acc_y\n" + "1,2\n" * LENGTH + "7,1,2\n")
    assert f"line {LENGTH + 2}: 3 cells, but the header has 2" in str(error)
    (error,), _ = read_csv("time,acc_x,acc_y,temperature\n" + "7,1,2,20\n" * LENGTH)
    assert "leave only the time and the bundle's channels acc_x, acc_y" in str(error)


@pytest.mark.parametrize(
    ("signal_format", "samples", "tolerance"),
    [
        ("float32", (COUNTS / 32768).astype("<f4"), 0),
        ("int16", COUNTS, 0),
        ("int8", (COUNTS >> 8).astype("i1"), 255),
        ("uint8", ((COUNTS >> 8) + 128).astype("u1"), 255),
    ],
)
def test_stream_of_another_type_is_converted_if_requested(
    signal_format, samples, tolerance, tmp_path
):
    path = tmp_path / "r.bin"
    path.write_bytes(samples.tobytes())
    windows, _ = read_instances(path, signal_format=signal_format, convert=True)
    np.testing.assert_allclose(np.concatenate(windows), COUNTS, atol=tolerance, rtol=0)


@pytest.mark.parametrize(
    ("signal", "signal_format"), [(FLOAT_SIGNAL_INPUT, "int16"), (SIGNAL_INPUT, "uint8")]
)
def test_integers_of_a_stream_of_another_width_are_refused(signal, signal_format, tmp_path):
    path = tmp_path / "r.bin"
    path.write_bytes(COUNTS.tobytes())
    (error,), _ = read_instances(path, signal, signal_format=signal_format)
    assert f"but the bundle was trained on {signal.dtype}; in --settings, convert" in str(error)
    windows, _ = read_instances(path, signal, signal_format="int16", scale=0.5)
    assert_recorded(windows)  # a count of the bundle is 0.5


@pytest.mark.parametrize(
    ("sample_bytes", "format_tag", "tolerance"),
    [
        (1, PCM_TAG, 255),  # a byte lacks the lower eight bits
        (2, PCM_TAG, 0),
        (3, PCM_TAG, 0),
        (4, PCM_TAG, 0),
        (4, FLOAT_TAG, 0),
        (8, FLOAT_TAG, 0),
        (2, EXTENSIBLE_TAG, 0),
    ],
)
def test_every_width_is_converted_if_requested(sample_bytes, format_tag, tolerance, tmp_path):
    path = tmp_path / "r.wav"
    path.write_bytes(wave_bytes(sample_bytes=sample_bytes, format_tag=format_tag))
    windows, _ = read_instances(path, convert=True)
    assert windows[0].dtype == np.int16
    assert np.abs(np.concatenate(windows).astype(int) - COUNTS).max() <= tolerance
    float_windows, _ = read_instances(path, FLOAT_SIGNAL_INPUT, convert=True)
    np.testing.assert_allclose(np.concatenate(float_windows) * 32768, COUNTS, atol=tolerance)


def test_scale_and_offset_convert_to_the_counts_of_the_bundle(tmp_path):
    """A count of the sensor is 0.25 m/s2, and a count of the bundle 0.5 m/s2."""
    path = tmp_path / "r.npy"
    np.save(path, COUNTS.astype(np.int32) * 2 + 100)
    for options, expected_samples in (
        ({"scale": (0.25,), "offset": (-100.0,), "unit": "m/s2"}, COUNTS),
        ({"scale": 0.25, "offset": -100.0}, COUNTS),
        ({"scale": (0.25, 0.5), "offset": (-100.0,)}, COUNTS * [1, 2]),
    ):
        assert_recorded(read_instances(path, **options)[0], expected_samples)
    for options, message in (
        ({"unit": "g"}, r"unit g: channel 'acc_x' of the bundle is in m/s2"),
        ({"scale": (1.0, 2.0, 3.0)}, "scale: give one number, or one for each"),
        ({"scale": (0.0,)}, "scale is 0"),
        ({"scale": 0.0}, "scale is 0"),
        ({"scale": float("nan")}, "scale: must be"),
        ({"scale": (float("inf"), 1.0)}, "scale[0]: must be"),
        ({"offset": (float("nan"),)}, "offset[0]: must be"),
        ({"time_unit": "min"}, "time_unit: must be 'ms' or 'ns'"),
    ):
        (error,), _ = read_instances(path, **options)
        assert message in str(error)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rate_hz", [None, 2 * RATE_HZ])
def test_no_integer_replaces_a_sample_without_a_value(value, rate_hz, tmp_path):
    path = tmp_path / "r.npy"
    counts = COUNTS.astype(np.float32)
    counts[40, 0] = value
    np.save(path, counts)
    windows, _ = read_instances(path, scale=1.0, rate_hz=rate_hz, convert=rate_hz is not None)
    assert [i for i, window in enumerate(windows) if not np.isfinite(window).all()]
    finite_windows = [window for window in windows if np.isfinite(window).all()]
    assert len(finite_windows) == len(windows) - 1
    assert all(np.array_equal(window, np.rint(window)) for window in finite_windows)


@pytest.mark.parametrize("rate_hz", [200.0, 44.1, 250.0])
def test_samples_of_another_rate_are_resampled_if_requested(rate_hz, tmp_path):
    times = np.arange(2000) / rate_hz
    tone = 3000 * np.sin(2 * np.pi * 5 * times)  # 5 Hz, far below half of each rate
    path = tmp_path / "r.npy"
    np.save(path, np.stack([tone, -tone], 1))
    source = open_signal(
        str(path), SIGNAL_INPUT, StopRequest(), SignalOptions(rate_hz=rate_hz, convert=True)
    )
    for window, fields in source:
        window_times = fields["time"] + np.arange(LENGTH) / RATE_HZ
        expected_samples = 3000 * np.sin(2 * np.pi * 5 * window_times)
        # 12 is 0.4 % of the amplitude, the ripple of the filter.
        np.testing.assert_allclose(window[:, 0], expected_samples, atol=12)
    (error,), _ = read_instances(path, rate_hz=rate_hz)
    assert "convert = true in --settings resamples them" in str(error)


def test_window_resampler_is_exact_within_a_window():
    resampler = WindowResampler(200.0, 100.0, LENGTH)
    samples = RNG.normal(size=(2000, 2))
    expected_samples = resample_poly(samples, 1, 2)
    window = resampler.resample(samples[100 : 100 + resampler.input_length])  # any start
    first_sample = (100 + resampler.margin) // 2  # at half the rate
    np.testing.assert_allclose(
        window, expected_samples[first_sample : first_sample + LENGTH], atol=1e-12
    )


def test_flac_is_read_if_soundfile_is_installed(tmp_path, monkeypatch):
    soundfile = pytest.importorskip("soundfile")
    path = tmp_path / "r.flac"
    soundfile.write(path, COUNTS, 100, subtype="PCM_16")
    assert_recorded(read_instances(path)[0])
    soundfile.write(path, COUNTS.astype(np.int32) << 16, 100, subtype="PCM_24")
    (error,), _ = read_instances(path)
    assert "integers of 24 bits, but the bundle was trained on int16" in str(error)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    instances, counts = read_instances(path, convert=True)
    assert not instances or isinstance(instances[-1], InputError) or counts["flaws"]
    monkeypatch.setitem(sys.modules, "soundfile", None)
    (error,), _ = read_instances(path)
    assert "gatewise[audio]" in str(error)


@pytest.mark.parametrize(("position", "field_bytes"), [(22, 2), (24, 4)])
def test_wave_header_without_channels_or_rate_is_refused(position, field_bytes, tmp_path):
    path = tmp_path / "r.wav"
    content = bytearray(wave_bytes())
    content[position : position + field_bytes] = bytes(field_bytes)
    path.write_bytes(content)
    (error,), _ = read_instances(path, convert=True)
    assert "its header states" in str(error)
