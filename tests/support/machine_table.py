"""A raw table of machines with text, dates and missing cells, and a cascade fitted on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression

from gatewise_export import pack
from gatewise_training import ConfidenceCascade
from gatewise_training.data.table_encoder import TableEncoder

PRICES = {"supplier": 5.0, "when": 0.5, "mass": 1.0, "heat": 3.0, "ok": 0.25}


def draw_machines(n: int = 260, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Draw rows and labels; machines that are heavy, or hot and from one supplier, are worn."""
    rng = np.random.default_rng(seed)
    suppliers = rng.choice(["ACME", "Bölt & Sons", "东"], n).astype(object)
    times = pd.date_range("2025-01-01", periods=n, freq="11h").astype(str).to_numpy(object)
    masses = rng.normal(5, 1, n).round(3)
    temperatures = rng.normal(60, 9, n).round(2)
    is_ok = rng.choice(["yes", "no"], n)
    is_worn = (masses > 5.3) | ((suppliers == "东") & (temperatures > 58))
    table = pd.DataFrame(
        {"serial": [f"M{i:04}" for i in range(n)], "supplier": suppliers, "when": times,
         "mass": masses, "heat": temperatures, "ok": is_ok}
    )  # fmt: skip
    table.loc[rng.random(n) < 0.05, "supplier"] = None
    table.loc[rng.random(n) < 0.08, "heat"] = np.nan
    return table, np.where(is_worn, "worn", "fine")


def make_raw_bundle(folder: Path) -> tuple[Any, TableEncoder, Path]:
    """Fit a system on the table; return the system, its encoder and its bundle."""
    table, y = draw_machines()
    encoder = TableEncoder(
        columns={"supplier": "category", "when": "time", "serial": "drop"}, impute=True
    ).fit(table[:200])
    x = encoder.transform(table)
    costs = encoder.feature_costs(PRICES)
    high_cost_model = LogisticRegression(max_iter=3000)
    system = ConfidenceCascade(high_cost_model, feature_costs=costs, random_state=0, budget=4.0)
    system.fit(x[:200], y[:200])
    pack(system, folder / "bundle", sample=table[200:], encoder=encoder)
    return system, encoder, folder / "bundle"
