"""Load a table, then train, pack and verify a system, for ``gatewise train`` and the demo."""

from __future__ import annotations

import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gatewise.console import note, progress, showing_progress
from gatewise.costs import CloudPrices
from gatewise.errors import GroupsWarning, InputError, RecallWarning
from gatewise.prices import PriceList
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.repacking import check_destination
from gatewise_export.bundle.topic_levels import check_topic_level, topic_level
from gatewise_export.packing.bundle_writer import pack
from gatewise_export.packing.system_manifest import check_column_names
from gatewise_export.packing.verification import verify
from gatewise_export.training_data import Split, feature_table, load_dataset, split_rows
from gatewise_export.training_result import TrainingRun
from gatewise_export.training_settings import TrainingSettings
from gatewise_training import methods
from gatewise_training.cascades.base import BudgetedClassifier
from gatewise_training.data.datasets import Dataset
from gatewise_training.data.input_checks import Validation
from gatewise_training.data.misleading_columns import TableRemark
from gatewise_training.operating_points.frontier import Frontier

#: Size in bytes from which reading a file takes seconds, so that progress is shown.
LARGE_FILE_BYTES = 4_000_000


def train_bundle(settings: TrainingSettings, *, quiet: bool = False) -> TrainingRun:
    """Train a system on a table and pack it into a bundle.

    If packing fails after the fit, the fitted system is saved next to the bundle's path, and a note
    on stderr tells how to pack it.
    """
    check_destination(settings.out)
    if settings.name is not None:
        check_topic_level("--name", settings.name)
    check_topic_level("--bundle-version", settings.version)
    _check_rows_file(settings)
    # load, fit and pack, and time each phase
    seconds: dict[str, float] = {}
    data_file = Path(settings.dataset)
    is_small = not data_file.is_file() or data_file.stat().st_size < LARGE_FILE_BYTES
    with _record_time(seconds, "load"), progress(f"read {data_file}", quiet=quiet or is_small):
        dataset = load_dataset(settings)
        check_column_names(dataset.feature_names)
        split = split_rows(dataset, settings)
        table_remarks = _table_remarks(dataset, settings)
    for remark in () if quiet else table_remarks:
        note(f"note: {remark.text}")
    with _record_time(seconds, "train"):
        system, goal_problem = _fit_system(dataset, split, settings, quiet=quiet)
    with _record_time(seconds, "pack"), progress(f"pack and verify {settings.out}", quiet=quiet):
        bundle = _pack_bundle(system, dataset, split, settings)
        verification = verify(system, bundle, feature_table(dataset, split.test))
    run = TrainingRun(
        settings=settings,
        data=dataset,
        split=split,
        system=system,
        bundle=bundle,
        verification=verification,
        seconds=seconds,
        troubles=(goal_problem,) if goal_problem else (),
        table_remarks=table_remarks,
    )
    # Write the test rows last, because a full disk must not lose the bundle.
    if settings.rows is None:
        return run
    try:
        settings.rows.write_text(run.test_csv(), encoding="utf-8")
    except OSError as error:
        trouble = f"the test rows could not be written to {settings.rows}: {error.strerror}"
        return replace(run, troubles=(*run.troubles, trouble))
    return run


def _table_remarks(dataset: Dataset, settings: TrainingSettings) -> tuple[TableRemark, ...]:
    """Remarks on a table's columns, without advice that the settings already follow."""
    if dataset.raw_table is None:
        return ()
    is_split = bool(settings.split_columns)
    return tuple(
        remark
        for remark in dataset.raw_table.remarks()
        if not (is_split and remark.option in ("--groups", "--time-split"))
    )


def neighbour_path(bundle: Path, name: str) -> Path:
    """Make the path ``bundle-name`` next to ``bundle`` or ``bundle.gwb``.

    For example, test rows are written to ``bundle-test.csv``.
    """
    stem = bundle.stem if bundle.suffix == ".gwb" else bundle.name
    return bundle.parent / f"{stem}-{name}"


def _check_rows_file(settings: TrainingSettings) -> None:
    """Refuse to overwrite a file that was not written by training."""
    file = settings.rows
    if file is None or not file.exists():
        return
    if Path(settings.dataset).exists() and file.samefile(settings.dataset):
        raise InputError(f"the test rows would overwrite the data, {file}: give --out another name")
    if not settings.out.exists() or not file.is_file():
        raise InputError(
            f"the test rows would overwrite {file}: move it elsewhere, or give --out another name"
        )


