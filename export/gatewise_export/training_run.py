"""The way from a table to a bundle: load, split, fit, pack, verify; for ``train`` and the demo."""

from __future__ import annotations

import csv
import hashlib
import io
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.costs import CloudPrices, FeatureCosts
from gatewise.errors import InputError, RecallWarning
from gatewise.prices import PriceList, check_price
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, ManifestError, VerifyReport
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.verification import verify
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.data import datasets
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.input_checks import check_classes
from gatewise_training.data.table_columns import ColumnOptions
from gatewise_training.operating_points.class_figures import ExitAnswers
from gatewise_training.operating_points.frontier import Frontier

__all__ = [
    "Split",
    "TrainingRun",
    "TrainingSettings",
    "load_dataset",
    "recipe_version",
    "rows_beside",
    "split_rows",
    "topic_level",
    "train_bundle",
]

Rows = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """What to learn from, how, and where the bundle goes.

    Attributes
    ----------
    dataset : str
        A bundled set's name or a file.
    out : Path
        Where the bundle goes: a directory or a ``.gwb`` file.
    target : str or None
        The file's label column.
    method : str
        One of :func:`gatewise_training.methods.names`.
    goal : mapping
        One of budget, max_loss and offload_rate, or nothing.
    parameters : mapping
        Further parameters of the method's estimator.
    costs : Path or None
        Feature prices, TOML or CSV; those of the data set by default.
    default_price : float or None
        Price of a column that `costs` does not list.
    columns : ColumnOptions
        What the columns of a file are.
    allow_missing : bool
        Take NaN as a value.
    needs_cloud : bool
        Refuse methods without a high-cost model.
    seed : int
        Of the split and the models.
    test_size : float
        Share held out, unless the data has a test part of its own.
    test_rows : int or None
        Keep only so many of the rows held out.
    name : str or None
        Of the bundle; the data set's by default.
    version : str or None
        Of the bundle; None makes one from settings and data, so that equal models share it.
    sign : Path or None
        A private key that the bundle is signed with.
    rows : Path or None
        A CSV file that the test rows go to, as :meth:`TrainingRun.test_csv` writes them.
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
    allow_missing: bool = False
    needs_cloud: bool = False
    seed: int = 0
    test_size: float = 0.25
    test_rows: int | None = None
    name: str | None = None
    version: str | None = "1"
    sign: Path | None = None
    rows: Path | None = None


@dataclass(frozen=True, eq=False)
class Split:
    """Indices of training, validation (may be empty) and test rows."""

    training: Rows
    validation: Rows
    test: Rows


@dataclass(frozen=True, eq=False)
class TrainingRun:
    """A fitted system, its bundle, and how the two agree on the test rows.

    Attributes
    ----------
    data : Dataset
    split : Split
    system : fitted system
    bundle : Bundle
    verification : VerifyReport
        Of the test rows.
    seconds : dict of str to float
        Wall time of the phases ``load``, ``train``, ``pack``.
    troubles : tuple of str
        What is not as the settings wanted: no operating point reaches the goal (the bundle is at
        the nearest), or the bundle could not be written where it should (it is elsewhere).
    """

    data: Dataset
    split: Split
    system: BudgetedClassifier
    bundle: Bundle
    verification: VerifyReport
    seconds: Mapping[str, float]
    troubles: tuple[str, ...] = ()

    @property
    def test_table(self) -> Any:
        """The test rows as a data frame with the features' names."""
        return _table(self.data, self.split.test)

    @property
    def test_labels(self) -> NDArray[Any]:
        """Labels of the test rows, as the data set has them."""
        return self.data.y[self.split.test]

    def measure(self) -> dict[str, Any]:
        """Figures on the test rows, of the system and of f0 alone."""
        system, rows, y = self.system, self.test_table, self.test_labels
        f0 = system.high_cost_model_
        cloud_only = None
        if f0 is not None:
            x = self.data.X[self.split.test]
            price = system.cloud_prices_.of_offload(len(f0.features))
            cost = system.feature_costs_.price(f0.features) + price
            answers = system.classes_[f0.labels(x)]
            cloud_only = {"cost": cost} | self._figures(answers, f0.predict_proba(x))
        return {
            "rows": len(y),
            "class_rows": [int(np.sum(y == c)) for c in system.classes_],
            "system": {
                **self._figures(system.predict(rows), system.predict_proba(rows)),
                "cost": float(system.cost(rows).mean()),
                "offload_rate": float(np.mean(system.exit_stage(rows) == len(system.stages_))),
            },
            "cloud_only": cloud_only,
        }

    def _figures(self, answers: NDArray[Any], chances: NDArray[np.float64]) -> dict[str, Any]:
        """Accuracy on the test rows, and the figures by class of rows with a class of training."""
        classes, y = self.system.classes_, self.test_labels
        known = np.isin(y, classes)
        truth, given = (np.searchsorted(classes, part[known]) for part in (y, answers))
        found = ExitAnswers.scored(truth, given[None], len(classes), [chances[known]])
        ones = np.ones(len(truth))
        figures = found.figures(np.zeros(len(truth), np.int64), ones)
        weights = self.system.class_weights_
        if weights is not None:
            right = truth == given
            figures["weighted_accuracy"] = float(np.average(right, weights=weights[truth]))
        return {"accuracy": float(np.mean(answers == y)), **figures}

    def test_csv(self, *, own_label: bool = True) -> str:
        """The test rows as ``gatewise edge --data`` reads them, with a label column at the end.

        Of a table all raw columns. The label has its own name there or, without `own_label`, one
        that is found by itself.
        """
        raw = self.data.raw
        columns = self.data.feature_names if raw is None else raw.frame.columns
        names = {name.lower() for name in columns}
        label = [name for name in ("label", "target", "class", "y") if name not in names][:1]
        if raw is not None:
            rows = raw.frame.iloc[self.split.test].copy()
            rows[raw.target if own_label or not label else label[0]] = raw.y[self.split.test]
            return str(rows.to_csv(index=False, lineterminator="\n"))
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*self.data.feature_names, *label])
        rows = self.data.X[self.split.test].tolist()
        for values, y in zip(rows, self.test_labels.tolist(), strict=True):
            writer.writerow([*(f"{v:.9g}" for v in values), *[y][: len(label)]])
        return out.getvalue()


