"""CIFAR-10 as 400 features: learned patches, pooled over the quarters of the image.

The method is section 3 of Coates, Ng & Lee, "An analysis of single-layer networks in unsupervised
feature learning" (AISTATS 2011): patches of 6 x 6 pixels, contrast-normalised and whitened, k-means
centroids, triangle activation, sums over the four quarters. To save time,
it has only 100 centroids and uses every second position. Labels are not used.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

SIDE, PATCH, STRIDE, CENTROIDS = 32, 6, 2, 100
BATCH = 500


def patch_features(
    jpeg: NDArray[np.uint8], offset: NDArray[Any], kept: Path, *, seed: int = 0
) -> NDArray[np.float32]:
    """Compute the features of all images, or read them from the cache.

    Parameters
    ----------
    jpeg : ndarray of uint8
        JPEG files of 32 x 32 colour images, one after another.
    offset : ndarray of int, shape (n_images + 1,)
        Start of each file in `jpeg`, and the end of the last.
    kept : Path
        npz file that caches the features; written if it does not exist.
    seed : int, default 0
        Seed of the patch sample and of k-means.

    Returns
    -------
    ndarray of float32, shape (n_images, 400)
    """
    if kept.is_file():
        with np.load(kept, allow_pickle=False) as file:
            return np.asarray(file["features"])
    rng = np.random.default_rng(seed)
    n = len(offset) - 1
    sample_rows = np.sort(rng.choice(n, min(n, 4000), replace=False))
    sampled_patches = [
        patches[rng.integers(patches.shape[0], size=12)]
        for patches in (_patches(_decode(jpeg, offset, np.array([i])))[0] for i in sample_rows)
    ]
    mean, whiten, centroids = _learn(np.concatenate(sampled_patches), seed)
    out = np.empty((n, 4 * CENTROIDS), np.float32)
    for start in range(0, n, BATCH):
        rows = np.arange(start, min(start + BATCH, n))
        patches = _patches(_decode(jpeg, offset, rows))
        white = np.asarray((patches - mean) @ whiten, np.float32)
        out[rows] = _pool(_activate(white, centroids))
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False, suffix=".part") as file:
        np.savez(file, features=out)
    Path(file.name).replace(kept)
    return out


def _decode(
    jpeg: NDArray[np.uint8], offset: NDArray[Any], rows: NDArray[np.intp]
) -> NDArray[np.float32]:
    try:
        from PIL import Image
    except ImportError as error:
        raise InputError("cifar10 needs pillow to read images: pip install pillow") from error
    return np.stack(
        [
            np.asarray(Image.open(io.BytesIO(jpeg[offset[i] : offset[i + 1]].tobytes())))
            for i in rows
        ]
    ).astype(np.float32)


def _patches(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Contrast-normalised patches, shape (n, positions, 108)."""
    windows = np.lib.stride_tricks.sliding_window_view(images, (PATCH, PATCH), axis=(1, 2))
    flat = windows[:, ::STRIDE, ::STRIDE].reshape(len(images), -1, PATCH * PATCH * 3)
    centred = flat - flat.mean(axis=2, keepdims=True)
    return np.asarray(centred / np.sqrt(centred.var(axis=2, keepdims=True) + 10), np.float32)


def _learn(
    patches: NDArray[np.float32], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Compute the mean, the whitening matrix (ZCA) and the centroids of patches."""
    from sklearn.cluster import MiniBatchKMeans

    mean = np.asarray(patches.mean(axis=0), np.float32)
    values, vectors = np.linalg.eigh(np.cov(patches - mean, rowvar=False))
    whiten = ((vectors / np.sqrt(values + 0.1)) @ vectors.T).astype(np.float32)
    means = MiniBatchKMeans(CENTROIDS, random_state=seed, batch_size=4096, n_init=1)
    means.fit((patches - mean) @ whiten)
    return mean, whiten, means.cluster_centers_.astype(np.float32)


def _activate(patches: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute max(0, mean distance - distance) for each centroid, the triangle activation."""
    squares = (patches**2).sum(axis=2, keepdims=True) - 2 * patches @ centroids.T
    distance = np.sqrt(np.maximum(squares + (centroids**2).sum(axis=1), 0))
    closer = np.maximum(distance.mean(axis=2, keepdims=True) - distance, 0)
    return np.asarray(closer, np.float32)


def _pool(active: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum over the quarters of the image, shape (n, 400)."""
    side = (SIDE - PATCH) // STRIDE + 1
    grid = active.reshape(len(active), side, side, CENTROIDS)
    half = side // 2
    halves = slice(None, half), slice(half, None)
    quadrants = [grid[:, a, b].sum(axis=(1, 2)) for a in halves for b in halves]
    return np.concatenate(quadrants, axis=1)
