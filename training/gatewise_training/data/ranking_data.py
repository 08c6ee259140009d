"""Ranking data sets: npz tables with queries, svmlight files of Yahoo and LETOR.

A line of an svmlight file is one document, ``<grade> qid:<query> <feature>:<value> ...``, with
features counted from 1 in rising order. A feature that is not listed is 0, and text after ``#`` is
a comment. Yahoo's Learning to Rank set may not be passed on, so nothing of it is here: give the
files (set1.train.txt and the like) and the file of its 519 published prices, one per line.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data.datasets import Dataset, load

MOST_COLUMNS = 100_000
"""A table of more columns is refused: a number that large is a slip."""


@dataclass(frozen=True, eq=False)
class RankingDataset(Dataset):
    """Documents with grades, prices and the query that each belongs to.

    `y` are grades of relevance, int64 (n,), 0 being irrelevant; `qid` is int64 (n,).
    """

    qid: NDArray[np.int64] = field(kw_only=True)


def load_mq2008(path: str | Path, *, fold: int = 1) -> RankingDataset:
    """Load MQ2008 (LETOR 4.0) from its npz file, split into a published fold."""
    if fold not in range(1, 6):
        raise InputError(f"MQ2008 has folds 1 to 5, not {fold!r}")
    table = load(path)
    with np.load(path, allow_pickle=False) as file:
        missing = [key for key in ("qid", "part") if key not in file.files]
        if missing:
            raise InputError(f"{path} has no array {missing[0]!r}")
        qid = file["qid"].astype(np.int64)
        part_of = file["part"]
    if not len(qid) == len(part_of) == len(table.y):
        raise InputError(f"{path}: qid and part need one value for each of the {len(table.y)} rows")
    fold_of = (part_of.astype(np.int64) - fold) % 5
    rows_by_part = {
        "train": np.flatnonzero(fold_of < 3),
        "validation": np.flatnonzero(fold_of == 3),
        "test": np.flatnonzero(fold_of == 4),
    }
    y = table.y.astype(np.int64)
    return RankingDataset(
        table.name, table.X, y, table.feature_names, table.feature_costs, rows_by_part, qid=qid
    )


def load_svmlight(
    files: str | Path | Mapping[str, str | Path], *, prices: str | Path | None = None
) -> RankingDataset:
    """Load one svmlight file with queries, or several that share their columns.

    The table is dense, 4 bytes a value: 1 GB for Yahoo's 473,134 training documents.
    """
    paths = files if isinstance(files, Mapping) else {"": files}
    if not paths:
        raise InputError("give at least one svmlight file")
    # one sparse table of all files
    tables = [_read(Path(path)) for path in paths.values()]
    width = max(x.shape[1] for x, _, _ in tables)
    for x, _, _ in tables:
        x.resize(x.shape[0], width)
    stacked = sparse.vstack([x for x, _, _ in tables], format="csr")
    used = np.unique(stacked.indices)
    stops = np.cumsum([len(y) for _, y, _ in tables])
    rows_by_part = {
        part_name: np.arange(stop - len(y), stop)
        for part_name, stop, (_, y, _) in zip(paths, stops, tables, strict=True)
    }
    y = np.concatenate([y for _, y, _ in tables])
    # the same number in two files is two queries
    pairs = (
        np.repeat(np.arange(len(stops)), np.diff(stops, prepend=0)),
        np.concatenate([qid for _, _, qid in tables]),
    )
    qid = np.unique(np.column_stack(pairs), axis=0, return_inverse=True)[1].ravel()
    # prices of all columns, or of the used ones alone
    columns = np.arange(width)
    costs = np.ones(width)
    if prices is not None:
        costs = _read_prices(Path(prices))
        if len(costs) == len(used) != width:
            columns = used
        elif len(costs) != width:
            raise InputError(
                f"{prices} has {len(costs)} prices, but the data has {width} columns, "
                f"{len(used)} of them in use"
            )
    dense = np.ascontiguousarray(stacked[:, columns].toarray(), np.float32)
    names = tuple(f"f{k + 1}" for k in columns)
    name = Path(next(iter(paths.values()))).stem
    feature_costs = FeatureCosts(costs, names=names)
    if not isinstance(files, Mapping):
        rows_by_part = {}
    qid = qid.astype(np.int64)
    return RankingDataset(name, dense, y, names, feature_costs, rows_by_part, qid=qid)


def _read_prices(path: Path) -> NDArray[np.float64]:
    if not path.is_file():
        raise InputError(f"{path} is not a file")
    prices = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            price = float(line)
        except ValueError:
            price = math.nan
        if not (math.isfinite(price) and price >= 0):
            raise InputError(f"{path}, line {number}: {line.strip()!r} is not a price")
        prices.append(price)
    return np.array(prices, np.float64)


def _read(path: Path) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """Read a file as a sparse matrix, grades and queries."""
    from sklearn.datasets import load_svmlight_file

    if not path.is_file():
        raise InputError(f"{path} is not a file")
    try:
        x, y, qid = load_svmlight_file(str(path), dtype=np.float32, query_id=True, zero_based=False)
    except (ValueError, OverflowError, OSError) as error:
        _explain(path)
        raise InputError(f"{path} cannot be read: {error}") from error
    sound = len(y) and len(qid) == len(y) and np.isfinite(x.data).all()
    if not (sound and (y >= 0).all() and (y == np.floor(y)).all() and x.shape[1] <= MOST_COLUMNS):
        _explain(path)
        raise InputError(f"{path} is not a ranking in svmlight's format")
    return x, y.astype(np.int64), np.asarray(qid, np.int64)


def _explain(path: Path) -> None:
    """Raise an error that names the first malformed line."""
    has_documents = False
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            has_documents = True
            problem = _wrong(words)
            if problem:
                raise InputError(f"{path}, line {number}: {problem}")
    if not has_documents:
        raise InputError(f"{path} has no documents")


def _wrong(words: list[str]) -> str | None:
    grade, *rest = words
    if not re.fullmatch(r"\+?\d+(\.0*)?", grade):
        return f"{grade!r} is not a grade; a document opens with a whole number of at least 0"
    if not rest or not re.fullmatch(r"qid:\d+", rest[0]):
        return "the second word must be qid:<number>"
    before = 0
    for word in rest[1:]:
        column, colon, value = word.partition(":")
        if not (colon and column.isascii() and column.isdigit()):
            return f"{word!r} is not <feature>:<value>"
        try:
            finite = abs(float(value)) <= float(np.finfo(np.float32).max)
        except ValueError:
            return f"{word!r}: {value!r} is not a number"
        if not finite:
            return f"{word!r}: the value must be finite"
        if not before < int(column) <= MOST_COLUMNS:
            return (
                f"feature {column} stands after feature {before}; features count from 1, rise, "
                f"and end at {MOST_COLUMNS}"
            )
        before = int(column)
    return None
