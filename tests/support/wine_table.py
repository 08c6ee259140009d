"""A table of wines with three classes, its prices, and functions that change it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_wine

COSTS = """\
[features]
alcohol = 1.0
malic_acid = {own = 0.5, group = "lab"}
ash = {own = 0.25, group = "lab"}
magnesium = 2.0
hue = 0.1

[groups]
lab = 1.5
"""


def load_wine_table() -> pd.DataFrame:
    """Load five features and the class label."""
    dataset = load_wine(as_frame=True)
    table = dataset.data[["alcohol", "malic_acid", "ash", "magnesium", "hue"]].copy()
    table["cultivar"] = np.array(["north", "middle", "south"])[dataset.target]
    return table


def write_changed_table(folder: Path, change: Callable[[pd.DataFrame], Any]) -> str:
    """Write a changed table as CSV; return its path."""
    table = load_wine_table()
    changed_frame = change(table)
    path = folder / "bad.csv"
    (table if changed_frame is None else changed_frame).to_csv(path, index=False)
    return str(path)


def set_cell(column: str, value: object) -> Callable[[pd.DataFrame], None]:
    """Make a change of one cell of a column."""

    def change(table: pd.DataFrame) -> None:
        table[column] = table[column].astype(object)
        table.loc[3, column] = value

    return change
