"""The days of a fleet that learns: real decisions, choices, estimates and refits on a table's rows.

Each day the devices answer instances, and workers keep offloads and audits. A choice asks for
labels, which come some days later. The monitor reads the labels that have come. By the rules its
alarm, or enough labels, lead to a refit, and a refit to a release that all devices run from the
next day on.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.decision import probabilities, split
from gatewise.errors import InputError
from gatewise_edge.device.audit import AuditSampler
from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import add_labels
from gatewise_export.archive.shard import ArchivedRows, ShardFacts
from gatewise_export.archive.true_figures import MonitorReport, monitor
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import Outcome
from gatewise_export.packing.verification import graph_outcome
from gatewise_export.refit.refit import RefitSettings, refit_bundle
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.link import MessageSizes
from gatewise_sim.fleet.workload import RowMix
from gatewise_sim.loop.loop_rules import LoopRules

_DAY_SECONDS: Final = 86_400.0
_MAX_BYTES: Final = 1e12
#: Fields of messages whose sizes depend on their values.
_TTL_MS: Final = 500
_WORKER_US: Final = 300


class DayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a day.

    Attributes
    ----------
    day : int
        From 1.
    version : str
        The release that answered.
    accuracy, high_cost_accuracy : float
        Share of the day's instances that the fleet, and the high-cost model alone, answer rightly.
    offload_rate : float
    estimate, low, high : float or None
        The monitor's estimate of the version's accuracy from the labels so far, and its interval.
    alarm : bool
        Whether the monitor raises its alarm.
    n_asked, n_labels : int
        Labels asked for, and labels that came.
    n_bytes : float
        Bytes of messages, and of the release if devices download one in the night before.
    verdict : str
        Verdict of the refit in the evening; empty without one.
    released : str
        Version that is released in the evening; empty without one.
    """

    day: int
    version: str
    accuracy: float
    high_cost_accuracy: float
    offload_rate: float
    estimate: float | None
    low: float | None
    high: float | None
    alarm: bool
    n_asked: int
    n_labels: int
    n_bytes: float
    verdict: str = ""
    released: str = ""


class LoopReport(msgspec.Struct, frozen=True):
    """Figures of all days, and the `rules`."""

    days: tuple[DayFigures, ...]
    rules: LoopRules

    @property
    def n_asked(self) -> int:
        """Labels asked for in all days."""
        return sum(day.n_asked for day in self.days)

    @property
    def n_bytes(self) -> float:
        """Bytes of all days."""
        return sum(day.n_bytes for day in self.days)

    @property
    def n_releases(self) -> int:
        """Number of releases after the first."""
        return sum(bool(day.released) for day in self.days)


def simulate_loop(
    bundle: Bundle | str | Path,
    X: ArrayLike,
    y: ArrayLike,
    *,
    train: str | Path,
    rules: LoopRules | None = None,
    target: str | None = None,
) -> LoopReport:
    """Simulate the days of a fleet that learns from its own instances.

    Parameters
    ----------
    bundle : Bundle or path
        The first release.
    X : array-like of shape (n, n_features)
        Rows that training has not seen, by time unless the rules have a mix.
    y : array-like of shape (n,)
        Their true classes, which the labeller knows.
    train : path
        Training rows of the first release, as for ``gatewise refit``.
    rules : LoopRules, optional
        Workload, labeller, and when to refit.
    target : str, optional
        Column of the label in `train`.

    Returns
    -------
    LoopReport
        Figures of each day; the same for the same seed.

    Raises
    ------
    InputError
        If a row has a class that the bundle does not know, or a setting is not valid.
    """
    first = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    rows = Rows.from_arrays(first.manifest.name, X, y, first.manifest)
    return run_loop(first, rows, rules or LoopRules(), train=str(train), target=target)


def run_loop(
    bundle: Bundle, rows: Rows, rules: LoopRules, *, train: str, target: str | None = None
) -> LoopReport:
    """Simulate the days on rows with labels; see :func:`simulate_loop`."""
    if bundle.manifest.cloud is None:
        raise InputError(f"{bundle.manifest.title} has no high-cost model: nothing of it is kept")
    if rows.truth is None or (rows.truth < 0).any():
        raise InputError("the simulated labeller needs a class of the bundle for every row")
    if unknown := sorted(set(rules.refit) - set(RefitSettings.__struct_fields__)):
        raise InputError(f"refit.{unknown[0]}: gatewise refit has no such setting")
    with tempfile.TemporaryDirectory(prefix="gatewise-loop-") as folder:
        fleet = _LearningFleet(bundle, rows, rules, Path(folder), train, target)
        return LoopReport(tuple(fleet.run_day(day) for day in range(rules.days)), rules)


