"""Windows from pipes, sockets and recordings equal the windows of the same samples in an array."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import wave
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gatewise_signals as sig
from gatewise.errors import InputError
from gatewise_edge.sensors.signal_source import SignalOptions
from gatewise_edge.sensors.signal_source import open_signal as open_signal_with_options
from gatewise_edge.sensors.streams import LineReader
from gatewise_edge.stop_request import StopInterrupt, StopRequest

# Any rate, and short windows of 8 samples of two channels.
RATE_HZ = 100.0
TWO_CHANNELS = sig.Channels("acc", (0, 1))
SIGNAL_INPUT = sig.SignalInput(sig.SignalGraph([sig.Mean(TWO_CHANNELS)]), (8, 2), "int16")
#: An input with a block that needs samples of this rate.
RATED_INPUT = sig.SignalInput(sig.SignalGraph([sig.Mean(sig.Jerk(TWO_CHANNELS, RATE_HZ))]), (8, 2))
#: 50 samples, all different and of both signs.
RECORDING = np.arange(100, dtype=np.int16).reshape(50, 2) * 11 - 300


def open_signal(source_name, signal, stop_request, **options):
    return open_signal_with_options(source_name, signal, stop_request, SignalOptions(**options))


def read_all(stream):
    """List the windows or errors of a stream, each with its fields."""
    return [
        (instance if isinstance(instance, InputError) else instance.tolist(), fields)
        for instance, fields in stream
    ]


def expected_windows(hop, samples=RECORDING):
    """List the windows of an array and the number of each one's first sample."""
    windows, starts = sig.cut_windows(samples, 8, hop)
    return list(zip(windows.tolist(), starts.tolist(), strict=True))


def test_errors_of_lines_count_empty_lines():
    reader = LineReader("x", SIGNAL_INPUT)
    batches = reader.batches(iter([b"acc_0,acc_1\n\n1,2\n\na,b\n"]))
    errors = [sample for batch in batches for sample in batch if isinstance(sample, InputError)]
    assert ["x, line 5: " in str(error) for error in errors] == [True]


@pytest.fixture
def pipe(tmp_path):
    """A named pipe, such as a driver may write to."""
    path = tmp_path / "samples"
    os.mkfifo(path)
    return path


def start_writer(path, *chunks):
    def write_chunks():
        with open(path, "wb", buffering=0) as pipe:
            for chunk in chunks:
                pipe.write(chunk)

    thread = threading.Thread(target=write_chunks, daemon=True)
    thread.start()
    return thread


@settings(max_examples=20)
# The recording has 200 bytes, so that some cuts lie behind its end.
@given(st.lists(st.integers(0, 250), max_size=6), st.integers(1, 12))
def test_windows_of_a_socket_do_not_depend_on_the_pieces_of_its_bytes(cuts, hop):
    content = RECORDING.astype("<i2").tobytes()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        stream = open_signal(url, SIGNAL_INPUT, StopRequest(), hop=hop, rate_hz=RATE_HZ)
        with server.accept()[0] as connection:
            for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(content)], strict=True):
                connection.sendall(content[start:end])
        instances = read_all(stream)
    assert [(window, fields["start"]) for window, fields in instances] == expected_windows(hop)
    assert all(fields["time"] == round(fields["start"] / RATE_HZ, 6) for _, fields in instances)


@pytest.mark.parametrize("signal_format", ["int16", "float32", "csv", None])
def test_samples_of_a_pipe_are_read_in_every_format(pipe, signal_format):
    if signal_format == "csv":
        content = b"x,y\n" + b"".join(b"%d,%d\n" % (x, y) for x, y in RECORDING.tolist())
    else:
        content = RECORDING.astype(np.dtype(signal_format or "int16").newbyteorder("<")).tobytes()
    writer = start_writer(pipe, content[:33], content[33:])  # the cut lies within a sample
    stream = open_signal(str(pipe), SIGNAL_INPUT, StopRequest(), signal_format=signal_format, hop=5)
    instances = read_all(stream)
    assert [(window, fields["start"]) for window, fields in instances] == expected_windows(5)
    assert {fields["time"] for _, fields in instances} == {None}
    writer.join(10)


@pytest.mark.slow
def test_recordings_give_the_windows_of_an_array(tmp_path):
    long_recording = np.tile(RECORDING, (100, 1))  # longer than one read of a file
    np.save(tmp_path / "r.npy", long_recording)
    with wave.open(str(tmp_path / "r.wav"), "wb") as file:
        file.setparams((2, 2, int(RATE_HZ), 0, "NONE", ""))  # 2 channels, 2 bytes per number
        file.writeframes(long_recording.astype("<i2").tobytes())
    for file_name in ("r.npy", "r.wav"):
        instances = read_all(
            open_signal(
                str(tmp_path / file_name), SIGNAL_INPUT, StopRequest(), rate_hz=RATE_HZ, hop=7
            )
        )
        windows_and_starts = [(window, fields["start"]) for window, fields in instances]
        assert windows_and_starts == expected_windows(7, long_recording)


