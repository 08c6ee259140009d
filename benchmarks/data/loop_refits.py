"""Refits after a shift on three data sets, with 200 labels chosen by several strategies."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesClassifier

from benchmarks.data import problems
from gatewise_export import Bundle, pack
from gatewise_export.archive.choice import (
    ChoiceFacts,
    LabelChoice,
    Purpose,
    choose,
    write_choice,
)
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import add_labels
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, number_requests
from gatewise_export.packing.verification import graph_decisions
from gatewise_export.refit.refit import RefitSettings, refit_bundle
from gatewise_export.refit.refit_rows import MIN_LABELS
from gatewise_training import StagedCascade

N_SEEDS: Final = 10
N_LABELS: Final = 200
#: Share of the labels that a refit does not learn from, but compares the systems on.
COMPARISON_SHARE: Final = 0.1
SYSTEM: Final[dict[str, Any]] = {
    "n_stages": 2, "families": ("linear",), "effort": "low", "offload_rate": 0.2,
}  # fmt: skip


@dataclass(frozen=True)
class Strategy:
    """A way to choose about 200 labels.

    The device sends the share `audits` of the rows that it answers itself. The labels are divided
    equally among `n_releases` refits, and each refit has labels of rows that the previous release
    answered. Without a `purpose`, all sent rows have the same chance of a label.
    """

    title: str
    audits: float
    purpose: Purpose | None
    n_releases: int = 1


STRATEGIES: Final = (
    Strategy("chosen", 0.2, "estimate"),
    Strategy("random", 0.2, None),
    Strategy("offloaded", 0.0, None),
    Strategy("4 x 50 for refits", 0.2, "refit", 4),
    Strategy("4 x 50 of all rows", 1.0, "refit", 4),
)

Rows = tuple[NDArray[np.float32], NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Shift:
    """Rows before and after a shift; a split never separates rows of the same `unit`."""

    before: Rows
    after: Rows
    unit: NDArray[np.intp]  # of each row after the shift

    def split(self, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Divide the units after the shift into a week of operation (two thirds) and test rows.

        The row numbers of the week are in random order.
        """
        rng = np.random.default_rng(seed)
        units = rng.permutation(np.unique(self.unit))
        is_week = np.isin(self.unit, units[: 2 * len(units) // 3])
        return rng.permutation(np.flatnonzero(is_week)), np.flatnonzero(~is_week)


def _shift_occupancy(seed: int) -> Shift:
    """Make the shift of Occupancy from days with a mostly closed door to days with an open one."""
    arrays = problems.data_arrays("occupancy")
    X = arrays["X"]
    y = arrays["y"]
    rows_before = _draw_rows(arrays["part"] < 2, 2000, seed)
    rows_after = _draw_rows(arrays["part"] == 2, 3000, seed)
    return Shift(
        (X[rows_before], y[rows_before]), (X[rows_after], y[rows_after]), np.arange(len(rows_after))
    )


def _shift_hapt(seed: int) -> Shift:
    """Make the shift of HAPT from ten people to five others.

    The rows have six activities and the accelerometer's features in the time domain. Neighbouring
    windows share half of their samples. All consecutive windows of one activity are therefore a
    unit, because test rows would otherwise share samples with labelled rows.
    """
    arrays = problems.data_arrays("hapt")
    columns = np.flatnonzero(arrays["group"] <= 1)
    people = np.random.default_rng(seed).permutation(np.unique(arrays["subject"]))
    is_activity = arrays["y"] < 6
    is_before = is_activity & np.isin(arrays["subject"], people[:10])
    is_after = is_activity & np.isin(arrays["subject"], people[10:15])
    X = arrays["X"][:, columns]
    y = arrays["y"]
    is_start = np.diff(y, prepend=-1).astype(bool) | np.diff(arrays["subject"], prepend=-1).astype(
        bool
    )
    episode = np.cumsum(is_start)
    return Shift((X[is_before], y[is_before]), (X[is_after], y[is_after]), episode[is_after])


def _shift_letters(seed: int) -> Shift:
    """Make the shift of Letters from A to E to the classes A to F with more of A."""
    arrays = problems.data_arrays("letter")
    X = arrays["X"].astype(np.float32)
    y = np.unique(arrays["y"], return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    is_before = rng.random(len(y)) < 0.4
    rows_before = np.flatnonzero(is_before & (y < 5))
    rows_after = np.flatnonzero(~is_before & (y < 6))
    rows_after = rows_after[
        (y[rows_after] == 0) | (y[rows_after] == 5) | (rng.random(len(rows_after)) < 0.5)
    ]
    rows_after = np.concatenate([rows_after, rng.permutation(rows_after[y[rows_after] == 0])])
    # both copies of an A belong to the same unit
    return Shift((X[rows_before], y[rows_before]), (X[rows_after], y[rows_after]), rows_after)


def _draw_rows(is_candidate: NDArray[np.bool_], n: int, seed: int) -> NDArray[np.intp]:
    rows = np.flatnonzero(is_candidate)
    return np.sort(np.random.default_rng(seed).permutation(rows)[:n])


#: Functions that make a shift from a seed.
SETS: Final[dict[str, Callable[[int], Shift]]] = {
    "occupancy by day": _shift_occupancy,
    "HAPT by subject": _shift_hapt,
    "Letters, new class": _shift_letters,
}


def refit_case(name: str, seed: int) -> dict[str, Any]:
    """Measure accuracies on test rows after the shift: before the refits and after them."""
    shift = SETS[name](seed)
    X_old, y_old = shift.before
    X_new, y_new = shift.after
    week_rows, test_rows = shift.split(seed)
    figures: dict[str, Any] = {"set": name, "seed": seed}
    with tempfile.TemporaryDirectory() as folder_name:
        folder = Path(folder_name)
        old_bundle = _fit_and_pack(X_old, y_old, folder / "old", seed)
        np.savez(folder / "train.npz", X=X_old, y=y_old)
        figures["before refit"] = _measure_accuracy(old_bundle, X_new[test_rows], y_new[test_rows])
        for strategy in STRATEGIES:
            bundle = old_bundle
            rng = np.random.default_rng(seed)
            for release, rows in enumerate(np.array_split(week_rows, strategy.n_releases), 1):
                archive_folder = folder / strategy.title
                week_part = X_new[rows], y_new[rows]
                if not _archive_and_label(archive_folder, bundle, week_part, strategy, rng):
                    # too few rows were offloaded for a refit
                    continue
                settings = RefitSettings(
                    bundle=bundle.path,
                    train=str(folder / "train.npz"),
                    kept=archive_folder,
                    out=folder / f"{strategy.title}-{release}",
                    high_cost="new",
                    offload_rate=SYSTEM["offload_rate"],
                    held=COMPARISON_SHARE,
                    seed=seed,
                    parameters={**SYSTEM, "high_cost_model": _make_high_cost_model(seed)},
                )
                bundle, report = refit_bundle(settings)
                figures[f"verdict of {strategy.title}"] = report.verdict
            figures[strategy.title] = _measure_accuracy(bundle, X_new[test_rows], y_new[test_rows])
        full_bundle = _fit_and_pack(X_new[week_rows], y_new[week_rows], folder / "full", seed)
        figures["all labels"] = _measure_accuracy(full_bundle, X_new[test_rows], y_new[test_rows])
    return figures


def _make_high_cost_model(seed: int) -> ExtraTreesClassifier:
    return ExtraTreesClassifier(100, min_samples_leaf=2, random_state=seed)


def _fit_and_pack(X: NDArray[np.float32], y: NDArray[Any], path: Path, seed: int) -> Bundle:
    system = StagedCascade(_make_high_cost_model(seed), random_state=seed, **SYSTEM).fit(X, y)
    return pack(system, path, sample=X[:32], name="loop", version="1")


def _measure_accuracy(bundle: Bundle, X: NDArray[np.float32], y: NDArray[Any]) -> float:
    labels = np.array(bundle.manifest.classes)[graph_decisions(bundle, X).labels]
    return float(np.mean(labels == y))


def _archive_and_label(
    path: Path, bundle: Bundle, rows: Rows, strategy: Strategy, rng: np.random.Generator
) -> bool:
    """Archive the sent rows and label some; return False if too few were sent."""
    X, y = rows
    manifest = bundle.manifest
    decisions = graph_decisions(bundle, X)
    assert decisions.cloud_answers is not None
    assert manifest.cloud is not None
    # a device sends the offloaded rows and random audits of its own answers
    n = len(X)
    is_offloaded = decisions.exits == len(manifest.stages)
    is_audited = rng.random(n) < strategy.audits
    all_rows = ArchivedRows(
        request_id=number_requests(int(manifest.version) << 40, n),
        request_row=np.zeros(n, np.uint16),
        device=np.full(n, "d"),
        time=np.arange(n, dtype=np.float64),
        X=X[:, manifest.cloud_inputs()],
        cloud_label=decisions.cloud_answers.labels.astype(np.int32),
        probabilities=decisions.cloud_answers.probabilities.astype(np.float32),
        device_label=np.where(is_offloaded, -1, decisions.labels).astype(np.int32),
        confidence=np.full(n, np.nan, np.float32),
        sent_probability=np.where(is_offloaded, 1.0, strategy.audits),
        stored_probability=np.ones(n),
        late=np.zeros(n, bool),
    )
    sent_rows = all_rows.take(is_offloaded | is_audited)
    if len(sent_rows) < MIN_LABELS:
        return False
    facts = ShardFacts(
        model=manifest.name, version=manifest.version, classes=manifest.classes,
        inputs=manifest.cloud.inputs, shape=(X.shape[1],),
    )  # fmt: skip
    archive = ArchiveFolder(path, max_bytes=1e9, max_days=1e6, rng=rng)
    shard = archive.add(sent_rows, facts, float(manifest.version))
    n_labels = N_LABELS // strategy.n_releases
    if strategy.purpose is not None:
        choice = choose(path, n_labels, rng, purpose=strategy.purpose)
    else:
        probability = np.full(len(sent_rows), min(1.0, n_labels / len(sent_rows)))
        drawn_rows = np.flatnonzero(rng.random(len(sent_rows)) < probability)
        facts_of_choice = ChoiceFacts((shard.name,), 0.0)
        reason = np.full(len(drawn_rows), "even")
        choice = LabelChoice(
            sent_rows.take(drawn_rows), probability[drawn_rows], reason, facts, facts_of_choice
        )
    write_choice(path, choice, manifest.version)
    truth = dict(zip(all_rows.ids.tolist(), y.astype(str).tolist(), strict=True))
    add_labels(path, {name: truth[name] for name in choice.rows.ids.tolist()}, by="truth", at=0.0)
    return True