def train_bundle(settings: TrainingSettings, *, quiet: bool = False) -> TrainingRun:
    """Train a system on a table and pack it into a bundle."""
    check_destination(settings.out)
    if settings.rows is not None:
        check_rows_file(settings)
    seconds: dict[str, float] = {}
    with _timed(seconds, "load"):
        data = load_dataset(settings)
        split = split_rows(data, settings)
        _check_budget(data, settings)
    with _timed(seconds, "train"):
        system, missed = _fit(data, split, settings, quiet=quiet)
    with _timed(seconds, "pack"):
        bundle, elsewhere = _pack(system, data, split, settings)
        verification = verify(system, bundle, _table(data, split.test))
    troubles = tuple(text for text in (missed, elsewhere) if text)
    run = TrainingRun(data, split, system, bundle, verification, seconds, troubles)
    if settings.rows is None:
        return run
    try:
        settings.rows.write_text(run.test_csv(), encoding="utf-8")
    except OSError as error:
        trouble = f"the test rows could not be written to {settings.rows}: {error.strerror}"
        return replace(run, troubles=(*troubles, trouble))
    return run


def rows_beside(out: Path) -> Path:
    """Get the place of a bundle's test rows: ``bundle-test.csv`` beside ``bundle``."""
    return out.with_name(f"{out.stem if out.suffix == '.gwb' else out.name}-test.csv")


def check_rows_file(settings: TrainingSettings) -> None:
    """Refuse to write test rows over a file that no earlier training can have written."""
    rows = settings.rows
    assert rows is not None
    if not rows.exists():
        return
    if Path(settings.dataset).exists() and rows.samefile(settings.dataset):
        raise InputError(
            f"the test rows would be written over {rows}, the data itself: give --out another name"
        )
    if not settings.out.exists() or not rows.is_file():
        raise InputError(
            f"{rows} exists, where the test rows would be written: move it away, or give --out "
            "another name"
        )


