"""Current: which of the six most frequent kinds of appliance was switched on.

    python current.py             # PLAID (plaid.npz in GATEWISE_DATA)

This edition does not say in which house a recording was made, so that rows are split at random.
"""

import tempfile

import numpy as np
from live import arrays, fitted, report, talk

import gatewise_signals as sig

LENGTH = 512
KINDS = (1, 2, 4, 6, 7, 8)


def main():
    """Fit on the archive's training part, test on the other."""
    raw = arrays("plaid")
    pairs = zip(raw["offset"][:-1], raw["offset"][1:], strict=True)
    # Shorter recordings are repeated: a current is a period over and over.
    windows = np.stack([np.resize(raw["x"][a : min(b, a + LENGTH)], LENGTH) for a, b in pairs])
    chosen = np.isin(raw["y"], KINDS)
    windows, y, new = windows[chosen], raw["y"][chosen].astype(int), raw["part"][chosen] == 1
    blocks = sig.standard_blocks(rate_hz=30_000, channels=["current"], samples=LENGTH)
    system = fitted(blocks, windows[~new], y[~new])
    report(system, windows[new], y[new])
    with tempfile.TemporaryDirectory() as folder:
        talk(system, windows[~new], windows[new][::5], folder)


if __name__ == "__main__":
    main()
