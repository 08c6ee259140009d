"""CIFAR-10 as 400 features: learned patches, pooled over the quarters of the image.

The method is section 3 of Coates, Ng & Lee, "An analysis of single-layer networks in unsupervised
feature learning" (AISTATS 2011): patches of 6 x 6 pixels, contrast-normalised and whitened, k-means
centroids, triangle activation, sums over the four quarters. To save time, this module has only 100
centroids and uses every second position. Labels are not used.
"""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError

#: Pixels of a side of an image of CIFAR-10, and of a patch in the paper.
IMAGE_SIDE = 32
PATCH_SIDE = 6
#: Pixels between the positions of patches. The paper uses 1, which takes four times as long.
STRIDE = 2
#: Centroids, each with four sums: the 400 features of the budgeted papers.
N_CENTROIDS = 100
#: Images at a time, whose patches take 42 MB.
N_BATCH_IMAGES = 500
#: Images and patches of each from which the centroids are learned: 48,000 for 100 centroids.
N_SAMPLE_IMAGES = 4000
N_PATCHES_OF_IMAGE = 12
#: Added to variances of pixels from 0 to 255 and to eigenvalues, as in the paper's code, so that
#: patches and directions without contrast do not become noise.
CONTRAST_VARIANCE = 10
WHITENING_VARIANCE = 0.1


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
    cache_file : Path
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
    n_images = len(offset) - 1
    sample_rows = np.sort(rng.choice(n_images, min(n_images, N_SAMPLE_IMAGES), replace=False))
    sampled_patches = [
        patches[rng.integers(patches.shape[0], size=N_PATCHES_OF_IMAGE)]
        for patches in (
            _cut_patches(_decode(jpeg, offset, np.array([image])))[0] for image in sample_rows
        )
    ]
    mean, whitening_matrix, centroids = _learn_centroids(np.concatenate(sampled_patches), seed)
    features = np.empty((n_images, 4 * N_CENTROIDS), np.float32)
    for start in range(0, n_images, N_BATCH_IMAGES):
        rows = np.arange(start, min(start + N_BATCH_IMAGES, n_images))
        patches = _cut_patches(_decode(jpeg, offset, rows))
        whitened_patches = np.asarray((patches - mean) @ whitening_matrix, np.float32)
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
            np.asarray(Image.open(io.BytesIO(jpeg[offset[image] : offset[image + 1]].tobytes())))
            for image in rows
        ]
    ).astype(np.float32)


def _cut_patches(images: NDArray[np.float32]) -> NDArray[np.float32]:
    """Cut contrast-normalised patches, shape (n, n_positions, 108)."""
    windows = np.lib.stride_tricks.sliding_window_view(
        images, (PATCH_SIDE, PATCH_SIDE), axis=(1, 2)
    )
    flat_patches = windows[:, ::STRIDE, ::STRIDE].reshape(
        len(images), -1, PATCH_SIDE * PATCH_SIDE * 3
    )
    centred_patches = flat_patches - flat_patches.mean(axis=2, keepdims=True)
    return np.asarray(
        centred_patches / np.sqrt(centred_patches.var(axis=2, keepdims=True) + CONTRAST_VARIANCE),
        np.float32,
    )


def _learn_centroids(
    patches: NDArray[np.float32], seed: int
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Compute the mean, the whitening matrix (ZCA) and the centroids of patches."""
    from sklearn.cluster import MiniBatchKMeans

    mean = np.asarray(patches.mean(axis=0), np.float32)
    eigenvalues, eigenvectors = np.linalg.eigh(np.cov(patches - mean, rowvar=False))
    whitening_matrix = (
        (eigenvectors / np.sqrt(eigenvalues + WHITENING_VARIANCE)) @ eigenvectors.T
    ).astype(np.float32)
    k_means = MiniBatchKMeans(N_CENTROIDS, random_state=seed, batch_size=4096, n_init=1)
    k_means.fit((patches - mean) @ whitening_matrix)
    return mean, whitening_matrix, k_means.cluster_centers_.astype(np.float32)


def _activate(patches: NDArray[np.float32], centroids: NDArray[np.float32]) -> NDArray[np.float32]:
    """Compute max(0, mean distance - distance) for each centroid, the triangle activation."""
    # |patch - centroid|^2 = |patch|^2 - 2 patch . centroid + |centroid|^2, not below 0 by rounding
    partial_squares = (patches**2).sum(axis=2, keepdims=True) - 2 * patches @ centroids.T
    distances = np.sqrt(np.maximum(partial_squares + (centroids**2).sum(axis=1), 0))
    activations = np.maximum(distances.mean(axis=2, keepdims=True) - distances, 0)
    return np.asarray(activations, np.float32)


def _pool(activations: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sum over the quarters of the image, shape (n, 400)."""
    grid_side = (IMAGE_SIDE - PATCH_SIDE) // STRIDE + 1
    grid = activations.reshape(len(activations), grid_side, grid_side, N_CENTROIDS)
    middle = grid_side // 2
    half_slices = slice(None, middle), slice(middle, None)
    quadrants = [
        grid[:, rows, columns].sum(axis=(1, 2)) for rows in half_slices for columns in half_slices
    ]
    return np.concatenate(quadrants, axis=1)
