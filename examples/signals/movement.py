"""Movement: six activities from a phone's accelerometer, continuous, with gaps.

    python movement.py            # HAPT's raw recordings (hapt_raw.npz in GATEWISE_DATA)

Windows of 2.56 s are cut inside labelled segments of some volunteers; another one's whole recording
then streams by, with a second lost here and there.
"""

import tempfile

import numpy as np
from live import arrays, fitted, report, talk, thinned

import gatewise_signals as sig

RATE, LENGTH, HOP = 50, 128, 64
NEW = (4, 9, 10, 12, 18)  # volunteers that training does not see


def labelled_windows(raw):
    """Windows of segments of the six activities, their labels, volunteers and recordings."""
    parts = []
    for recording, subject, activity, first, last in raw["segment"]:
        if activity <= 6:
            begin = np.searchsorted(raw["experiment"], recording)  # one lies behind the other
            signal = raw["signal"][begin + first : begin + last + 1, :3]
            windows, _ = sig.cut_windows(signal, LENGTH, HOP)
            parts.append(
                (windows, *np.repeat([[activity], [subject], [recording]], len(windows), 1))
            )
    return [np.concatenate(columns) for columns in zip(*parts, strict=True)]


def main():
    """Fit, test on new volunteers, stream one of their recordings."""
    raw = arrays("hapt_raw")
    windows, y, subject, recording = labelled_windows(raw)
    new = np.isin(subject, NEW)
    train = np.flatnonzero(~new)
    train = train[thinned(subject[train], 30)]
    axes = [str(name) for name in raw["channel"][:3]]
    blocks = sig.standard_blocks(rate_hz=RATE, channels=axes, samples=LENGTH)
    # on a fifth of the volunteers no smaller loss on new ones can be promised
    system = fitted(blocks, windows[train], y[train], subject[train], max_loss=0.05)
    report(system, windows[new], y[new])

    one = recording[new][0]
    signal = raw["signal"][raw["experiment"] == one, :3]
    windower, stream = sig.Windower(LENGTH, HOP, rate_hz=RATE), []
    for first in range(0, len(signal), 500):  # pieces as a sensor gives them
        lost = 50 if first % 5000 == 0 else 0
        time = first / RATE
        stream += windower.push(signal[first + lost : first + 500], time + lost / RATE)
    print(f"recording {one}: {len(stream)} windows, {windower.gaps} gaps")
    with tempfile.TemporaryDirectory() as folder:
        answers = talk(system, windows[train], [w.values for w in stream], folder)
    spans = "".join(str(answer.label) for answer in answers)
    print("activities over time:", spans)


if __name__ == "__main__":
    main()