class _LearningFleet:
    """State of a fleet between two days."""

    def __init__(
        self,
        bundle: Bundle,
        rows: Rows,
        rules: LoopRules,
        folder: Path,
        train: str,
        target: str | None,
    ) -> None:
        self._bundle = bundle
        self._X = rows.X
        assert rows.truth is not None
        self._truth = np.array([str(label) for label in bundle.manifest.classes])[rows.truth]
        self._rules = rules
        self._folder = folder
        self._training: dict[str, Any] = {"train": train, "target": target}
        self._rng = np.random.default_rng(rules.seed)
        self._mix = None if rules.mix is None else RowMix.parse(rules.mix, rows.truth)
        self._samplers = [
            AuditSampler(rules.audit, random.Random(f"{rules.seed}-{device}"))
            for device in range(rules.devices)
        ]
        self._archive = ArchiveFolder(
            folder / "kept", max_bytes=_MAX_BYTES, max_days=rules.keep_days, rng=self._rng
        )
        # labels by the day on which they come
        self._labels_due: dict[int, dict[str, str]] = {}
        self._row_of: dict[str, int] = {}
        self._n_labels_at_refit = 0
        self._download_bytes = 0

    def run_day(self, day: int) -> DayFigures:
        """Answer the instances of a day, and do what the rules say in its evening."""
        bundle = self._bundle
        version = bundle.manifest.version
        # by day devices answer, and workers keep what they see
        positions, times = self._draw(day)
        outcome = graph_outcome(bundle, self._X[positions])
        n_bytes = self._keep(bundle, positions, times, outcome) + self._download_bytes
        # in the evening labels come, and others are asked for
        n_asked = self._ask(day, version) if day % self._rules.choose_every == 0 else 0
        labels = self._labels_due.pop(day, {})
        if labels:
            add_labels(self._archive.path, labels, by="labeller", at=float(times[-1]))
        report = monitor(self._archive.path, version=version)
        # and a release may follow, which devices download in the night
        verdict, released = self._refit(day, report)
        self._download_bytes = self._rules.devices * _device_bytes(self._bundle) if released else 0
        names = _class_names(bundle)
        truth = self._truth[positions]
        system = report.figures[0]
        return DayFigures(
            day=day + 1,
            version=version,
            accuracy=float(np.mean(names[outcome.labels] == truth)),
            high_cost_accuracy=float(np.mean(names[outcome.cloud_labels] == truth)),
            offload_rate=float(np.mean(_is_offloaded(bundle, outcome))),
            estimate=system.value,
            low=system.low,
            high=system.high,
            alarm=report.alarm,
            n_asked=n_asked,
            n_labels=len(labels),
            n_bytes=n_bytes,
            verdict=verdict,
            released=released,
        )

    def _draw(self, day: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Rows of the table and times in Unix seconds of a day's instances, shape (n,) each."""
        n = self._rules.instances
        times = (day + (np.arange(n) + 0.5) / n) * _DAY_SECONDS
        if self._mix is not None:
            return self._mix.rows(times, self._rng), times
        return (day * n + np.arange(n)) % len(self._X), times

    def _keep(
        self,
        bundle: Bundle,
        positions: NDArray[np.int64],
        times: NDArray[np.float64],
        outcome: Outcome,
    ) -> float:
        """Keep offloads and audits of a day; return the bytes of their messages."""
        manifest = bundle.manifest
        assert manifest.cloud is not None
        assert outcome.cloud_labels is not None
        assert outcome.cloud_probabilities is not None
        X = self._X[positions][:, manifest.cloud_inputs()]
        offloaded = _is_offloaded(bundle, outcome)
        confidence = _confidence(bundle, outcome)
        sizes = MessageSizes(
            model=manifest.name,
            version=manifest.version,
            n_values=X.shape[1],
            n_classes=len(manifest.classes),
            dtype=X.dtype,
        )
        response_bytes = sizes.response(_WORKER_US)
        n_bytes = np.count_nonzero(offloaded) * (sizes.request(_TTL_MS) + response_bytes)
        # the devices take turns, and choose their audits as they do in earnest
        chance = np.where(offloaded, 1.0, 0.0)
        for i in range(len(X)):
            mark = self._samplers[i % len(self._samplers)].choose(
                "cloud" if offloaded[i] else "edge", int(outcome.labels[i]), float(confidence[i])
            )
            if mark is not None:
                chance[i] = mark.probability
                n_bytes += sizes.audit(mark, _TTL_MS) + response_bytes
        sent = np.flatnonzero(chance > 0)
        rows = ArchivedRows(
            ids=np.array([f"{len(self._row_of) + i:032x}-0" for i in range(len(sent))]),
            device=np.array([f"device-{i % len(self._samplers)}" for i in sent.tolist()]),
            time=times[sent],
            X=X[sent],
            cloud_label=outcome.cloud_labels[sent].astype(np.int32),
            probabilities=outcome.cloud_probabilities[sent].astype(np.float32),
            device_label=np.where(offloaded, -1, outcome.labels)[sent].astype(np.int32),
            confidence=np.where(offloaded, np.nan, confidence)[sent].astype(np.float32),
            sent_chance=chance[sent],
            stored_chance=np.ones(len(sent)),
            late=np.zeros(len(sent), np.bool_),
        )
        facts = ShardFacts(
            model=manifest.name,
            version=manifest.version,
            classes=manifest.classes,
            inputs=manifest.cloud.inputs,
            shape=(X.shape[1],),
            accuracy=manifest.active_point.accuracy,
        )
        self._archive.add(rows, facts, float(times[-1]))
        self._row_of |= dict(zip(rows.ids.tolist(), positions[sent].tolist(), strict=True))
        return float(n_bytes)

    def _ask(self, day: int, version: str) -> int:
        """Choose instances for the labeller; return their number."""
        rules = self._rules
        choice = choose(self._archive.path, rules.labels, self._rng, version=version)
        write_choice(self._archive.path, choice, f"{day:06d}")
        names = np.unique(self._truth)
        labels = {}
        for name in choice.rows.ids.tolist():
            truth = self._truth[self._row_of[name]]
            if len(names) > 1 and self._rng.random() < rules.label_errors:
                truth = self._rng.choice(names[names != truth])
            labels[name] = str(truth)
        self._labels_due[day + rules.label_days] = labels
        return len(labels)

    def _refit(self, day: int, report: MonitorReport) -> tuple[str, str]:
        """Refit if the rules say so; return the verdict and the version that is released."""
        rules = self._rules
        is_due = rules.refit_on == "labels" or report.alarm
        if not is_due or report.n_labels - self._n_labels_at_refit < rules.refit_labels:
            return "", ""
        self._n_labels_at_refit = report.n_labels
        settings = RefitSettings(
            bundle=self._bundle.path,
            kept=self._archive.path,
            out=self._folder / f"release-{day}",
            seed=rules.seed,
            **self._training,
            **rules.refit,
        )
        new, refit = refit_bundle(settings)
        if rules.release == "better" and refit.verdict != "better":
            return refit.verdict, ""
        self._bundle = new
        self._n_labels_at_refit = 0
        return refit.verdict, new.manifest.version


def _class_names(bundle: Bundle) -> NDArray[np.str_]:
    return np.array([str(label) for label in bundle.manifest.classes])


def _is_offloaded(bundle: Bundle, outcome: Outcome) -> NDArray[np.bool_]:
    return np.asarray(outcome.exits == len(bundle.manifest.stages), np.bool_)


def _confidence(bundle: Bundle, outcome: Outcome) -> NDArray[np.float64]:
    """Largest probability of each answer of the stages, shape (n,)."""
    stages = bundle.manifest.stages
    by_stage = [
        probabilities(split(outputs, spec.score)[0], spec.link).max(axis=1)
        for outputs, spec in zip(outcome.margins, stages, strict=True)
    ]
    exits = np.minimum(outcome.exits, len(stages) - 1)
    return np.asarray(np.stack(by_stage)[exits, np.arange(len(exits))], np.float64)


def _device_bytes(bundle: Bundle) -> int:
    """Bytes that a device downloads: all files but the high-cost model's."""
    manifest = bundle.manifest
    cloud_file = None if manifest.cloud is None else manifest.cloud.file
    return sum(file.size for name, file in manifest.files.items() if name != cloud_file)
