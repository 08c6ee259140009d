"""A small system on digits, its bundle, and rows that it has not seen."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from gatewise.costs import CloudPrices


def fit_digits_system(folder: Path) -> SimpleNamespace:
    """Fit and pack a small system of two stages; many of its rows go to the cloud."""
    from sklearn.ensemble import ExtraTreesClassifier

    from gatewise_export import pack
    from gatewise_training import methods
    from gatewise_training.data import datasets

    data_set = datasets.load("digits")
    # Even rows are fitted and odd rows are tested: few enough for a fast fit and fast runs.
    train_rows = np.arange(0, 800, 2)
    test_rows = np.arange(1, 600, 2)
    high_cost_model = ExtraTreesClassifier(30, random_state=0).fit(
        data_set.X[train_rows], data_set.y[train_rows]
    )
    system = methods.cascade(
        "staged",
        high_cost_model=high_cost_model,
        cloud_prices=CloudPrices(request=0.3, byte=0.01),
        n_stages=2,
        families=("linear",),
        effort="low",
        offload_rate=0.4,
        random_state=1,
    ).fit(data_set.X[train_rows], data_set.y[train_rows])
    bundle = pack(system, folder / "bundle", sample=data_set.X[train_rows[:16]])
    rows = data_set.X[test_rows].astype(np.float32)
    truth = data_set.y[test_rows]
    table = folder / "rows.csv"
    column_names = [*bundle.manifest.feature_names, "label"]
    np.savetxt(table, np.c_[rows, truth], "%g", ",", header=",".join(column_names), comments="")
    return SimpleNamespace(system=system, rows=rows, truth=truth, bundle=bundle, table=table)