def _check_budget(data: Dataset, settings: TrainingSettings) -> None:
    """Refuse a budget for which no first stage of a staged cascade can acquire anything."""
    budget, costs = settings.goal.get("budget"), data.feature_costs
    cheapest = int(costs.alone.argmin())
    if settings.method == "staged" and budget is not None and 0 <= budget < costs.alone[cheapest]:
        raise InputError(
            f"--budget {budget:g} is below the price of the cheapest feature, "
            f"{data.feature_names[cheapest]!r} at {costs.alone[cheapest]:g}: every instance "
            "acquires at least one"
        )


def _pack(
    system: BudgetedClassifier, data: Dataset, split: Split, settings: TrainingSettings
) -> tuple[Bundle, str]:
    """Pack where the settings say or, if that cannot be written now, in a folder made for it."""

    def write(out: Path) -> Bundle:
        name, version = settings.name, settings.version
        return pack(
            system,
            out,
            sample=data.X[split.test],
            name=topic_level(data.name) if name is None else name,
            version=recipe_version(data, settings) if version is None else version,
            sign=settings.sign,
            encoder=data.encoder,
        )

    try:
        return write(settings.out), ""
    except (OSError, BundleError) as error:
        if isinstance(error, ManifestError):  # a name that no bundle may have, here or elsewhere
            raise
        other = Path(tempfile.mkdtemp(prefix="gatewise-")) / settings.out.name
        why = getattr(error, "strerror", None) or error
        return write(other), f"{settings.out} could not be written ({why}): the bundle is {other}"


def load_dataset(settings: TrainingSettings) -> Dataset:
    """Load and check the data set that settings name, with the prices that they name."""
    prices = None if settings.costs is None else PriceList.read(settings.costs)
    path = Path(settings.dataset)
    if path.suffix.lower() in (".csv", ".parquet") and path.is_file():
        return _load_table(path, settings, prices)
    if settings.columns.kinds or settings.columns.impute or settings.columns.missing_words:
        raise InputError(
            f"{settings.dataset}: what columns are is a matter of .csv and .parquet files"
        )
    data = datasets.load(settings.dataset, target=settings.target)
    check_classes(data.y)
    missing = np.isnan(data.X).sum(axis=0)
    if missing.any() and not settings.allow_missing:
        k = int(missing.argmax())
        raise InputError(
            f"column {data.feature_names[k]!r} is empty (NaN) in {missing[k]} rows: "
            "fill it in, or pass --allow-missing"
        )
    return _priced(data, prices, settings.default_price)


def _load_table(path: Path, settings: TrainingSettings, prices: PriceList | None) -> Dataset:
    options = replace(settings.columns, allow_missing=settings.allow_missing)
    if prices is not None:
        options = options.with_prices(prices)
    table = datasets.read_table(path, target=settings.target, options=options)
    check_classes(table.y)
    table.check()
    if table.is_numeric:
        return _priced(table.numbers(), prices, settings.default_price)
    if prices is not None:  # every column without a price, before anything is learned
        prices.of_columns(table.used.columns, default=settings.default_price)
    data = table.encoded(_split(table.path.stem, table.y, {}, settings).training)
    return _priced(data, prices, settings.default_price)


def _priced(data: Dataset, prices: PriceList | None, default: float | None) -> Dataset:
    if default is not None:
        check_price("--default-price", default)
    if prices is None and default is None:
        return data
    if data.encoder is not None:
        return replace(data, feature_costs=data.encoder.feature_costs(prices, default=default))
    names = data.feature_names
    if prices is None:
        costs = FeatureCosts(np.full(len(names), default, np.float64), names=names)
    else:
        costs = FeatureCosts.from_prices(prices, names=names, default=default)
    return replace(data, feature_costs=costs)


