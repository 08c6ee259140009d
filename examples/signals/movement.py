"""Movement: recognise six activities in a phone's accelerometer signal with gaps.

    python movement.py            # HAPT's raw recordings (hapt_raw.npz in GATEWISE_DATA)

The training windows of 2.56 s are cut from labelled segments of some volunteers. The example then
streams a whole recording of another volunteer, in which some seconds are missing.
"""

import tempfile

import numpy as np
from live import answer_live, fit_cascade, load_arrays, print_report, thin_rows

import gatewise_signals as sig

RATE_HZ = 50
LENGTH = 128
HOP = 64
TEST_VOLUNTEERS = (4, 9, 10, 12, 18)


def cut_labelled_windows(data_set):
    """Cut windows of the six activities; return windows, labels, volunteers and recordings."""
    segments = []
    for recording, volunteer, activity, first_sample, last_sample in data_set["segment"]:
        if activity <= 6:
            # recordings are concatenated
            begin = np.searchsorted(data_set["experiment"], recording)
            signal = data_set["signal"][begin + first_sample : begin + last_sample + 1, :3]
            windows, _ = sig.cut_windows(signal, LENGTH, HOP)
            segments.append(
                (windows, *np.repeat([[activity], [volunteer], [recording]], len(windows), 1))
            )
    return [np.concatenate(arrays) for arrays in zip(*segments, strict=True)]


def main():
    """Fit, test on new volunteers, and stream one of their recordings."""
    data_set = load_arrays("hapt_raw")
    windows, y, volunteers, recordings = cut_labelled_windows(data_set)
    is_test = np.isin(volunteers, TEST_VOLUNTEERS)
    train_rows = np.flatnonzero(~is_test)
    train_rows = train_rows[thin_rows(volunteers[train_rows], 30)]
    axes = [str(name) for name in data_set["channel"][:3]]
    blocks = sig.standard_blocks(rate_hz=RATE_HZ, channels=axes, samples=LENGTH)
    # A fifth of the volunteers is too few for a bound on a smaller loss.
    system = fit_cascade(
        blocks, windows[train_rows], y[train_rows], volunteers[train_rows], max_loss=0.05
    )
    print_report(system, windows[is_test], y[is_test])

    recording = recordings[is_test][0]
    signal = data_set["signal"][data_set["experiment"] == recording, :3]
    windower = sig.Windower(LENGTH, HOP, rate_hz=RATE_HZ)
    stream = []
    for begin in range(0, len(signal), 500):  # in chunks; every tenth lacks its first second
        n_lost = 50 if begin % 5000 == 0 else 0
        time = (begin + n_lost) / RATE_HZ
        stream += windower.push(signal[begin + n_lost : begin + 500], time)
    print(f"recording {recording}: {len(stream)} windows, {windower.n_gaps} gaps")
    with tempfile.TemporaryDirectory() as folder:
        answers = answer_live(
            system, windows[train_rows], [window.values for window in stream], folder
        )
    activities = "".join(str(answer.label) for answer in answers)
    print("activities over time:", activities)


if __name__ == "__main__":
    main()
