"""Movement: recognise six activities in a phone's accelerometer signal with gaps.

    python movement.py            # HAPT's raw recordings (hapt_raw.npz in GATEWISE_DATA)

The training windows of 2.56 s are cut from labelled segments of some volunteers. The example then
streams a whole recording of another volunteer, in which some seconds are missing.
"""

import tempfile

import numpy as np
from live import answer_live, arrays, fitted, report, thinned

import gatewise_signals as sig

RATE, LENGTH, HOP = 50, 128, 64
TEST_VOLUNTEERS = (4, 9, 10, 12, 18)


def labelled_windows(raw):
    """Cut windows of the six activities; return windows, labels, volunteers and recordings."""
    parts = []
    for recording, volunteer, activity, first, last in raw["segment"]:
        if activity <= 6:
            begin = np.searchsorted(raw["experiment"], recording)  # recordings are concatenated
            signal = raw["signal"][begin + first : begin + last + 1, :3]
            windows, _ = sig.cut_windows(signal, LENGTH, HOP)
            parts.append(
                (windows, *np.repeat([[activity], [volunteer], [recording]], len(windows), 1))
            )
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def main():
    """Fit, test on new volunteers, and stream one of their recordings."""
    raw = arrays("hapt_raw")
    windows, y, volunteers, recordings = labelled_windows(raw)
    is_test = np.isin(volunteers, TEST_VOLUNTEERS)
    train = np.flatnonzero(~is_test)
    train = train[thinned(volunteers[train], 30)]
    axes = [str(name) for name in raw["channel"][:3]]
    blocks = sig.standard_blocks(rate_hz=RATE, channels=axes, samples=LENGTH)
    # A fifth of the volunteers is too few for a bound on a smaller loss.
    system = fitted(blocks, windows[train], y[train], volunteers[train], max_loss=0.05)
    report(system, windows[is_test], y[is_test])

    number = recordings[is_test][0]
    signal = raw["signal"][raw["experiment"] == number, :3]
    windower = sig.Windower(LENGTH, HOP, rate_hz=RATE)
    stream = []
    for first in range(0, len(signal), 500):  # in chunks; every tenth lacks its first second
        n_lost = 50 if first % 5000 == 0 else 0
        time = first / RATE
        stream += windower.push(signal[first + n_lost : first + 500], time + n_lost / RATE)
    print(f"recording {number}: {len(stream)} windows, {windower.n_gaps} gaps")
    with tempfile.TemporaryDirectory() as folder:
        answers = answer_live(system, windows[train], [w.values for w in stream], folder)
    activities = "".join(str(answer.label) for answer in answers)
    print("activities over time:", activities)


if __name__ == "__main__":
    main()
