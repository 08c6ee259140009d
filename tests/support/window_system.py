"""A small system on windows of two channels, with built-in blocks and a Python function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

import gatewise as gw
import gatewise_signals as sig

RATE_HZ = 50.0
SAMPLES = 32


def draw_windows(n_windows: int, seed: int = 0) -> tuple[NDArray[np.int16], NDArray[np.int_]]:
    """Draw vibrations; class 1 has another mean than class 0, and class 2 another frequency."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, n_windows)
    times = np.arange(SAMPLES) / RATE_HZ
    frequencies_hz = np.where(y == 2, 15.0, 5.0)[:, None]
    waves = (
        np.sin(2 * np.pi * (frequencies_hz * times + rng.random((n_windows, 1))))
        + np.where(y == 1, 0.8, 0.0)[:, None]
    )
    signals = np.stack([waves, waves[:, ::-1]], axis=2) + rng.normal(
        0, 0.5, (n_windows, SAMPLES, 2)
    )
    return np.round(signals * 1000).astype(np.int16), y


def roughness(x: NDArray[Any]) -> NDArray[Any]:
    """Compute the mean absolute difference between neighbouring samples, per channel."""
    return np.abs(np.diff(x.astype(np.float32), axis=1)).mean(axis=1)


def make_window_bundle(folder: Path) -> Path:
    """Fit and pack a system; its second stage uses the expensive block of the function."""
    windows, y = draw_windows(300)
    channels = sig.Channels("acc", (0, 1), ("x", "y"), price=1.0)
    blocks = [
        sig.Mean(channels, price=1.0),
        sig.Block.from_function(roughness, ["rough.x", "rough.y"], 20.0),
        sig.BandPowers(sig.Spectrum(channels, RATE_HZ, price=500.0), (0.0, 10.0, 25.0), price=5.0),
    ]
    system = gw.StagedCascade(
        blocks=blocks, n_stages=2, effort="low", families=("linear",), random_state=0,
        high_cost_model=LogisticRegression(max_iter=1000),
    ).fit(windows, y)  # fmt: skip
    path = folder / "bundle"
    gw.pack(system, path, sample=draw_windows(30, seed=5)[0])
    return path
