"""Test that ``gatewise edge --signal`` reads samples and writes one line per window."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import gatewise as gw
from gatewise_signals import MajorityFilter, cut_windows
from tests.support.processes import Command, run_in_process
from tests.support.window_system import (
    RATE_HZ,
    SAMPLES,
    draw_windows,
    make_window_bundle,
    roughness,
)

pytestmark = pytest.mark.slow  # some tests start a process

BLOCK_MODULE = """
import numpy as np
def roughness(x):
    return np.abs(np.diff(x.astype(np.float32), axis=1)).mean(axis=1)
"""


@pytest.fixture(scope="module")
def bundle(make_once):
    return make_once("window-bundle", make_window_bundle)


@pytest.fixture(scope="module")
def recording():
    """Twelve windows one after the other."""
    return draw_windows(12, seed=9)[0].reshape(-1, 2)


@pytest.fixture
def run_command(bundle, tmp_path, monkeypatch):
    """Function that runs the command in this process, in a folder with the block's function."""
    (tmp_path / "my_blocks.py").write_text(BLOCK_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *options: run_in_process(
        "edge", bundle, *options, "--policy", "edge-only", folder=tmp_path
    )


#: Option that names the function of the bundle's block.
BLOCK_OPTIONS = ("--block", "roughness=my_blocks:roughness")


def read_lines(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


def write_settings(folder: Path, text: str) -> tuple[str, str]:
    """Write a file of settings in a folder; return the option that names it."""
    path = folder / "settings.toml"
    path.write_text(text)
    return "--settings", str(path)


#: Distance of the windows of `stream_run` in samples, half a window.
HOP = 16


class StreamRun(NamedTuple):
    """Output of the command for the recording on its standard input."""

    lines: list[dict]
    summary: dict
    log: str


@pytest.fixture(scope="module")
def stream_run(bundle, recording, make_once):
    """Run of the command on the recording and a last byte that is a part of a sample."""

    def run_on_stream(folder):
        (folder / "my_blocks.py").write_text(BLOCK_MODULE)
        settings = write_settings(folder, f"hop = {HOP}\nsmooth = 'majority:3'")
        command = Command(
            "edge", bundle, "--signal", "-", *BLOCK_OPTIONS, *settings, "--json",
            "--policy", "edge-only", folder=folder,
        )  # fmt: skip
        with contextlib.closing(command):
            command.process.stdin.buffer.write(recording.astype("<i2").tobytes() + b"\1")
            status, output, log = command.finish()
        assert status == 0, log
        *lines, summary = read_lines(output)
        return StreamRun(lines, summary["summary"], log)

    return make_once("signal-stream-run", run_on_stream)


@pytest.fixture(scope="module")
def expected_answers(bundle, recording):
    """Answers of a device to the windows of the recording."""
    windows, _ = cut_windows(recording, SAMPLES, HOP)
    with gw.Device(bundle, blocks={"roughness": roughness}, policy="edge-only") as device:
        return device.answer_many(windows)


def test_samples_from_standard_input_get_the_answers_of_their_windows(
    recording, stream_run, expected_answers
):
    outcomes = [(line["label"], line["stage"]) for line in stream_run.lines]
    assert outcomes == [(answer.label, answer.stage) for answer in expected_answers]
    _, starts = cut_windows(recording, SAMPLES, HOP)
    assert [line["start"] for line in stream_run.lines] == starts.tolist()
    assert [line["time"] for line in stream_run.lines] == (starts / RATE_HZ).round(6).tolist()


def test_labels_are_smoothed_by_a_majority_and_the_delay_is_stated(stream_run, expected_answers):
    majority_filter = MajorityFilter(3)
    smoothed_labels = [majority_filter.push(answer.label) for answer in expected_answers]
    assert [line["smoothed"] for line in stream_run.lines] == smoothed_labels
    n_changed = sum(line["smoothed"] != line["label"] for line in stream_run.lines)
    assert stream_run.summary["smoothing"] == {"delay_windows": 1, "changed": n_changed}
    assert "a lasting change shows 1 windows later" in stream_run.log


def test_an_incomplete_last_sample_is_counted_as_a_flaw(stream_run):
    assert stream_run.summary["signal"] == {
        "samples": 12 * SAMPLES, "windows": len(stream_run.lines), "gaps": 0,
        "dropped_samples": 0, "refused_windows": 0, "bad_samples": 0, "flaws": 1,
    }  # fmt: skip
    message = "its last 1 bytes are an incomplete sample; its complete windows are answered"
    assert message in stream_run.log


def test_recordings_and_arrays_of_windows_get_equal_answers(recording, run_command, tmp_path):
    np.save(tmp_path / "recording.npy", recording)
    np.save(tmp_path / "windows.npy", recording.reshape(-1, SAMPLES, 2))
    settings = write_settings(tmp_path, "smooth = 'majority:3'")
    recording_lines, array_lines = (
        read_lines(run_command(source_option, *BLOCK_OPTIONS, *settings).stdout)
        for source_option in ("--signal=recording.npy", "--data=windows.npy")
    )
    assert [line["label"] for line in recording_lines] == [line["label"] for line in array_lines]
    assert len(array_lines) == 12
    assert "start" not in array_lines[0]


@pytest.mark.parametrize(
    ("options", "settings_text", "message"),
    [
        (("--signal", "-"), "", "give blocks={'roughness': function}, or --block roughness=module"),
        (("--signal", "-", "--block", "roughness=nowhere:f"), "", "no module 'nowhere'"),
        (("--signal", "-", "--block", "roughness"), "", "module:function"),
        (("--signal", "-", "--data", "x.npy"), "", "--data and --keep are for rows"),
        (("--signal", "-"), "rate_hz = 8000.0", "blocks are for 50 samples"),
        ((), "hop = 3", "hop needs --signal"),
        (("--signal", "-", *BLOCK_OPTIONS), "smooth = 'mean:3'", "give majority:K"),
        (
            ("--signal", "-", *BLOCK_OPTIONS, "--parallel", "2"),
            "smooth = 'majority:3'",
            "--parallel",
        ),
    ],
)
def test_invalid_options_are_refused_at_the_start(
    run_command, tmp_path, options, settings_text, message
):
    settings = write_settings(tmp_path, settings_text) if settings_text else ()
    completed = run_command(*options, *settings)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert message in completed.stderr
