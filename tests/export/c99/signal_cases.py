"""Graphs of blocks and windows, with which the generated C is compared with Python."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gatewise_signals as sig
from tests.support.signal_blocks import RATE_HZ, make_image_blocks, make_signal_blocks


@dataclass(frozen=True, eq=False)
class Case:
    """A graph and windows; with `is_exact` C computes the bits of Python."""

    graph: sig.SignalGraph
    windows: NDArray[Any]
    is_exact: bool = False


def make_channels(scale: float = 1 / 720) -> sig.Channels:
    return sig.Channels("acc", (0, 1, 2), ("x", "y", "z"), scale)


def make_random_windows(
    seed: int, n_windows: int, n_samples: int, dtype: str = "int16"
) -> NDArray[Any]:
    """Make noise of all levels with offsets and drifts in three channels."""
    rng = np.random.default_rng(seed)
    level = 10.0 ** rng.uniform(0, 4, (n_windows, 1, 3))
    windows = rng.normal(0, level, (n_windows, n_samples, 3)) + rng.normal(0, 3 * level)
    drift = level * rng.integers(0, 5, (n_windows, 1, 1))
    windows += np.linspace(0, 1, n_samples)[:, None] * drift
    # Some windows have few distinct samples, are constant or are 0.
    windows[::7] = np.round(windows[::7] / level[::7]) * level[::7]
    windows[1::9] = windows[1::9, :1]
    windows[2::11] = 0
    if dtype == "float32":
        return (windows / 1000).astype(np.float32)
    # The noise is made for int16; other types get the same share of their range.
    limits = np.iinfo(dtype)
    scaled_windows = windows * (limits.max / np.iinfo(np.int16).max)
    return np.clip(np.round(scaled_windows), limits.min, limits.max).astype(dtype)


def make_cases() -> dict[str, Case]:
    """Make graphs and windows that use every built-in block and every type of sample."""
    x = make_channels()
    simple_blocks = [
        *(kind(x) for kind in (sig.Mean, sig.Statistics, sig.Quantiles, sig.ZeroCrossings)),
        sig.Autocorrelation(x), sig.Statistics(sig.Magnitude(x)), sig.Mean(sig.Jerk(x, 50.0)),
        sig.Mean(sig.Envelope(x, 3)),
    ]  # fmt: skip
    odd_name = sig.Channels('*/\n#error "é\\', (1,))  # C must escape any name
    few_blocks = [sig.Mean(x), sig.Statistics(x), sig.BandPowers(sig.Spectrum(x, 25.0), (0.0, 5.0))]
    # C stores a spectrogram with two readers, but not one with a single reader.
    named_cases = {
        "all": Case(sig.SignalGraph(make_signal_blocks()), make_random_windows(5, 80, 100))
    }
    spectrogram = sig.Spectrogram(odd_name, RATE_HZ, 16, 5)
    blocks = [sig.MelEnergies(sig.MelSpectrogram(spectrogram, bands)) for bands in (3, 4)]
    named_cases["shared"] = Case(sig.SignalGraph(blocks), make_random_windows(6, 20, 90))
    for dtype in ("int8", "uint16", "float32"):
        named_cases[dtype] = Case(
            sig.SignalGraph(few_blocks), make_random_windows(5, 40, 60, dtype)
        )
    for n_samples in (17, 1500):  # C adds in the order of numpy, also for few and for many numbers
        windows = make_random_windows(n_samples, 24, n_samples)
        named_cases[f"plain{n_samples}"] = Case(
            sig.SignalGraph(simple_blocks), windows, is_exact=True
        )
    rng = np.random.default_rng(4)
    for name, shape in {"grey": (19, 23), "colour": (17, 14, 3), "frames": (3, 12, 31)}.items():
        n_levels = rng.choice([3, 90, 256], (60, *([1] * len(shape))))  # some are nearly flat
        windows = rng.integers(0, n_levels, (60, *shape)).astype(np.uint8)
        first_frame, last_frame = sig.Frame(0, scale=1 / 255), sig.Frame(2, scale=1 / 255)
        pixels = (
            sig.FrameDifference(first_frame, last_frame)
            if name == "frames"
            else sig.Pixels(scale=0.5)
        )
        named_cases[name] = Case(sig.SignalGraph(make_image_blocks(pixels)), windows)
    return named_cases


CASES = make_cases()
