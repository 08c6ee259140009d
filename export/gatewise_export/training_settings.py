"""Settings of a training: what to learn from, how, and where the bundle goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gatewise_training.data.table_columns import ColumnOptions


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What to learn from, how, and where the bundle goes.

    `dataset` is a bundled set's name or a file, `method` one of
    :func:`gatewise_training.methods.names` with further `parameters`, `goal` one of budget,
    max_loss and offload_rate, or nothing. `costs` (TOML or CSV) and `default_price` are feature
    prices, by default the data set's. `groups` names the column (of an .npz file the array) with
    each row's subject, machine or recording: whole groups are held out, and :meth:`fit` gets them.
    `time_split` is a column of times or numbers and the format of its dates: the latest rows are
    held out. `test_size` is the share held out, unless the data has a test part of its own;
    `test_rows` keeps only so many. Without a `name` the bundle has the data set's; a `version` of
    None is made from settings and data, so that equal models share it. `sign` is a private key,
    `rows` a CSV file that the test rows go to.
    """

    dataset: str
    out: Path
    target: str | None = None
    method: str = "staged"
    goal: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    costs: Path | None = None
    default_price: float | None = None
    columns: ColumnOptions = field(default_factory=ColumnOptions)
    groups: str | None = None
    time_split: tuple[str, str] | None = None
    allow_missing: bool = False
    needs_cloud: bool = False
    seed: int = 0
    test_size: float = 0.25
    test_rows: int | None = None
    name: str | None = None
    version: str | None = "1"
    sign: Path | None = None
    rows: Path | None = None
