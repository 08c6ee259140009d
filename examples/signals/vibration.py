"""Vibration: recognise faults of a bearing at a new motor load, at 12 kHz.

python vibration.py           # CWRU bearings (cwru_bearing.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import answer_live, fit_cascade, load_arrays, print_report, thin_rows

import gatewise_signals as sig


def main():
    """Fit on loads 0 to 2, and test on load 3."""
    data_set = load_arrays("cwru_bearing")
    windows = (data_set["X"] * data_set["scale"][:, None]).astype(np.float32)
    y = data_set["y"].astype(int)
    is_test = data_set["load"] == 3
    # Each recording is a group. The recording of the faultless bearing is cut into five groups.
    recordings = data_set["file_id"].astype(int) * 10
    faultless_rows = np.flatnonzero((y == 0) & ~is_test)
    recordings[faultless_rows] += np.arange(len(faultless_rows)) * 5 // len(faultless_rows)
    train_rows = np.flatnonzero(~is_test)
    train_rows = train_rows[thin_rows(recordings[train_rows], 16)]
    blocks = sig.standard_blocks(rate_hz=12_000, channels=["acc"], samples=windows.shape[1])
    # A fifth of the recordings is too few for a bound on a smaller loss.
    system = fit_cascade(
        blocks, windows[train_rows], y[train_rows], recordings[train_rows], max_loss=0.05
    )
    windows = windows[is_test][::6]
    y = y[is_test][::6]
    print_report(system, windows, y)
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows, windows[::4], folder)


if __name__ == "__main__":
    main()
