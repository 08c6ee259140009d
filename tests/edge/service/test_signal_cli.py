"""``gatewise edge --signal`` reads samples and writes one line per window."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gatewise as gw
from gatewise_signals import MajorityFilter, cut_windows
from tests.support.processes import run_in_process
from tests.support.window_system import (
    RATE_HZ,
    SAMPLES,
    draw_windows,
    make_window_bundle,
    roughness,
)

pytestmark = pytest.mark.slow  # processes start

BLOCK_MODULE = """
import numpy as np
def rough(x):
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
def start_command(bundle, tmp_path, command):
    """Start the command in a folder with the block's function."""
    (tmp_path / "my_blocks.py").write_text(BLOCK_MODULE)
    return lambda *options: command(
        "edge", bundle, *options, "--policy", "edge-only", folder=tmp_path
    )


@pytest.fixture
def run_command(bundle, tmp_path, monkeypatch):
    """Run the command in this process, in a folder with the block's function."""
    (tmp_path / "my_blocks.py").write_text(BLOCK_MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *options: run_in_process(
        "edge", bundle, *options, "--policy", "edge-only", folder=tmp_path
    )


#: Option that names the function of the bundle's block.
BLOCK_OPTIONS = ("--block", "roughness=my_blocks:rough")


def read_lines(output: str) -> list[dict]:
    return [json.loads(line) for line in output.splitlines()]


@pytest.fixture
def settings_options(tmp_path):
    """Write a file of settings, and return the option with its path."""

    def write_settings(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return "--settings", str(path)

    return write_settings


def test_samples_from_standard_input_get_the_answers_of_their_windows(
    bundle, recording, start_command, settings_options
):
    hop = 16
    settings = settings_options(f"hop = {hop}\nsmooth = 'majority:3'")
    process = start_command("--signal", "-", *BLOCK_OPTIONS, *settings, "--json")
    # The last byte is a part of a sample.
    process.process.stdin.buffer.write(recording.astype("<i2").tobytes() + b"\1")
    status, output, log = process.finish()
    assert status == 0, log
    *lines, summary = read_lines(output)
    expected_windows, starts = cut_windows(recording, SAMPLES, hop)
    with gw.Device(bundle, blocks={"roughness": roughness}, policy="edge-only") as device:
        answers = device.answer_many(expected_windows)
    outcomes = [(line["label"], line["stage"]) for line in lines]
    assert outcomes == [(answer.label, answer.stage) for answer in answers]
    assert [line["start"] for line in lines] == starts.tolist()
    assert [line["time"] for line in lines] == (starts / RATE_HZ).round(6).tolist()
    majority_filter = MajorityFilter(3)
    smoothed_labels = [majority_filter.push(answer.label) for answer in answers]
    assert [line["smoothed"] for line in lines] == smoothed_labels
    n_changed = sum(line["smoothed"] != line["label"] for line in lines)
    assert summary["summary"]["smoothing"] == {"delay_windows": 1, "changed": n_changed}
    assert "a lasting change shows 1 windows later" in log
    assert summary["summary"]["signal"] == {
        "samples": 12 * SAMPLES, "windows": len(lines), "gaps": 0, "dropped_samples": 0,
        "refused_windows": 0, "bad_samples": 0, "flaws": 1,
    }  # fmt: skip
    assert "its last 1 bytes are an incomplete sample; its complete windows are answered" in log


def test_recordings_and_arrays_get_equal_answers_and_gaps_are_marked(
    recording, run_command, tmp_path, settings_options
):
    np.save(tmp_path / "r.npy", recording)
    np.save(tmp_path / "w.npy", recording.reshape(-1, SAMPLES, 2))
    rows = [f"{i / RATE_HZ},{x},{y}\n" for i, (x, y) in enumerate(recording.tolist())]
    del rows[SAMPLES]  # a lost sample
    (tmp_path / "r.csv").write_text("".join(rows))
    lines_by_source = []
    for source_option in ("--signal=r.npy", "--data=w.npy", "--signal=r.csv"):
        completed = run_command(
            source_option, *BLOCK_OPTIONS, *settings_options("smooth = 'majority:3'")
        )
        assert completed.returncode == 0, completed.stderr
        lines_by_source.append(read_lines(completed.stdout))
    recording_lines, array_lines, gap_lines = lines_by_source
    assert [line["label"] for line in recording_lines] == [line["label"] for line in array_lines]
    assert "start" not in array_lines[0]
    # The samples after the gap, one less than eleven windows, make ten windows.
    assert [line.get("gap", False) for line in gap_lines] == [False, True] + [False] * 9
    assert gap_lines[1]["time"] == round((SAMPLES + 1) / RATE_HZ, 6)
    assert recording_lines[0]["label"] == gap_lines[0]["label"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--signal", "-"), "give blocks={'roughness': function}, or --block roughness=module"),
        (("--signal", "-", "--block", "roughness=nowhere:f"), "no module 'nowhere'"),
        (("--signal", "-", "--block", "roughness"), "module:function"),
        (("--signal", "-", "--data", "x.npy"), "--data and --keep are for rows"),
        (("--signal", "-", "rate_hz = 8000.0"), "blocks are for 50 samples"),
        (("hop = 3",), "hop needs --signal"),
        (("--signal", "-", *BLOCK_OPTIONS, "smooth = 'mean:3'"), "give majority:K"),
        (
            ("--signal", "-", *BLOCK_OPTIONS, "--parallel", "2", "smooth = 'majority:3'"),
            "--parallel",
        ),
    ],
)
def test_invalid_options_are_refused_at_the_start(run_command, options, message, settings_options):
    if " = " in options[-1]:
        options = (*options[:-1], *settings_options(options[-1]))
    completed = run_command(*options)
    assert (completed.returncode, completed.stdout) == (2, "")
    assert message in completed.stderr
