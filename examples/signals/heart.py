"""Heart beats: find rare ectopic beats of new patients in one ECG lead and its rhythm.

python heart.py               # MIT-BIH, part DS1 (mitbih_ds1.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import answer_live, arrays, fitted, report, thinned

import gatewise_signals as sig

NEW = (109, 114, 207, 215, 223)  # records of the test patients
NORMAL, VENTRICULAR = 0, 1


def rhythm(record, interval):
    """Compute the interval before each beat, and its difference from the usual interval.

    The usual interval is the mean of the eight intervals before it. Shape (n, 2), in samples.
    """
    intervals = np.zeros((len(record), 2), np.int16)
    for r in np.unique(record):
        beats = np.flatnonzero(record == r)[1:]  # the first beat has no interval
        before = np.minimum(interval[beats], 1080)
        sums = np.cumsum(np.append(0, before))
        for i, beat in enumerate(beats):
            usual = (sums[i] - sums[max(0, i - 8)]) / max(1, min(i, 8))
            intervals[beat] = before[i], (before[i] - usual) * (i > 0)
    return intervals


def main():
    """Fit with balanced classes and a bound on the recall of ventricular beats."""
    raw = arrays("mitbih_ds1")
    extra = rhythm(raw["record"], raw["rr_pre"])[:, np.newaxis].repeat(256, axis=1)
    windows = np.concatenate([raw["X"][..., np.newaxis], extra], axis=2)  # three channels
    chosen = np.isin(raw["y"], (0, 2))
    windows, record = windows[chosen], raw["record"][chosen].astype(int)
    y = np.where(raw["y"][chosen] == 2, VENTRICULAR, NORMAL)
    is_test = np.isin(record, NEW)
    train = np.flatnonzero(~is_test)
    train = train[thinned(record[train] * 2 + y[train], 40)]
    blocks = [
        sig.Mean(sig.Channels("rhythm", (1, 2), ("interval", "late"))),
        *sig.standard_blocks(rate_hz=360, channels=["ecg"], samples=256, scale=1 / 200),
    ]
    rare = {"class_weight": "balanced", "min_recall": {VENTRICULAR: 0.8}}
    system = fitted(blocks, windows[train], y[train], record[train], **rare)
    windows = windows[is_test][::8]
    y = y[is_test][::8]
    predicted = report(system, windows, y)
    for name, kind in (("normal", NORMAL), ("ventricular", VENTRICULAR)):
        beats = y == kind
        print(f"{name}: {(predicted[beats] == kind).mean():.1%} of {beats.sum()} beats found")
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows, windows[::25], folder)


if __name__ == "__main__":
    main()
