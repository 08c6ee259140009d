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


def machine_table(n: int = 260, seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Make rows and labels."""
    rng = np.random.default_rng(seed)
    supplier = rng.choice(["ACME", "Bölt & Sons", "东"], n).astype(object)
    when = pd.date_range("2025-01-01", periods=n, freq="11h").astype(str).to_numpy(object)
    mass = rng.normal(5, 1, n).round(3)
    heat = rng.normal(60, 9, n).round(2)
    ok = rng.choice(["yes", "no"], n)
    worn = (mass > 5.3) | ((supplier == "东") & (heat > 58))
    frame = pd.DataFrame(
        {"serial": [f"M{i:04}" for i in range(n)], "supplier": supplier, "when": when,
         "mass": mass, "heat": heat, "ok": ok}
    )  # fmt: skip
    frame.loc[rng.random(n) < 0.05, "supplier"] = None
    frame.loc[rng.random(n) < 0.08, "heat"] = np.nan
    return frame, np.where(worn, "worn", "fine")


def make_raw_bundle(folder: Path) -> tuple[Any, TableEncoder, Path]:
    """Fit a system on the table; return the system, its encoder and its bundle."""
    frame, y = machine_table()
    encoder = TableEncoder(
        columns={"supplier": "category", "when": "time", "serial": "drop"}, impute=True
    ).fit(frame[:200])
    x = encoder.transform(frame)
    costs = encoder.feature_costs(PRICES)
    f0 = LogisticRegression(max_iter=3000)
    system = ConfidenceCascade(f0, feature_costs=costs, random_state=0, budget=4.0)
    system.fit(x[:200], y[:200])
    pack(system, folder / "bundle", sample=frame[200:], encoder=encoder)
    return system, encoder, folder / "bundle"
