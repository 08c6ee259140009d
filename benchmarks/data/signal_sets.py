"""Sets of windows and pictures, with their groups and signal blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gatewise_signals as sig
from benchmarks.data.problems import data_arrays


@dataclass(frozen=True, eq=False)
class SignalSet:
    """Windows with labels and groups.

    `test_groups` has the test groups of each split. Without it, a split draws a quarter of the
    groups, or a quarter of the rows if there are no groups.
    """

    name: str
    windows: NDArray[Any]  # (n, ...)
    y: NDArray[np.int64]
    groups: NDArray[np.int64] | None
    blocks: Sequence[sig.Block]
    target: float  # the feature time should be divided by at least this factor
    note: str
    test_groups: Sequence[Sequence[int]] | None = None
    has_rare_classes: bool = False  # all classes have the same weight
    families: Sequence[str] | None = None  # of the stages; None selects the library's default

    def splits(self, n_splits: int) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Draw `n_splits` pairs of training and test rows that have no group in common."""
        row_pairs = []
        for seed in range(n_splits):
            rng = np.random.default_rng(seed)
            if self.groups is None:
                is_test = rng.random(len(self.y)) < 0.25
            elif self.test_groups is not None:
                is_test = np.isin(self.groups, self.test_groups[seed % len(self.test_groups)])
            else:
                shuffled_groups = rng.permutation(np.unique(self.groups))
                is_test = np.isin(self.groups, shuffled_groups[: max(1, len(shuffled_groups) // 4)])
            row_pairs.append((np.flatnonzero(~is_test), np.flatnonzero(is_test)))
        return row_pairs


def load_set(name: str) -> SignalSet:
    """Load a set by name; raise InputError if its file is missing."""
    return SIGNAL_SETS[name]()


def _select_spaced_rows(groups: NDArray[Any], max_rows: int) -> NDArray[np.intp]:
    """Select rows at even distances in each group, at most `max_rows` per group.

    Neighbouring windows are similar, so little is lost, and all fits take minutes.
    """
    group_rows = [np.flatnonzero(groups == group) for group in np.unique(groups)]
    return np.sort(np.concatenate([rows[:: -(-len(rows) // max_rows)] for rows in group_rows]))


def _load_movement() -> SignalSet:
    arrays = data_arrays("hapt_windows")
    rows = np.flatnonzero(arrays["y"] < 6)  # the other classes are transitions between postures
    rows = rows[_select_spaced_rows(arrays["subject"][rows], 130)]
    channels = ["acc_x", "acc_y", "acc_z", "gyr_x", "gyr_y", "gyr_z"]
    return SignalSet(
        name="movement",
        windows=arrays["X"][rows],
        y=arrays["y"][rows].astype(np.int64),
        groups=arrays["subject"][rows].astype(np.int64),
        blocks=sig.standard_blocks(
            rate_hz=50,
            channels=channels,
            samples=128,
            groups={"acc": channels[:3], "gyr": channels[3:]},
        ),
        target=2.5,
        note="HAPT, six activities, 30 subjects, a fourth of them to test; windows of 2.56 s",
    )


def _load_vibration(*, new_loads: bool) -> SignalSet:
    arrays = data_arrays("cwru_bearing")
    windows = (arrays["X"] * arrays["scale"][:, None]).astype(np.float32)
    piece_number = np.zeros(len(windows), np.int64)
    # each normal file is one recording, cut into five pieces
    for file in np.unique(arrays["file_id"][arrays["y"] == 0]):
        file_rows = np.flatnonzero(arrays["file_id"] == file)
        piece_number[file_rows] = np.arange(len(file_rows)) * 5 // len(file_rows)
    recording = arrays["file_id"].astype(np.int64) * 10 + piece_number  # of at most five pieces
    rows = _select_spaced_rows(recording, 60)
    load = arrays["load"].astype(np.int64)
    # loads in horsepower; the training rows have the other loads from 0 to 3
    test_loads = [(0,), (3,), (0, 1), (0, 2), (3, 1), (3, 2), (0, 1, 2), (3, 1, 2)]
    test_groups = [np.unique(recording[np.isin(load, loads)]).tolist() for loads in test_loads]
    test_text = "a fourth of them to test"
    if new_loads:
        test_text = "other motor loads to test, which no group of the training rows has"
    return SignalSet(
        name="new-loads" if new_loads else "vibration",
        windows=windows[rows],
        y=arrays["y"][rows].astype(np.int64),
        groups=recording[rows],
        blocks=sig.standard_blocks(rate_hz=12000, channels=["acc"], samples=512),
        target=4.0,
        note="CWRU bearings, normal and three faults; groups are recordings, pieces of one where a "
        f"class has one only; {test_text}",
        test_groups=test_groups if new_loads else None,
    )


def _load_sound() -> SignalSet:
    arrays = data_arrays("fsdd")
    length = 4096  # half a second at 8 kHz
    windows = np.zeros((len(arrays["y"]), length), np.int16)
    for window_number, (begin, end) in enumerate(
        zip(arrays["offset"][:-1], arrays["offset"][1:], strict=True)
    ):
        samples = arrays["x"][begin : min(end, begin + length)]
        windows[window_number, : len(samples)] = samples
    speaker = arrays["speaker"].astype(np.int64)
    rows = _select_spaced_rows(10 * speaker + arrays["y"], 25)
    test_speakers = [(speaker_id,) for speaker_id in range(6)] + [(0, 3), (1, 4), (2, 5), (0, 5)]
    return SignalSet(
        name="sound",
        windows=windows[rows],
        y=arrays["y"][rows].astype(np.int64),
        groups=speaker[rows],
        blocks=sig.standard_blocks(
            rate_hz=8000, channels=["sound"], samples=length, scale=1 / 32768
        ),
        target=4.0,
        note="FSDD, ten spoken digits, 25 takes of each by a speaker; speakers to test are new; "
        "first .5 s, padded with zeros",
        test_groups=test_speakers,
    )


def _load_heart() -> SignalSet:
    arrays = data_arrays("mitbih_ds1")
    record = arrays["record"].astype(np.int64)
    rng = np.random.default_rng(0)
    is_in_set = np.zeros(len(record), bool)
    for record_id in np.unique(record):
        for class_index, max_windows in ((0, 120), (1, 60), (2, 60), (3, 60)):
            class_rows = np.flatnonzero((record == record_id) & (arrays["y"] == class_index))
            is_in_set[rng.permutation(class_rows)[:max_windows]] = True
    rows = np.flatnonzero(is_in_set)
    y = arrays["y"][rows].astype(np.int64)
    rhythm = np.repeat(_compute_rhythm(record, arrays["rr_pre"])[rows, np.newaxis], 256, axis=1)
    windows = np.concatenate([arrays["X"][rows, :, np.newaxis], rhythm], axis=2)
    intervals = sig.Channels("rhythm", (1, 2), ("interval", "late"))
    # MIT-BIH has 200 units per millivolt
    ecg_blocks = sig.standard_blocks(rate_hz=360, channels=["ecg"], samples=256, scale=1 / 200)
    return SignalSet(
        name="heart",
        windows=windows,
        y=np.where(y == 3, 2, y),  # fusion beats are too few for a class
        groups=record[rows],
        blocks=[sig.Mean(intervals), *ecg_blocks],
        target=4.0,
        note="MIT-BIH DS1, beats: normal, supraventricular, ventricular with fusion; channels of "
        "the ECG and of a beat detector, which gives the interval before a beat and what it is "
        "longer than the eight before; 22 records, a fourth to test; at most 120 normal and 60 "
        "other beats of a kind a record",
        has_rare_classes=True,
    )


def _compute_rhythm(
    record: NDArray[np.int64], interval_before: NDArray[np.int32]
) -> NDArray[np.int16]:
    """Compute the interval before each beat and its excess over the mean of the last eight."""
    rhythm = np.zeros((len(record), 2), np.int16)
    for record_id in np.unique(record):
        beats = np.flatnonzero(record == record_id)[1:]  # no beat precedes the first one
        # at most 3 s of 360 samples, because the detector missed some beats
        intervals = np.minimum(interval_before[beats], 3 * 360).astype(float)
        rhythm[beats, 0] = intervals
        for beat_number in range(1, len(beats)):
            rhythm[beats[beat_number], 1] = round(
                intervals[beat_number] - intervals[max(0, beat_number - 8) : beat_number].mean()
            )
    return rhythm


def _load_current() -> SignalSet:
    arrays = data_arrays("plaid")
    length = 512  # a period of 60 Hz is 500 samples at 30 kHz
    windows = np.zeros((len(arrays["y"]), length), np.float32)
    for window_number, (begin, end) in enumerate(
        zip(arrays["offset"][:-1], arrays["offset"][1:], strict=True)
    ):
        samples = arrays["x"][begin : min(end, begin + length)]
        windows[window_number] = np.resize(samples, length)  # a period repeats
    return SignalSet(
        name="current",
        windows=windows,
        y=arrays["y"].astype(np.int64),
        groups=None,
        blocks=sig.standard_blocks(rate_hz=30000, channels=["current"], samples=length),
        target=4.0,
        note="PLAID, 11 kinds of appliance, 512 samples, shorter series repeated; the edition has "
        "no houses: rows are split at random",
    )


def _make_image_loader(name: str) -> Callable[[], SignalSet]:
    def load() -> SignalSet:
        arrays = data_arrays(name)
        rows = np.random.default_rng(0).permutation(len(arrays["y"]))[:2000]
        title = {"fashion_mnist": "Fashion-MNIST", "pneumonia_mnist": "PneumoniaMNIST"}[name]
        return SignalSet(
            name=name.partition("_")[0],
            windows=arrays["X"][rows],
            y=arrays["y"][rows].astype(np.int64),
            groups=None,
            blocks=sig.standard_image_blocks(arrays["X"].shape[1:]),
            target=4.0,
            note=f"{title}, 2,000 pictures of 28 x 28, split at random: no groups are known",
            has_rare_classes=name == "pneumonia_mnist",
            families=("linear", "svm"),  # boosting on hundreds of pixels takes minutes a fit
        )

    return load


SIGNAL_SETS: dict[str, Callable[[], SignalSet]] = {
    "movement": _load_movement,
    "vibration": partial(_load_vibration, new_loads=False),
    "new-loads": partial(_load_vibration, new_loads=True),
    "sound": _load_sound,
    "heart": _load_heart,
    "current": _load_current,
    "fashion": _make_image_loader("fashion_mnist"),
    "pneumonia": _make_image_loader("pneumonia_mnist"),
}
