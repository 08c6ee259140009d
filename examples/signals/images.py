"""Images: detect pneumonia in chest X-rays of 28 x 28 pixels.

Without the file of X-rays, the example uses the digits of scikit-learn.

python images.py              # PneumoniaMNIST (pneumonia_mnist.npz in GATEWISE_DATA)
"""

import tempfile

import numpy as np
from live import DATA_FOLDER, answer_live, fit_cascade, load_arrays, print_report
from sklearn.datasets import load_digits

import gatewise_signals as sig


def load_images():
    """Load images, labels, and a mask of the test images."""
    if (DATA_FOLDER / "pneumonia_mnist.npz").is_file():
        data_set = load_arrays("pneumonia_mnist")
        # all test images, and a fifth of the others to save time
        is_test = data_set["part"] == 2
        rows = np.flatnonzero(is_test | (np.arange(len(is_test)) % 5 == 0))
        return data_set["X"][rows], data_set["y"][rows].astype(int), is_test[rows]
    digits = load_digits()
    return digits.images.astype(np.uint8), digits.target, np.arange(len(digits.target)) >= 1300


def main():
    """Fit, test on new images, and answer some of them live."""
    images, y, is_test = load_images()
    # leave out the two blocks with the most features, which take longest to search
    blocks = sig.standard_image_blocks(images.shape[1:])
    blocks = [block for block in blocks if len(block.names) < 100]
    system = fit_cascade(blocks, images[~is_test], y[~is_test])
    print_report(system, images[is_test], y[is_test])
    with tempfile.TemporaryDirectory() as folder:
        answer_live(system, images[~is_test], images[is_test][::5], folder)


if __name__ == "__main__":
    main()
