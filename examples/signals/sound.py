"""Sound: the digits zero to four at 8 kHz, by a speaker that training has not heard.

python sound.py               # Free Spoken Digit Dataset (fsdd.npz in GATEWISE_DATA)
"""

import tempfile
from itertools import pairwise

import numpy as np
from live import SEARCH, arrays, report, talk

import gatewise as gw
import gatewise_signals as sig

LENGTH = 4096  # about half a second


def padded(samples, offsets, length):
    """Recordings of any length as windows of one: cut, or padded with zeros."""
    found = np.zeros((len(offsets) - 1, length), samples.dtype)
    for i, (a, b) in enumerate(pairwise(offsets)):
        found[i, : min(length, b - a)] = samples[a : min(b, a + length)]
    return found


def main():
    """Fit on five speakers, test on the sixth."""
    raw = arrays("fsdd")
    windows = padded(raw["x"], raw["offset"], LENGTH)
    y, speaker = raw["y"].astype(int), raw["speaker"].astype(int)
    new = (speaker == 1) & (y < 5)
    train = np.flatnonzero((speaker != 1) & (y < 5))[::2]
    blocks = sig.standard_blocks(rate_hz=8000, channels=["sound"], samples=LENGTH, scale=1 / 32768)
    # Five speakers are few: each learns and chooses, by cross-fitting, and lines overfit least.
    system = gw.StagedCascade(blocks=blocks, **SEARCH | {"families": ("linear",)})
    system.fit(windows[train], y[train], groups=speaker[train])
    report(system, windows[new], y[new])
    with tempfile.TemporaryDirectory() as folder:
        talk(system, windows[train], windows[new][::5], folder)


if __name__ == "__main__":
    main()
