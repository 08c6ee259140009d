"""Columns with only unseen categories are counted, logged once, and shown in the gauges."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatewise_edge import Device
from gatewise_edge.device.unseen_cells import MIN_CELLS_TO_REPORT
from gatewise_export import pack
from gatewise_training import BudgetForest, TableEncoder


@pytest.mark.parametrize("column_kind", ["category", "ordinal"])
def test_column_of_unseen_categories_is_counted_and_logged_once(
    column_kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rng = np.random.default_rng(0)
    shades = rng.choice(["pale", "deep", "dark"], 120)
    frame = pd.DataFrame({"shade": shades, "mass": rng.normal(size=120)})
    encoder = TableEncoder(columns={"shade": column_kind}).fit(frame)
    forest = BudgetForest(n_estimators=5, random_state=0)
    system = forest.fit(encoder.transform(frame), shades == "pale")
    bundle = pack(system, tmp_path / "b", sample=frame, encoder=encoder)
    with Device(bundle) as device, caplog.at_level(logging.WARNING):
        n_unseen = MIN_CELLS_TO_REPORT + 5
        for _ in range(n_unseen):
            device.answer({"shade": "PALE", "mass": 0.1})
        assert device.counters["unseen"] == n_unseen
        assert device.gauges["unseen_columns"] == 1
        assert "column 'shade': no category of its first 20 cells" in caplog.text
        assert sum("'shade'" in record.message for record in caplog.records) == 1
        device.answer({"shade": "pale", "mass": 0.1})
        assert device.counters["unseen"] == n_unseen
        assert device.gauges["unseen_columns"] == 0
