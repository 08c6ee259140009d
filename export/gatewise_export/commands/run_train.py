"""What ``gatewise train`` does: read, split, fit, pack, verify, measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gatewise.console import note
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.packing.pack import check_destination, pack
from gatewise_export.packing.verify import verify
from gatewise_training import methods
from gatewise_training.cascades.base import Budgeted
from gatewise_training.data import datasets
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.input_checks import check_classes

__all__ = ["Settings", "run"]

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Settings:
    """The options of the command.

    Attributes
    ----------
    dataset : str
        A bundled set's name or a file.
    out : Path
    target : str or None
    method : str
    goal : mapping
        One of budget, max_loss and offload_rate, or nothing.
    costs : Path or None
    allow_missing : bool
    seed : int
    test_size : float
        Share held out, unless the file has a test part of its own.
    name : str or None
    version : str
    sign : Path or None
        A private key that the bundle is signed with.
    """

    dataset: str
    out: Path
    target: str | None
    method: str
    goal: Mapping[str, float]
    costs: Path | None
    allow_missing: bool
    seed: int
    test_size: float
    name: str | None
    version: str
    sign: Path | None = None


def run(settings: Settings, *, quiet: bool) -> dict[str, Any]:
    """Train, pack and measure.

    Returns
    -------
    dict
        ``bundle, bytes, dataset, method, operating_point, test, verify``; numbers of the
        held-out rows under ``test``.

    Raises
    ------
    GatewiseError
        For bad input, or a place that is taken; nothing is written then.
    """
    check_destination(settings.out)
    data = datasets.load(settings.dataset, target=settings.target)
    check_classes(data.y)
    _check_missing(data, settings)
    costs = data.feature_costs
    if settings.costs is not None:
        costs = FeatureCosts.from_file(settings.costs, names=data.feature_names)
    training, validation, test = _parts(data, settings)
    options: dict[str, Any] = {"verbose": 0 if quiet else 1, **settings.goal}
    if settings.allow_missing:
        if "allow_missing" not in methods.make(settings.method).get_params():
            raise InputError(f"method {settings.method} takes no missing values; use staged")
        options["allow_missing"] = True
    system = methods.make(
        settings.method, feature_costs=costs, random_state=settings.seed, **options
    )
    judges = None
    if len(validation):
        judges = data.X[validation], data.y[validation]
    system.fit(_table(data, training), data.y[training], validation=judges)
    bundle = pack(
        system,
        settings.out,
        sample=data.X[test],
        name=_level(data.name) if settings.name is None else settings.name,
        version=settings.version,
        sign=settings.sign,
    )
    rows = _table(data, test)
    report = verify(system, bundle, rows)
    if not quiet:
        note(f"packed {bundle.path}")
    return {
        "bundle": str(bundle.path),
        "bytes": sum(f.size for f in bundle.manifest.files.values()),
        "dataset": data.name,
        "method": settings.method,
        "operating_point": asdict(bundle.manifest.active_point),
        "test": _measure(system, bundle, rows, data.y[test]),
        "verify": asdict(report),
    }


def _measure(system: Budgeted, bundle: Bundle, rows: Any, y: NDArray[Any]) -> dict[str, Any]:
    x = np.ascontiguousarray(rows, np.float32)
    costs, f0 = system.feature_costs_, system.high_cost_model_
    return {
        "rows": len(y),
        "system": {
            "accuracy": float(np.mean(system.predict(rows) == y)),
            "cost": float(system.cost(rows).mean()),
            "offload_rate": float(np.mean(system.exit_stage(rows) == len(system.stages_))),
        },
        "cloud_only": None
        if f0 is None
        else {
            "accuracy": float(np.mean(system.classes_[f0.labels(x)] == y)),
            "cost": costs.of(f0.features) + system.cloud_prices_.of_offload(len(f0.features)),
        },
    }


# -- data ----------------------------------------------------------------------------------


def _parts(data: Dataset, settings: Settings) -> tuple[Rows, Rows, Rows]:
    """Rows to train on, to judge on (perhaps none: the method makes its own), to measure on."""
    from sklearn.model_selection import train_test_split

    none = np.zeros(0, np.intp)
    if "train" in data.parts and "test" in data.parts:
        return data.parts["train"], data.parts.get("validation", none), data.parts["test"]
    if not 0 < settings.test_size < 1:
        raise InputError(f"--test-size must lie between 0 and 1, not {settings.test_size}")
    classes, counts = np.unique(data.y, return_counts=True)
    if len(classes) < 2:
        raise InputError(f"{data.name} has one class only: {classes.tolist()[0]!r}")
    if counts.min() < 2:
        rare = classes.tolist()[int(counts.argmin())]
        raise InputError(f"class {rare!r} has one row only; give it more rows or drop it")
    try:
        training, test = train_test_split(
            np.arange(len(data.y)),
            test_size=settings.test_size,
            random_state=settings.seed,
            stratify=data.y,
        )
    except ValueError as error:
        raise InputError(f"--test-size {settings.test_size}: {error}") from error
    return np.sort(training), none, np.sort(test)


def _table(data: Dataset, rows: Rows) -> Any:
    """Rows under their names, so that the bundle speaks of them."""
    import pandas as pd

    return pd.DataFrame(data.X[rows], columns=list(data.feature_names))


def _check_missing(data: Dataset, settings: Settings) -> None:
    missing = np.isnan(data.X).sum(axis=0)
    if missing.any() and not settings.allow_missing:
        k = int(missing.argmax())
        raise InputError(
            f"column {data.feature_names[k]!r} is empty (NaN) in {missing[k]} rows: "
            "fill it in, or pass --allow-missing"
        )


def _level(name: str) -> str:
    """A file's name as a level of MQTT topics."""
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return kept[:64] or "model"
