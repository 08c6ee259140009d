"""Write the forest of ``bench_boards`` as C with emlearn and m2cgen.

    python peer_forest.py FOLDER

The interpreter needs both packages. FOLDER has the training rows in digits.npz. The script writes
one header per form of C, and peers.json with the versions and the include folder.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path

import emlearn
import m2cgen
import numpy as np
from sklearn.ensemble import RandomForestClassifier

#: Method and number type of `emlearn.convert`, by the name of the header.
EMLEARN_FORMS = {"emlearn-loadable": ("loadable", "int16_t"), "emlearn-inline": ("inline", "float")}
#: Factor of the counts for int16; emlearn-loadable has the same factor in
#: `board_programs.FOREST_PROGRAMS`.
SCALE = 100


def main(folder: Path) -> None:
    """Fit the forest and write its C."""
    sys.setrecursionlimit(100_000)  # m2cgen traverses trees recursively
    with np.load(folder / "digits.npz") as table:
        X, y, n_trees = table["X"], table["y"], int(table["n_trees"])
    forest = RandomForestClassifier(n_trees, random_state=0).fit(X, y)
    # scaled, because int16 thresholds cannot lie between neighbouring counts of 0 to 16
    scaled_forest = RandomForestClassifier(n_trees, random_state=0).fit(SCALE * X, y)
    for name, (method, dtype) in EMLEARN_FORMS.items():
        # leaves of 8 bits hold probabilities instead of only the class
        model = emlearn.convert(
            scaled_forest if dtype == "int16_t" else forest, method=method, dtype=dtype, leaf_bits=8
        )
        (folder / f"{name}.h").write_text(model.save(name="forest"))
    (folder / "m2cgen.h").write_text(m2cgen.export_to_c(forest))
    versions = {name: version(name) for name in ("emlearn", "m2cgen", "scikit-learn")}
    include_folder = str(Path(emlearn.__file__).parent)
    (folder / "peers.json").write_text(
        json.dumps({"versions": versions, "include": include_folder})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
