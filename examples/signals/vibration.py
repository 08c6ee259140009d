"""Vibration: recognise faults of a bearing at a new motor load, at 12 kHz.

python vibration.py           # CWRU bearings (cwru_bearing.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import answer_live, arrays, fitted, report, thinned

import gatewise_signals as sig


def main():
    """Fit on loads 0 to 2, and test on load 3."""
    raw = arrays("cwru_bearing")
    windows = (raw["X"] * raw["scale"][:, None]).astype(np.float32)
    y = raw["y"].astype(int)
    is_test = raw["load"] == 3
    # Each recording is a group. The recording of the faultless bearing is cut into five groups.
    recording = raw["file_id"].astype(int) * 10
    faultless = np.flatnonzero((y == 0) & ~is_test)
    recording[faultless] += np.arange(len(faultless)) * 5 // len(faultless)
    train = np.flatnonzero(~is_test)
    train = train[thinned(recording[train], 16)]
    blocks = sig.standard_blocks(rate_hz=12_000, channels=["acc"], samples=windows.shape[1])
    # A fifth of the recordings is too few for a bound on a smaller loss.
    system = fitted(blocks, windows[train], y[train], recording[train], max_loss=0.05)
    windows = windows[is_test][::6]
    y = y[is_test][::6]
    report(system, windows, y)
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows, windows[::4], folder)


if __name__ == "__main__":
    main()
