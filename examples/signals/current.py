"""Current: recognise the six most frequent kinds of appliance when they are switched on.

    python current.py             # PLAID (plaid.npz in GATEWISE_DATA)

The data set does not name the house of a recording, so rows are split at random.
"""

import tempfile

import numpy as np
from live import answer_live, fit_cascade, load_arrays, print_report

import gatewise_signals as sig

LENGTH = 512  # samples at 30 kHz, a little more than one period of 60 Hz
APPLIANCES = (1, 2, 4, 6, 7, 8)  # the most frequent classes of the data set


def main():
    """Fit on the training part of the data set, and test on the other part."""
    data_set = load_arrays("plaid")
    bounds = zip(data_set["offset"][:-1], data_set["offset"][1:], strict=True)
    # Repeat shorter recordings, because a current is periodic.
    recordings = [data_set["x"][begin : min(end, begin + LENGTH)] for begin, end in bounds]
    windows = np.stack([np.resize(recording, LENGTH) for recording in recordings])
    is_frequent = np.isin(data_set["y"], APPLIANCES)
    windows = windows[is_frequent]
    y = data_set["y"][is_frequent].astype(int)
    is_test = data_set["part"][is_frequent] == 1
    blocks = sig.standard_blocks(rate_hz=30_000, channels=["current"], samples=LENGTH)
    system = fit_cascade(blocks, windows[~is_test], y[~is_test])
    print_report(system, windows[is_test], y[is_test])
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows[~is_test], windows[is_test][::5], folder)


if __name__ == "__main__":
    main()
