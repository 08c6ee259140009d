"""The way from a table to a bundle: load, split, fit, pack, verify; for ``train`` and the demo."""

from __future__ import annotations

import hashlib
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from gatewise.console import note, progress, showing_progress
from gatewise.costs import CloudPrices
from gatewise.errors import GroupsWarning, InputError, RecallWarning
from gatewise.prices import PriceList
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError, ManifestError
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.bundle.signing import Signer
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.system_manifest import check_column_names
from gatewise_export.packing.verification import verify
from gatewise_export.seen_rows import SEEN, SeenRows, beside
from gatewise_export.training_data import Split, feature_table, load_dataset, split_rows
from gatewise_export.training_result import TrainingRun
from gatewise_export.training_settings import TrainingSettings
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.input_checks import Validation
from gatewise_training.data.misleading_columns import TableRemark
from gatewise_training.operating_points.frontier import Frontier

LARGE_FILE = 4_000_000
"""Bytes of a file that takes seconds to read."""


def train_bundle(settings: TrainingSettings, *, quiet: bool = False) -> TrainingRun:
    """Train a system on a table and pack it into a bundle.

    Where packing fails after the fit, the fitted system is saved next to the bundle's path, and a
    line on stderr says where it is and how to pack it.
    """
    check_destination(settings.out)
    if settings.sign is not None:
        Signer(settings.sign)  # refuse a key that cannot be used before the fit
    _check_names(settings)
    _check_files_beside(settings)
    # The three phases, timed.
    seconds: dict[str, float] = {}
    is_short = quiet or not _is_large(Path(settings.dataset))
    with _timed(seconds, "load"), progress(f"read {settings.dataset}", quiet=is_short):
        data = load_dataset(settings)
        check_column_names(data.feature_names)
        split = split_rows(data, settings)
        remarks = _table_remarks(data, settings)
    for remark in () if quiet else remarks:
        note(f"note: {remark.text}")
    with _timed(seconds, "train"):
        system, missed = _fit(data, split, settings, quiet=quiet)
    with _timed(seconds, "pack"), progress(f"pack and verify {settings.out}", quiet=quiet):
        bundle, unwritten = _pack(system, data, split, settings)
        verification = verify(system, bundle, feature_table(data, split.test))
    troubles = tuple(text for text in (missed, unwritten) if text)
    run = TrainingRun(
        settings=settings,
        data=data,
        split=split,
        system=system,
        bundle=bundle,
        verification=verification,
        seconds=seconds,
        troubles=troubles,
        table_remarks=remarks,
    )
    # Test rows and fingerprints go next to the bundle; a full disk there loses no bundle.
    if settings.rows is None:
        return run
    try:
        settings.rows.write_text(run.test_csv(), encoding="utf-8")
        used = np.concatenate([split.training, split.validation])
        SeenRows.fingerprinted(data.X[used], data.X[split.test]).write(bundle)
    except OSError as error:
        trouble = f"the test rows could not be written to {settings.rows}: {error.strerror}"
        return replace(run, troubles=(*troubles, trouble))
    return run


def _is_large(path: Path) -> bool:
    """Whether reading a file takes so long that a line should say so."""
    return path.is_file() and path.stat().st_size >= LARGE_FILE


def _table_remarks(data: Dataset, settings: TrainingSettings) -> tuple[TableRemark, ...]:
    """Remarks on a table's columns, without the troubles that the settings mend."""
    if data.raw is None:
        return ()
    is_split = bool(settings.split_columns)
    return tuple(
        remark
        for remark in data.raw.remarks()
        if not (is_split and remark.option in ("--groups", "--time-split"))
    )


def rows_beside(out: Path) -> Path:
    """Get the path of a bundle's test rows: ``bundle-test.csv`` for ``bundle``."""
    return beside(out, "test.csv")


def _check_files_beside(settings: TrainingSettings) -> None:
    """Refuse to write test rows or fingerprints over files that no training has written."""
    if settings.rows is None:
        return
    for file in (settings.rows, beside(settings.out, SEEN)):
        if not file.exists():
            continue
        if Path(settings.dataset).exists() and file.samefile(settings.dataset):
            raise InputError(
                f"a file of rows would be written over {file}, the data itself: give --out "
                "another name"
            )
        if not settings.out.exists() or not file.is_file():
            raise InputError(
                f"{file} exists, where a file of rows would be written: move it away, or give "
                "--out another name"
            )


def _check_names(settings: TrainingSettings) -> None:
    """Refuse a name or version that no manifest may have, before the fit."""
    for option, text in (("--name", settings.name), ("--bundle-version", settings.version)):
        if text is not None and not (
            1 <= len(text.encode(errors="replace")) <= 64
            and text.isprintable()
            and not set("/+#").intersection(text)
        ):
            raise InputError(
                f"{option} {text!r} is no level of MQTT topics: 1 to 64 bytes, none of / + #"
            )


