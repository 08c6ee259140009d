"""Heart beats: find rare ectopic beats of new patients in one ECG lead and its rhythm.

python heart.py               # MIT-BIH, part DS1 (mitbih_ds1.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import answer_live, fit_cascade, load_arrays, print_report, thin_rows

import gatewise_signals as sig

TEST_RECORDS = (109, 114, 207, 215, 223)  # records of the test patients
NORMAL = 0
VENTRICULAR = 1
MAX_INTERVAL = 1080  # 3 s at 360 Hz, which bounds outliers


def beat_intervals(records, intervals_before):
    """Compute the interval before each beat, and its difference from the usual interval.

    The usual interval is the mean of the eight intervals before it. Shape (n, 2), in samples.
    """
    intervals = np.zeros((len(records), 2), np.int16)
    for record in np.unique(records):
        beats = np.flatnonzero(records == record)[1:]  # the first beat has no interval
        last_intervals = np.minimum(intervals_before[beats], MAX_INTERVAL)
        sums = np.cumsum(np.append(0, last_intervals))
        for position, beat in enumerate(beats):
            first_position = max(0, position - 8)
            n_earlier = max(1, position - first_position)
            usual_interval = (sums[position] - sums[first_position]) / n_earlier
            interval = last_intervals[position]
            intervals[beat] = interval, (interval - usual_interval) * (position > 0)
    return intervals


def main():
    """Fit with balanced classes and a bound on the recall of ventricular beats."""
    data_set = load_arrays("mitbih_ds1")
    intervals = beat_intervals(data_set["record"], data_set["rr_pre"])
    rhythm = intervals[:, np.newaxis].repeat(256, axis=1)
    windows = np.concatenate([data_set["X"][..., np.newaxis], rhythm], axis=2)  # three channels
    is_labelled = np.isin(data_set["y"], (0, 2))  # normal and ventricular beats
    windows, records = windows[is_labelled], data_set["record"][is_labelled].astype(int)
    y = np.where(data_set["y"][is_labelled] == 2, VENTRICULAR, NORMAL)
    is_test = np.isin(records, TEST_RECORDS)
    train_rows = np.flatnonzero(~is_test)
    train_rows = train_rows[thin_rows(records[train_rows] * 2 + y[train_rows], 40)]
    # The ECG has 200 counts per mV.
    blocks = [
        sig.Mean(sig.Channels("rhythm", (1, 2), ("interval", "late"))),
        *sig.standard_blocks(rate_hz=360, channels=["ecg"], samples=256, scale=1 / 200),
    ]
    settings = {"class_weight": "balanced", "min_recall": {VENTRICULAR: 0.8}}
    system = fit_cascade(
        blocks, windows[train_rows], y[train_rows], records[train_rows], **settings
    )
    windows = windows[is_test][::8]  # a part of the beats, to save time
    y = y[is_test][::8]
    predicted_labels = print_report(system, windows, y)
    for name, label in (("normal", NORMAL), ("ventricular", VENTRICULAR)):
        is_of_label = y == label
        recall = (predicted_labels[is_of_label] == label).mean()
        print(f"{name}: {recall:.1%} of {is_of_label.sum()} beats found")
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, windows, windows[::25], folder)


if __name__ == "__main__":
    main()
