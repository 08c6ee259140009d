"""Sound: recognise the digits zero to four of a new speaker, at 8 kHz.

python sound.py               # Free Spoken Digit Dataset (fsdd.npz in GATEWISE_DATA)
"""

import tempfile
from itertools import pairwise

import numpy as np
from live import SEARCH, answer_live, load_arrays, print_report

import gatewise as gw
import gatewise_signals as sig

LENGTH = 4096  # about half a second


def cut_recordings(samples, offsets, length):
    """Cut recordings to `length`, or pad them with zeros."""
    windows = np.zeros((len(offsets) - 1, length), samples.dtype)
    for i, (begin, end) in enumerate(pairwise(offsets)):
        windows[i, : min(length, end - begin)] = samples[begin : min(end, begin + length)]
    return windows


def main():
    """Fit on five speakers, and test on the sixth."""
    data_set = load_arrays("fsdd")
    windows = cut_recordings(data_set["x"], data_set["offset"], LENGTH)
    y = data_set["y"].astype(int)
    speakers = data_set["speaker"].astype(int)
    is_test = (speakers == 1) & (y < 5)
    train_rows = np.flatnonzero((speakers != 1) & (y < 5))[::2]
    blocks = sig.standard_blocks(rate_hz=8000, channels=["sound"], samples=LENGTH, scale=1 / 32768)
    # Five speakers are few. Therefore use cross-fitting, and linear stages, which overfit least.
    system = gw.StagedCascade(blocks=blocks, **SEARCH | {"families": ("linear",)})
    system.fit(windows[train_rows], y[train_rows], groups=speakers[train_rows])
    print_report(system, windows[is_test], y[is_test])
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows[train_rows], windows[is_test][::5], folder)


if __name__ == "__main__":
    main()