def _pack(
    system: BudgetedClassifier, data: Dataset, split: Split, settings: TrainingSettings
) -> tuple[Bundle, str]:
    """Pack where the settings say or, if that cannot be written now, in a folder made for it."""
    name = settings.name
    version = settings.version
    pack_options: dict[str, Any] = {
        "system": system,
        "sample": data.X[split.test],
        "name": topic_level(data.name) if name is None else name,
        "version": recipe_version(data, settings) if version is None else version,
        "sign": settings.sign,
        "encoder": data.encoder,
        "max_message": settings.max_message,
    }
    try:
        try:
            return pack(path=settings.out, **pack_options), ""
        except (OSError, BundleError) as error:
            if isinstance(error, ManifestError):  # no bundle may hold it, at any path
                raise
            fallback = _fresh_folder() / settings.out.name
            why = getattr(error, "strerror", None) or error
            trouble = f"{settings.out} could not be written ({why}): the bundle is {fallback}"
            return pack(path=fallback, **pack_options), trouble
    except BaseException:  # also an interruption: the fit may have taken hours
        _save_fitted(pack_options, settings.out)
        raise


def _save_fitted(parts: Mapping[str, Any], out: Path) -> None:
    """Write the arguments of `pack` next to the bundle's path, or into a new folder."""
    import joblib

    file = beside(out, "fitted.joblib")
    try:
        if file.exists():
            raise FileExistsError(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        joblib.dump(dict(parts), file)
    except OSError:
        file = _fresh_folder() / file.name
        joblib.dump(dict(parts), file)
    note(
        f"gatewise: it was not packed, but the fitted system is kept in {file}; in Python, "
        f"gw.pack(path={str(out)!r}, **joblib.load({str(file)!r})) packs it"
    )


def _fresh_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="gatewise-"))


def topic_level(name: str) -> str:
    """Turn a file's name into a level of MQTT topics.

    >>> topic_level("a/b+c#"), topic_level(""), len(topic_level("x" * 80))
    ('a-b-c-', 'model', 64)
    """
    safe = "".join(c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in name)
    return safe[:64] or "model"


def _fit(
    data: Dataset, split: Split, settings: TrainingSettings, *, quiet: bool
) -> tuple[BudgetedClassifier, str]:
    """Fit a system, and keep it also if none of its operating points reaches the goal."""
    # Options of the method, refused by name where it does not have them.
    make = methods.cascade if settings.needs_cloud else methods.make
    options: dict[str, Any] = dict(settings.objectives)
    if settings.allow_missing:
        if "allow_missing" not in make(settings.method).get_params():
            raise InputError(f"method {settings.method} takes no missing values; use staged")
        options["allow_missing"] = True
    for name in ("max_bytes", "max_instance_cost"):
        if name in options and name not in make(settings.method).get_params():
            option = "--" + name.replace("_", "-")
            raise InputError(
                f"method {settings.method} takes no {option}; use a cascade, as staged"
            )
    options |= {"feature_costs": data.feature_costs, "random_state": settings.seed}
    if settings.costs is not None and (cloud := PriceList.read(settings.costs).cloud) is not None:
        if "cloud_prices" in make(settings.method).get_params():
            options["cloud_prices"] = cloud
        elif cloud != CloudPrices():
            raise InputError(f"{settings.costs}: [cloud]: method {settings.method} has no cloud")
    # Rows with their groups and times.
    system = make(settings.method, **options)
    validation: Validation | None = None
    if len(split.validation):
        validation = feature_table(data, split.validation), data.y[split.validation]
        if data.groups is not None:
            validation = *validation, data.groups[split.validation]
    training = feature_table(data, split.training), data.y[split.training]
    keys = {"groups": data.groups, "time": data.time}
    units = {key: values[split.training] for key, values in keys.items() if values is not None}
    try:
        with warnings.catch_warnings(), showing_progress(not quiet):
            # the command prints them as lines of their own
            warnings.simplefilter("ignore", RecallWarning)
            warnings.simplefilter("ignore", GroupsWarning)
            system.fit(*training, validation=validation, **units)
            if settings.slack is not None:
                system = system.at(slack=settings.slack)
            return system, ""
    except InputError as error:
        frontier: Frontier | None = getattr(system, "frontier_", None)
        if frontier is None:
            raise
        # The fit ended, but its goal is out of reach: the cheapest point is nearest to a budget,
        # the most accurate to a loss, the one with the fewest offloads to a rate.
        nearest = frontier.points[0 if "budget" in settings.goal else -1]
        if "offload_rate" in settings.goal:
            nearest = min(frontier.points, key=lambda p: p.offload_rate)
        system.operating_point_ = nearest
        return system, (
            f"{error}; the bundle is at the operating point that costs {nearest.cost:g}, "
            "`gatewise frontier` moves it"
        )


def recipe_version(data: Dataset, settings: TrainingSettings) -> str:
    """Make a version that differs wherever settings or data could make another model."""
    ignored = {
        "max_message": None,
        "out": None,
        "name": None,
        "version": None,
        "sign": None,
        "rows": None,
    }
    costs = data.feature_costs
    recipe = msgspec.structs.asdict(settings) | ignored
    ingredients = (recipe, costs.own.tolist(), costs.shared.tolist())
    words = repr((*ingredients, data.y.tolist())).encode()
    return hashlib.sha256(words + data.X.tobytes()).hexdigest()[:12]


@contextmanager
def _timed(seconds: dict[str, float], phase: str) -> Iterator[None]:
    began = time.monotonic()
    yield
    seconds[phase] = round(time.monotonic() - began, 3)