def test_gaps_start_a_new_window(tmp_path):
    """After 20 samples a time is missing; later come a line "gap" and an invalid line."""
    lines = [f"{10 + i / RATE_HZ},{i},0" for i in range(20)]
    lines += [f"{10 + i / RATE_HZ},{i},0" for i in range(21, 30)] + ["gap"]
    lines += [f"{20 + i / RATE_HZ},{i},1" for i in range(9)] + ["1,two,3"]
    lines += [f"{30 + i / RATE_HZ},{i},2" for i in range(8)]
    (tmp_path / "r.csv").write_text("time,a,b\n" + "\n".join(lines))
    instances = read_all(open_signal(str(tmp_path / "r.csv"), RATED_INPUT, StopRequest(), hop=8))
    # The windows begin at the samples 0 and 8, after the missing time, after "gap", and after the
    # invalid line.
    error = instances.pop(4)[0]
    assert "line 41: '1,two,3' has a cell that is not a number" in str(error)
    assert [window[0][0] for window, _ in instances] == [0, 8, 21, 0, 0]
    assert [fields["start"] for _, fields in instances] == [0, 8, 20, 29, 38]
    assert [fields["time"] for _, fields in instances] == [10.0, 10.08, 10.21, 20.0, 30.0]
    assert [fields.get("gap", False) for _, fields in instances] == [False, False, True, True, True]


@pytest.mark.parametrize("line", ["{:.2f};{},5;-1\r\n", "{:.2f}\t{}.5\t-1\n"])
def test_separators_of_spreadsheets_are_read(line, tmp_path):
    text = "".join(line.format(i / RATE_HZ, i) for i in range(8))
    (tmp_path / "r.csv").write_text(text.replace(".", ",") if ";" in text else text)
    ((window, fields),) = read_all(open_signal(str(tmp_path / "r.csv"), RATED_INPUT, StopRequest()))
    assert window == [[i + 0.5, -1] for i in range(8)]
    assert fields["time"] == 0.0


def test_stop_request_ends_a_stream_after_its_complete_windows(pipe):
    content = RECORDING.astype("<i2").tobytes()
    with StopRequest() as stop_request:
        stream_without_writer = open_signal(str(pipe), SIGNAL_INPUT, stop_request)
        threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with pytest.raises(StopInterrupt):  # it was waiting for a writer
            next(stream_without_writer)
    with StopRequest() as stop_request:
        writer = os.open(pipe, os.O_RDWR)  # a writer that stays open
        stream = open_signal(str(pipe), SIGNAL_INPUT, stop_request)
        # 20 samples of 4 bytes and a part of the next: two windows of 8 samples.
        os.write(writer, content[: 20 * 4 + 3])
        assert next(stream)[0].tolist() == RECORDING[:8].tolist()
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop_request.signal_name, stream.n_buffered) == ("SIGTERM", 1)
        assert next(stream)[0].tolist() == RECORDING[8:16].tolist()
        with pytest.raises(StopInterrupt):
            next(stream)
        os.close(writer)


def test_signal_that_does_not_match_the_bundle_is_refused_before_it_is_read(tmp_path):
    np.save(tmp_path / "r.npy", RECORDING[:, :1])
    with wave.open(str(tmp_path / "r.wav"), "wb") as file:
        file.setparams((1, 3, 8000, 0, "NONE", ""))
    picture_input = sig.SignalInput(
        sig.SignalGraph([sig.GreyHistogram(sig.Pixels())]), (8, 8, 3), "uint8"
    )
    for source_name, options, message in [
        (str(tmp_path / "r.npy"), {}, "has 1 channels, the bundle takes 2"),
        (
            str(tmp_path / "r.wav"),
            {"rate_hz": RATE_HZ},
            "has 8000 samples per second, not the rate_hz of 100",
        ),
        (str(tmp_path / "none"), {}, "no such file, pipe or device"),
        ("tcp://127.0.0.1", {}, "give tcp://host:port"),
        ("tcp://127.0.0.1:1", {}, "refused"),
        ("tcp://camera..example:1", {}, "give tcp://host:port"),
        ("-", {"signal_format": "int12"}, "choose one of float32"),
        (str(tmp_path / "r.npy"), {"signal_format": "int16"}, "states its format itself"),
        ("-", {"hop": 0}, "at least 1"),
        ("-", {"rate_hz": 0.0}, "rate_hz: must be a number above 0"),
    ]:
        with pytest.raises(InputError, match=message):
            open_signal(source_name, SIGNAL_INPUT, StopRequest(), **options)
    with pytest.raises(InputError, match="blocks are for 100 samples"):
        open_signal("-", RATED_INPUT, StopRequest(), rate_hz=44100.0)
    with pytest.raises(InputError, match="pictures"):
        open_signal("-", picture_input, StopRequest())


@pytest.mark.slow
def test_example_of_an_iio_sensor_writes_samples(tmp_path):
    """The example reads a folder like the driver's; its lines are cut into windows."""
    for axis, count in (("x", -512), ("y", 7)):  # any counts, the same in each sample
        (tmp_path / f"in_accel_{axis}_raw").write_text(f"{count}\n")
    script = Path(__file__).parents[3] / "examples/iio_samples.py"
    channels = ("in_accel_x", "in_accel_y")
    command = [sys.executable, script, tmp_path, *channels, "--rate-hz", "400", "--samples", "200"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        (tmp_path / "samples.csv").write_bytes(process.stdout.read())
    signal_input = sig.SignalInput(SIGNAL_INPUT.graph, (2, 2))
    stream = open_signal(str(tmp_path / "samples.csv"), signal_input, StopRequest(), rate_hz=400.0)
    instances = read_all(stream)
    assert process.returncode == 0
    assert len(instances) >= 10  # of 100, because a loaded machine loses samples
    assert all(window == [[-512, 7], [-512, 7]] for window, _ in instances)
    sample_numbers = [fields["time"] * 400 for _, fields in instances]
    # The times are those of whole samples also after a lost sample.
    assert sample_numbers == pytest.approx([*map(round, sample_numbers)])
