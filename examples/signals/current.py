"""Current: recognise the six most frequent kinds of appliance when they are switched on.

    python current.py             # PLAID (plaid.npz in GATEWISE_DATA)

The data set does not name the house of a recording, so rows are split at random.
"""

import tempfile

import numpy as np
from live import answer_live, arrays, fitted, report

import gatewise_signals as sig

LENGTH = 512
KINDS = (1, 2, 4, 6, 7, 8)


def main():
    """Fit on the training part of the data set, and test on the other part."""
    raw = arrays("plaid")
    pairs = zip(raw["offset"][:-1], raw["offset"][1:], strict=True)
    # Repeat shorter recordings, because a current is periodic.
    recordings = [raw["x"][begin : min(end, begin + LENGTH)] for begin, end in pairs]
    windows = np.stack([np.resize(recording, LENGTH) for recording in recordings])
    chosen = np.isin(raw["y"], KINDS)
    windows = windows[chosen]
    y = raw["y"][chosen].astype(int)
    is_test = raw["part"][chosen] == 1
    blocks = sig.standard_blocks(rate_hz=30_000, channels=["current"], samples=LENGTH)
    system = fitted(blocks, windows[~is_test], y[~is_test])
    report(system, windows[is_test], y[is_test])
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows[~is_test], windows[is_test][::5], folder)


if __name__ == "__main__":
    main()