def _pack_bundle(
    system: BudgetedClassifier, dataset: Dataset, split: Split, settings: TrainingSettings
) -> Bundle:
    """Pack the system at the settings' path; save the fitted system if that fails."""
    pack_options: dict[str, Any] = {
        "system": system,
        "sample": dataset.X[split.test],
        "name": topic_level(dataset.name) if settings.name is None else settings.name,
        "version": settings.version,
        "encoder": dataset.encoder,
        "max_message": settings.max_message,
    }
    try:
        return pack(path=settings.out, **pack_options)
    except BaseException:  # including KeyboardInterrupt, because the fit may have taken hours
        _save_fitted(pack_options, settings.out)
        raise


def _save_fitted(pack_options: Mapping[str, Any], out: Path) -> None:
    """Save the arguments of `pack` next to the bundle's path, or in a temporary folder."""
    import joblib

    file = neighbour_path(out, "fitted.joblib")
    try:
        if file.exists():
            raise FileExistsError(file)
        file.parent.mkdir(parents=True, exist_ok=True)
        joblib.dump(dict(pack_options), file)
    except OSError:
        file = Path(tempfile.mkdtemp(prefix="gatewise-")) / file.name
        joblib.dump(dict(pack_options), file)
    note(
        f"gatewise: the fitted system could not be packed, and was saved to {file}; pack it in "
        f"Python with gw.pack(path={str(out)!r}, **joblib.load({str(file)!r}))"
    )


def _fit_system(
    dataset: Dataset, split: Split, settings: TrainingSettings, *, quiet: bool
) -> tuple[BudgetedClassifier, str]:
    """Fit a system.

    The second result explains why no operating point reaches the goal; it is empty if one does.
    """
    # collect the method's parameters, and refuse settings that it does not have
    make_method = methods.cascade if settings.needs_cloud else methods.make
    method_options: dict[str, Any] = dict(settings.objectives)
    if settings.allow_missing:
        if "allow_missing" not in make_method(settings.method).get_params():
            raise InputError(
                f"method {settings.method} does not accept missing values: use --method staged"
            )
        method_options["allow_missing"] = True
    for name in ("max_bytes", "max_instance_cost"):
        if name in method_options and name not in make_method(settings.method).get_params():
            option_name = "--" + name.replace("_", "-")
            raise InputError(
                f"method {settings.method} has no {option_name}: use a cascade such as "
                "--method staged"
            )
    method_options |= {"feature_costs": dataset.feature_costs, "random_state": settings.seed}
    if (
        settings.costs is not None
        and (cloud_prices := PriceList.read(settings.costs).cloud) is not None
    ):
        if "cloud_prices" in make_method(settings.method).get_params():
            method_options["cloud_prices"] = cloud_prices
        elif cloud_prices != CloudPrices():
            raise InputError(f"{settings.costs}: [cloud]: method {settings.method} has no cloud")
    # fit on the rows with their groups and times
    system = make_method(settings.method, **method_options)
    validation: Validation | None = None
    if len(split.validation):
        validation = feature_table(dataset, split.validation), dataset.y[split.validation]
        if dataset.groups is not None:
            validation = *validation, dataset.groups[split.validation]
    training_rows = feature_table(dataset, split.training), dataset.y[split.training]
    row_keys = {"groups": dataset.groups, "time": dataset.time}
    training_keys = {
        key: values[split.training] for key, values in row_keys.items() if values is not None
    }
    try:
        with warnings.catch_warnings(), showing_progress(not quiet):
            # the command prints these warnings as remarks
            warnings.simplefilter("ignore", RecallWarning)
            warnings.simplefilter("ignore", GroupsWarning)
            system.fit(*training_rows, validation=validation, **training_keys)
            if settings.slack is not None:
                system = system.at(slack=settings.slack)
            return system, ""
    except InputError as error:
        frontier: Frontier | None = getattr(system, "frontier_", None)
        if frontier is None:
            raise
        # No point reaches the goal, so activate the nearest: the cheapest point for a budget, the
        # most accurate one for a loss, and the one with the fewest offloads for an offload rate.
        nearest_point = frontier.points[0 if "budget" in settings.goal else -1]
        if "offload_rate" in settings.goal:
            nearest_point = min(frontier.points, key=lambda point: point.offload_rate)
        system.operating_point_ = nearest_point
        return system, (
            f"{error}; the bundle's operating point costs {nearest_point.cost:g}, and "
            "`gatewise frontier` can choose another"
        )


@contextmanager
def _record_time(seconds: dict[str, float], phase: str) -> Iterator[None]:
    start_time = time.monotonic()
    yield
    seconds[phase] = round(time.monotonic() - start_time, 3)
