"""Images: pneumonia on chest X-rays of 28 x 28 pixels; scikit-learn's digits without that file.

python images.py              # PneumoniaMNIST (pneumonia_mnist.npz in GATEWISE_DATA)
"""

import os
import tempfile
from pathlib import Path

import numpy as np
from live import arrays, fitted, report, talk
from sklearn.datasets import load_digits

import gatewise_signals as sig


def pictures():
    """Pictures, labels, and which are new."""
    if (Path(os.environ.get("GATEWISE_DATA", "../shared/data")) / "pneumonia_mnist.npz").is_file():
        raw = arrays("pneumonia_mnist")
        rows = np.flatnonzero((np.arange(len(raw["y"])) % 5 == 0) | (raw["part"] == 2))
        return raw["X"][rows], raw["y"][rows].astype(int), raw["part"][rows] == 2
    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target, np.arange(len(digits.target)) >= 1300


def main():
    """Fit, test on new pictures, answer some of them live."""
    images, y, new = pictures()
    # Without the two finest, which take longest to search.
    blocks = [b for b in sig.standard_image_blocks(images.shape[1:]) if len(b.names) < 100]
    system = fitted(blocks, images[~new], y[~new])
    report(system, images[new], y[new])
    with tempfile.TemporaryDirectory() as folder:
        talk(system, images[~new], images[new][::5], folder)


if __name__ == "__main__":
    main()
