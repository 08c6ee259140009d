"""Plot, for each digit, the share of its instances for which each pixel is acquired."""

import numpy as np
from matplotlib import pyplot as plt
from sklearn.datasets import load_digits
from sklearn.ensemble import ExtraTreesClassifier

import gatewise as gw

X, y = load_digits(n_class=5, return_X_y=True)
forest = ExtraTreesClassifier(10, random_state=0)
system = gw.StagedCascade(
    forest, n_stages=3, families=("linear",), effort="low", max_loss=0.02, random_state=0
)
system.fit(X[:300], y[:300])
rows, digits = X[300:], y[300:]

last_stage = np.minimum(system.exit_stage(rows), len(system.stages_) - 1)
is_offloaded = system.offload(rows)
is_acquired = np.zeros(rows.shape)
for stage_number, stage in enumerate(system.stages_):
    is_acquired[np.ix_(last_stage >= stage_number, stage.features)] = 1
is_acquired[is_offloaded] = 1  # the high-cost model reads all pixels

_, axes = plt.subplots(1, 5, figsize=(7.2, 1.8), layout="constrained")
for digit, ax in enumerate(axes.flat):
    image = ax.imshow(is_acquired[digits == digit].mean(axis=0).reshape(8, 8), vmin=0, vmax=1)
    ax.set(title=str(digit), xticks=[], yticks=[])
plt.colorbar(image, ax=axes, label="share of instances")
plt.savefig("acquired_pixels.svg")