def split_rows(data: Dataset, settings: TrainingSettings) -> Split:
    """Take the data set's own split, or hold out test rows stratified by class."""
    split = _split(data.name, data.y, data.parts, settings)
    if settings.test_rows is None:
        return split
    if not 1 <= settings.test_rows <= len(split.test):
        raise InputError(
            f"{settings.test_rows} test rows are wanted; {len(split.test)} rows are held out"
        )
    return Split(split.training, split.validation, split.test[: settings.test_rows])


def topic_level(name: str) -> str:
    """Turn a file's name into a level of MQTT topics."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept[:64] or "model"


def _split(
    name: str, y: NDArray[Any], parts: Mapping[str, Rows], settings: TrainingSettings
) -> Split:
    from sklearn.model_selection import train_test_split

    none = np.zeros(0, np.intp)  # the method makes its own validation rows
    if "train" in parts and "test" in parts:
        return Split(parts["train"], parts.get("validation", none), parts["test"])
    if not 0 < settings.test_size < 1:
        raise InputError(f"--test-size must lie between 0 and 1, not {settings.test_size}")
    classes, counts = np.unique(y, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"{name} has one class only: {classes.tolist()[0]!r}")
    if counts.min() < 2:
        rare = classes.tolist()[int(counts.argmin())]
        raise InputError(f"class {rare!r} has one row only; give it more rows or drop it")
    try:
        training, test = train_test_split(
            np.arange(len(y)),
            test_size=settings.test_size,
            random_state=settings.seed,
            stratify=y,
        )
    except ValueError as error:
        raise InputError(f"--test-size {settings.test_size}: {error}") from error
    return Split(np.sort(training), none, np.sort(test))


def _fit(
    data: Dataset, split: Split, settings: TrainingSettings, *, quiet: bool
) -> tuple[BudgetedClassifier, str]:
    """Fit a system; a goal that none of its operating points reaches is no reason to lose it."""
    make = methods.cascade if settings.needs_cloud else methods.make
    options = {"verbose": 0 if quiet else 1, **settings.goal, **settings.parameters}
    if settings.allow_missing:
        if "allow_missing" not in make(settings.method).get_params():
            raise InputError(f"method {settings.method} takes no missing values; use staged")
        options["allow_missing"] = True
    options |= {"feature_costs": data.feature_costs, "random_state": settings.seed}
    if settings.costs is not None and (cloud := PriceList.read(settings.costs).cloud) is not None:
        if "cloud_prices" in make(settings.method).get_params():
            options["cloud_prices"] = cloud
        elif cloud != CloudPrices():
            raise InputError(f"{settings.costs}: [cloud]: method {settings.method} has no cloud")
    system = make(settings.method, **options)
    validation = None
    if len(split.validation):
        validation = _table(data, split.validation), data.y[split.validation]
    training = _table(data, split.training), data.y[split.training]
    try:
        with warnings.catch_warnings():
            # the command prints it as a line of its own
            warnings.simplefilter("ignore", RecallWarning)
            return system.fit(*training, validation=validation), ""
    except InputError as error:
        frontier: Frontier | None = getattr(system, "frontier_", None)
        if frontier is None:
            raise
        nearest = frontier.points[0 if "budget" in settings.goal else -1]
        if "offload_rate" in settings.goal:
            nearest = min(frontier.points, key=lambda p: p.offload_rate)
        system.operating_point_ = nearest
        return system, (
            f"{error}; the bundle is at the operating point that costs {nearest.cost:g}, "
            "`gatewise frontier` moves it"
        )


def _table(data: Dataset, rows: Rows) -> Any:
    import pandas as pd

    return pd.DataFrame(data.X[rows], columns=list(data.feature_names))


def recipe_version(data: Dataset, settings: TrainingSettings) -> str:
    """Make a version that differs wherever settings or data could make another model."""
    elsewhere = {"out": None, "name": None, "version": None, "sign": None, "rows": None}
    costs = data.feature_costs
    parts = (asdict(settings) | elsewhere, costs.own.tolist(), costs.shared.tolist())
    words = repr((*parts, data.y.tolist())).encode()
    return hashlib.sha256(words + data.X.tobytes()).hexdigest()[:12]


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[phase] = round(time.monotonic() - began, 3)
