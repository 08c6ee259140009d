"""Images: detect pneumonia in chest X-rays of 28 x 28 pixels.

Without the file of X-rays, the example uses the digits of scikit-learn.

python images.py              # PneumoniaMNIST (pneumonia_mnist.npz in GATEWISE_DATA)
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from live import answer_live, arrays, fitted, report
from sklearn.datasets import load_digits

import gatewise_signals as sig


def load_images():
    """Load images, labels, and a mask of the test images."""
    if (Path(os.environ.get("GATEWISE_DATA", "../shared/data")) / "pneumonia_mnist.npz").is_file():
        raw = arrays("pneumonia_mnist")
        rows = np.flatnonzero((np.arange(len(raw["y"])) % 5 == 0) | (raw["part"] == 2))
        return raw["X"][rows], raw["y"][rows].astype(int), raw["part"][rows] == 2
    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target, np.arange(len(digits.target)) >= 1300


def main():
    """Fit, test on new images, and answer some of them live."""
    images, y, is_test = load_images()
    # Without the two blocks of most features, which take longest to search.
    blocks = [b for b in sig.standard_image_blocks(images.shape[1:]) if len(b.names) < 100]
    system = fitted(blocks, images[~is_test], y[~is_test])
    report(system, images[is_test], y[is_test])
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, images[~is_test], images[is_test][::5], folder)


if __name__ == "__main__":
    main()
