"""Vibration: a bearing's fault from an accelerometer at 12 kHz, from one motor load to others.

python vibration.py           # CWRU bearings (cwru_bearing.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import arrays, fitted, report, talk, thinned

import gatewise_signals as sig


def main():
    """Fit on loads 0 to 2, test on load 3."""
    raw = arrays("cwru_bearing")
    windows = (raw["X"] * raw["scale"][:, None]).astype(np.float32)
    y, new = raw["y"].astype(int), raw["load"] == 3
    # A recording is a group; the one of a sound bearing is cut into five.
    recording = raw["file_id"].astype(int) * 10
    sound = np.flatnonzero((y == 0) & ~new)
    recording[sound] += np.arange(len(sound)) * 5 // len(sound)
    train = np.flatnonzero(~new)
    train = train[thinned(recording[train], 16)]
    blocks = sig.standard_blocks(rate_hz=12_000, channels=["acc"], samples=windows.shape[1])
    # on a fifth of the recordings no smaller loss on new ones can be promised
    system = fitted(blocks, windows[train], y[train], recording[train], max_loss=0.05)
    windows, y = windows[new][::6], y[new][::6]
    report(system, windows, y)
    with tempfile.TemporaryDirectory() as folder:
        talk(system, windows, windows[::4], folder)


if __name__ == "__main__":
    main()
