"""``gatewise edge --signal`` as a process: samples in by pipe and socket, a line a window out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import gatewise as gw
from gatewise_signals import MajorityFilter, cut_windows
from tests.support.processes import run_here
from tests.support.window_system import (
    RATE_HZ,
    SAMPLES,
    make_window_bundle,
    roughness,
    windows,
)

pytestmark = pytest.mark.slow  # processes start

MODULE = """
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
    return windows(12, seed=9)[0].reshape(-1, 2)


@pytest.fixture
def start(bundle, tmp_path, command):
    """Start the command in a folder with the block's function."""
    (tmp_path / "my_blocks.py").write_text(MODULE)
    return lambda *options: command(
        "edge", bundle, *options, "--policy", "edge-only", folder=tmp_path
    )


@pytest.fixture
def here(bundle, tmp_path, monkeypatch):
    """Run the command in this process, in a folder with the block's function."""
    (tmp_path / "my_blocks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    return lambda *args: run_here("edge", bundle, *args, "--policy", "edge-only", folder=tmp_path)


BLOCK = ("--block", "roughness=my_blocks:rough")


def told(out: str) -> list[dict]:
    return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def settings(tmp_path):
    """Write a file of settings, and give the option that names it."""

    def write(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        return "--settings", str(path)

    return write


def test_samples_through_a_pipe(bundle, recording, start, settings):
    process = start("--signal", "-", *BLOCK, *settings("hop = 16\nsmooth = 'majority:3'"), "--json")
    process.process.stdin.buffer.write(recording.astype("<i2").tobytes() + b"\1")
    status, out, err = process.finish()
    assert status == 0, err
    *lines, summary = told(out)
    expected, starts = cut_windows(recording, SAMPLES, 16)
    with gw.Device(bundle, blocks={"roughness": roughness}, policy="edge-only") as device:
        answers = device.answer_many(expected)
    assert [(t["label"], t["stage"]) for t in lines] == [(a.label, a.stage) for a in answers]
    assert [t["start"] for t in lines] == starts.tolist()
    assert [t["time"] for t in lines] == (starts / RATE_HZ).round(6).tolist()
    majority = MajorityFilter(3)
    assert [t["smoothed"] for t in lines] == [majority.push(a.label) for a in answers]
    changed = sum(t["smoothed"] != t["label"] for t in lines)
    assert summary["summary"]["smoothing"] == {"delay_windows": 1, "changed": changed}
    assert "a lasting change shows 1 windows later" in err
    assert summary["summary"]["signal"] == {
        "samples": 12 * SAMPLES, "windows": len(lines), "gaps": 0, "dropped_samples": 0,
        "refused_windows": 0, "bad_samples": 0, "flaws": 1,
    }  # fmt: skip
    assert "its last 1 bytes are an incomplete sample; its complete windows are answered" in err


def test_recordings_arrays_and_gaps(recording, here, tmp_path, settings):
    np.save(tmp_path / "r.npy", recording)
    np.save(tmp_path / "w.npy", recording.reshape(-1, SAMPLES, 2))
    rows = [f"{i / RATE_HZ},{a},{b}\n" for i, (a, b) in enumerate(recording.tolist())]
    del rows[SAMPLES]  # lost
    (tmp_path / "r.csv").write_text("".join(rows))
    found = {}
    for given in ("--signal=r.npy", "--data=w.npy", "--signal=r.csv"):
        done = here(given, *BLOCK, *settings("smooth = 'majority:3'"))
        assert done.returncode == 0, done.stderr
        found[given] = told(done.stdout)
    recorded, arrays, parted = found.values()
    assert [t["label"] for t in recorded] == [t["label"] for t in arrays]
    assert "start" not in arrays[0]
    assert [t.get("gap", False) for t in parted] == [False, True] + [False] * 9
    assert parted[1]["time"] == round((SAMPLES + 1) / RATE_HZ, 6)
    assert recorded[0]["label"] == parted[0]["label"]


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--signal", "-"), "give blocks={'roughness': function}, or --block roughness=module"),
        (("--signal", "-", "--block", "roughness=nowhere:f"), "no module 'nowhere'"),
        (("--signal", "-", "--block", "roughness"), "module:function"),
        (("--signal", "-", "--data", "x.npy"), "--data and --keep are for rows"),
        (("--signal", "-", "rate_hz = 8000.0"), "blocks are for 50 samples"),
        (("hop = 3",), "hop needs --signal"),
        (("--signal", "-", *BLOCK, "smooth = 'mean:3'"), "give majority:K"),
        (("--signal", "-", *BLOCK, "--parallel", "2", "smooth = 'majority:3'"), "--parallel"),
    ],
)
def test_what_is_refused_at_the_start(here, args, message, settings):
    if " = " in args[-1]:
        args = (*args[:-1], *settings(args[-1]))
    done = here(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr
