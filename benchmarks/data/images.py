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
    jpeg: NDArray[np.uint8], offset: NDArray[Any], cache_file: Path, *, seed: int = 0
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
    if cache_file.is_file():
        with np.load(cache_file, allow_pickle=False) as file:
            return np.asarray(file["features"])
    rng = np.random.default_rng(seed)
    n = len(offset) - 1
    sample_rows = np.sort(rng.choice(n, min(n, 4000), replace=False))
    sampled_patches = [
        patches[rng.integers(patches.shape[0], size=12)]
        for patches in (_patches(_decode(jpeg, offset, np.array([i])))[0] for i in sample_rows)
    ]
    mean, whiten, centroids = _learn(np.concatenate(sampled_patches), seed)
    features = np.empty((n, 4 * CENTROIDS), np.float32)
    for start in range(0, n, BATCH):
        rows = np.arange(start, min(start + BATCH, n))
        patches = _patches(_decode(jpeg, offset, rows))
        whitened_patches = np.asarray((patches - mean) @ whiten, np.float32)
        features[rows] = _pool(_activate(whitened_patches, centroids))
    cache_file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=cache_file.parent, delete=False, suffix=".part") as file:
        np.savez(file, features=features)
    Path(file.name).replace(cache_file)
    return features


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
    eigenvalues, eigenvectors = np.linalg.eigh(np.cov(patches - mean, rowvar=False))
    whitening_matrix = ((eigenvectors / np.sqrt(eigenvalues + 0.1)) @ eigenvectors.T).astype(
        np.float32
    )
    k_means = MiniBatchKMeans(CENTROIDS, random_state=seed, batch_size=4096, n_init=1)
    k_means.fit((patches - mean) @ whitening_matrix)
    return mean, whitening_matrix, k_means.cluster_centers_.astype(np.float32)


def _activate(patches: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute max(0, mean distance - distance) for each centroid, the triangle activation."""
    squares = (patches**2).sum(axis=2, keepdims=True) - 2 * patches @ centroids.T
    distance = np.sqrt(np.maximum(squares + (centroids**2).sum(axis=1), 0))
    activation = np.maximum(distance.mean(axis=2, keepdims=True) - distance, 0)
    return np.asarray(activation, np.float32)


def _pool(activation: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum over the quarters of the image, shape (n, 400)."""
    side = (SIDE - PATCH) // STRIDE + 1
    grid = activation.reshape(len(activation), side, side, CENTROIDS)
    middle = side // 2
    half_slices = slice(None, middle), slice(middle, None)
    quadrants = [
        grid[:, rows, columns].sum(axis=(1, 2)) for rows in half_slices for columns in half_slices
    ]
    return np.concatenate(quadrants, axis=1)
