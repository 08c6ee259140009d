"""Rows to learn from and rows to be measured on."""

from __future__ import annotations

import csv as table
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_training.data import datasets

if TYPE_CHECKING:
    from pandas import DataFrame

    from gatewise_training.data.datasets import Dataset

__all__ = ["Parts", "csv", "frame", "load", "split"]

_TEST_SHARE = 0.3


@dataclass(frozen=True, eq=False)
class Parts:
    """Indices of rows by what they are for; `validation` may be empty."""

    train: NDArray[np.intp]
    validation: NDArray[np.intp]
    test: NDArray[np.intp]


def load(source: str, *, target: str | None, allow_missing: bool) -> Dataset:
    """Load a data set, see :func:`gatewise_training.data.datasets.load`.

    Raises
    ------
    InputError
        Also for a missing value, unless `allow_missing`.
    """
    data = datasets.load(source, target=target)
    missing = np.isnan(data.X).any(axis=0)
    if missing.any() and not allow_missing:
        # Said here, since a row that only the test part has would be found after training.
        name = data.feature_names[int(missing.argmax())]
        raise InputError(f"feature {name!r} has missing values: fill them, or --allow-missing")
    return data


def split(data: Dataset, *, instances: int | None, seed: int) -> Parts:
    """Hold out the source's own test part, or 30 % of the rows, stratified by class.

    Parameters
    ----------
    data : Dataset
    instances : int or None
        Keep only so many of the rows held out.
    seed : int

    Raises
    ------
    InputError
        If a class has one row only, or fewer rows are held out than `instances`.
    """
    if "test" in data.parts:
        none = np.empty(0, np.intp)
        parts = Parts(data.parts["train"], data.parts.get("validation", none), data.parts["test"])
    else:
        classes, counts = np.unique(data.y, return_counts=True)
        if counts.min() < 2:
            rare = classes[int(counts.argmin())]
            raise InputError(f"class {rare} is seen once only: it needs more rows, or none")
        from sklearn.model_selection import train_test_split

        try:
            train, test = train_test_split(
                np.arange(len(data.y)),
                test_size=_TEST_SHARE,
                stratify=data.y,
                random_state=seed,
            )
        except ValueError as error:
            raise InputError(f"{len(data.y)} rows cannot be split by class: {error}") from error
        parts = Parts(train, np.empty(0, np.intp), test)
    if instances is None:
        return parts
    if not 1 <= instances <= len(parts.test):
        raise InputError(
            f"--instances {instances}: {len(parts.test)} rows are held out for testing"
        )
    return Parts(parts.train, parts.validation, parts.test[:instances])


def frame(data: Dataset, rows: NDArray[np.intp]) -> DataFrame:
    """Take rows as a table with the features' names."""
    import pandas as pd

    return pd.DataFrame(data.X[rows], columns=list(data.feature_names))


def csv(data: Dataset, rows: NDArray[np.intp]) -> str:
    """Write rows as ``gatewise edge --data`` reads them, and their labels for the simulator.

    Examples
    --------
    >>> print(csv(datasets.load("iris"), np.array([0])), end="")
    sepal_length_(cm),sepal_width_(cm),petal_length_(cm),petal_width_(cm),label
    5.0999999,3.5,1.39999998,0.200000003,setosa
    """
    names = {name.lower() for name in data.feature_names}
    usual = [name for name in ("label", "target", "class", "y") if name not in names]
    out = io.StringIO()
    writer = table.writer(out, lineterminator="\n")
    writer.writerow([*data.feature_names, *usual[:1]])
    for values, label in zip(data.X[rows].tolist(), data.y[rows].tolist(), strict=True):
        writer.writerow([*(f"{v:.9g}" for v in values), *[label][: len(usual)]])
    return out.getvalue()
