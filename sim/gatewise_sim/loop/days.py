"""Simulate the days of a fleet that learns, with the real code on the rows of a table.

Each day, devices answer instances, and workers archive offloads and audits. In the evening, a
choice requests labels, which arrive some days later, and the monitor reads the labels that have
arrived. The rules then decide whether an alarm or enough labels start a refit, and whether the
refitted bundle is released. All devices run a new release from the next day on.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from gatewise.decision import probabilities, split_outputs
from gatewise.errors import InputError
from gatewise.formats import DAY
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_export.archive.choice import choose, write_choice
from gatewise_export.archive.folder import ArchiveFolder
from gatewise_export.archive.labels import add_labels
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, number_requests
from gatewise_export.archive.true_figures import MonitorReport, monitor
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.decisions import Decisions
from gatewise_export.packing.verification import graph_decisions
from gatewise_export.refit.refit import RefitSettings, refit_bundle
from gatewise_sim.experiment.rows import Rows
from gatewise_sim.fleet.link import MessageSizes
from gatewise_sim.fleet.row_mix import RowMix
from gatewise_sim.loop.loop_rules import LoopRules

#: Largest size of the archive; no simulation reaches it.
_ARCHIVE_MAX_BYTES: Final = 1e12
#: Typical values of two fields of messages, on which the sizes of messages depend.
_TTL_MS: Final = 500
_WORKER_US: Final = 300


class DayFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a day.

    Attributes
    ----------
    day : int
        Number of the day, from 1.
    version : str
        Version of the release that answered.
    accuracy, high_cost_accuracy : float
        Share of right answers of the fleet, and of the high-cost model alone.
    offload_rate : float
        Share of instances that were offloaded.
    estimate, low, high : float or None
        The monitor's estimate of the accuracy of the version, and the interval of the estimate.
    alarm : bool
        Whether the monitor raises its alarm.
    n_asked, n_labels : int
        Numbers of labels that were requested, and that arrived.
    n_bytes : float
        Bytes of messages, and of a release that devices downloaded in the night before.
    verdict : str
        Verdict of the refit in the evening; empty without a refit.
    released : str
        Version that was released in the evening; empty without a release.
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
    """Figures of all days, and the rules of the simulation."""

    days: tuple[DayFigures, ...]
    rules: LoopRules

    @property
    def n_asked(self) -> int:
        """Number of labels that were requested on all days."""
        return sum(day.n_asked for day in self.days)

    @property
    def n_bytes(self) -> float:
        """Bytes of messages and downloads on all days."""
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
        Rows that training has not seen, ordered by time unless the rules have a `mix`.
    y : array-like of shape (n,)
        True classes of the rows, which the labeller knows.
    train : path
        Training rows of the first release, as for ``gatewise refit``.
    rules : LoopRules, optional
        Workload, labeller, and conditions for refits.
    target : str, optional
        Name of the label column in `train`.

    Returns
    -------
    LoopReport
        Figures of each day, which are the same for the same seed.

    Raises
    ------
    InputError
        If a row has a class that the bundle does not know, or a setting is not valid.
    """
    first_release = bundle if isinstance(bundle, Bundle) else Bundle.open(bundle)
    rows = Rows.from_arrays(first_release.manifest.name, X, y, first_release.manifest)
    return run_loop(first_release, rows, rules or LoopRules(), train=str(train), target=target)


def run_loop(
    bundle: Bundle, rows: Rows, rules: LoopRules, *, train: str, target: str | None = None
) -> LoopReport:
    """Simulate the days on labelled rows; see :func:`simulate_loop`."""
    if bundle.manifest.cloud is None:
        raise InputError(
            f"{bundle.manifest.title} has no high-cost model, so workers archive no instances"
        )
    if rows.truth is None or (rows.truth < 0).any():
        raise InputError("the simulated labeller needs a class of the bundle for every row")
    if unknown_settings := sorted(set(rules.refit) - set(RefitSettings.__struct_fields__)):
        raise InputError(f"refit.{unknown_settings[0]}: gatewise refit has no such setting")
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
        training_path: str,
        target: str | None,
    ) -> None:
        self._bundle = bundle
        self._X = rows.X
        assert rows.truth is not None
        self._truth = _list_class_names(bundle)[rows.truth]
        self._rules = rules
        self._folder = folder
        self._training_source: dict[str, Any] = {"train": training_path, "target": target}
        self._rng = np.random.default_rng(rules.seed)
        self._row_mix = None if rules.mix is None else RowMix.parse(rules.mix, rows.truth)
        self._samplers = [
            AuditSampler(rules.audit, random.Random(f"{rules.seed}-{device}"))
            for device in range(rules.devices)
        ]
        self._archive = ArchiveFolder(
            folder / "kept", max_bytes=_ARCHIVE_MAX_BYTES, max_days=rules.keep_days, rng=self._rng
        )
        # labels by the day on which they arrive
        self._labels_due: dict[int, dict[str, str]] = {}
        self._position_by_id: dict[str, int] = {}
        self._n_labels_at_refit = 0
        self._download_bytes = 0

    def run_day(self, day: int) -> DayFigures:
        """Simulate a day and its evening."""
        bundle = self._bundle
        version = bundle.manifest.version
        # during the day: devices answer, and workers archive offloads and audits
        positions, times = self._draw_instances(day)
        decisions = graph_decisions(bundle, self._X[positions])
        n_bytes = self._archive_day(bundle, positions, times, decisions) + self._download_bytes
        # in the evening: the fleet requests labels, and the labeller sends earlier ones
        n_requested = (
            self._request_labels(day, version) if day % self._rules.choose_every == 0 else 0
        )
        labels = self._labels_due.pop(day, {})
        if labels:
            add_labels(self._archive.path, labels, by="labeller", at=float(times[-1]))
        report = monitor(self._archive.path, version=version)
        # in the night: devices download the release, if a refit leads to one
        verdict, released_version = self._refit(day, report)
        self._download_bytes = (
            self._rules.devices * _compute_device_bytes(self._bundle) if released_version else 0
        )
        class_names = _list_class_names(bundle)
        true_names = self._truth[positions]
        system_estimate = report.figures[0]
        assert decisions.cloud_answers is not None
        cloud_names = class_names[decisions.cloud_answers.labels]
        return DayFigures(
            day=day + 1,
            version=version,
            accuracy=float(np.mean(class_names[decisions.labels] == true_names)),
            high_cost_accuracy=float(np.mean(cloud_names == true_names)),
            offload_rate=float(np.mean(_is_offloaded(bundle, decisions))),
            estimate=system_estimate.value,
            low=system_estimate.low,
            high=system_estimate.high,
            alarm=report.alarm,
            n_asked=n_requested,
            n_labels=len(labels),
            n_bytes=n_bytes,
            verdict=verdict,
            released=released_version,
        )

    def _draw_instances(self, day: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Draw the positions in the table and the Unix times of a day's instances, shapes (n,)."""
        n_instances = self._rules.instances
        instance_numbers = np.arange(n_instances)
        times = (day + (instance_numbers + 0.5) / n_instances) * DAY  # at equal intervals
        if self._row_mix is not None:
            return self._row_mix.draw_rows(times, self._rng), times
        return (day * n_instances + instance_numbers) % len(self._X), times

    def _archive_day(
        self,
        bundle: Bundle,
        positions: NDArray[np.int64],
        times: NDArray[np.float64],
        decisions: Decisions,
    ) -> float:
        """Archive the offloads and audits of a day; return the bytes of their messages."""
        manifest = bundle.manifest
        assert manifest.cloud is not None
        assert decisions.cloud_answers is not None
        request_rows = self._X[positions][:, manifest.cloud_inputs()]
        is_offloaded = _is_offloaded(bundle, decisions)
        confidence = _compute_confidence(bundle, decisions)
        sizes = MessageSizes(
            model=manifest.name,
            version=manifest.version,
            n_values=request_rows.shape[1],
            n_classes=len(manifest.classes),
            dtype=manifest.request_dtype,
        )
        response_bytes = sizes.response(_WORKER_US)
        n_bytes = np.count_nonzero(is_offloaded) * (sizes.request(_TTL_MS) + response_bytes)
        # devices take turns, and each chooses its audits with the real sampler
        sent_probability = np.where(is_offloaded, 1.0, 0.0)
        for instance_index in range(len(request_rows)):
            audit_mark = self._samplers[instance_index % len(self._samplers)].choose(
                "cloud" if is_offloaded[instance_index] else "edge",
                int(decisions.labels[instance_index]),
                float(confidence[instance_index]),
            )
            if audit_mark is not None:
                sent_probability[instance_index] = audit_mark.probability
                n_bytes += sizes.audit(audit_mark, _TTL_MS) + response_bytes
        # the archive stores all instances that devices sent
        sent_positions = np.flatnonzero(sent_probability > 0)
        cloud_answers = decisions.cloud_answers.take(sent_probability > 0)
        rows = ArchivedRows(
            request_id=number_requests(len(self._position_by_id), len(sent_positions)),
            request_row=np.zeros(len(sent_positions), np.uint16),
            device=np.array(
                [
                    f"device-{instance_index % len(self._samplers)}"
                    for instance_index in sent_positions.tolist()
                ]
            ),
            time=times[sent_positions],
            X=request_rows[sent_positions],
            cloud_label=cloud_answers.labels.astype(np.int32),
            probabilities=cloud_answers.probabilities.astype(np.float32),
            device_label=np.where(is_offloaded, -1, decisions.labels)[sent_positions].astype(
                np.int32
            ),
            confidence=np.where(is_offloaded, np.nan, confidence)[sent_positions].astype(
                np.float32
            ),
            sent_probability=sent_probability[sent_positions],
            stored_probability=np.ones(len(sent_positions)),
            late=np.zeros(len(sent_positions), np.bool_),
        )
        shard_facts = ShardFacts(
            model=manifest.name,
            version=manifest.version,
            classes=manifest.classes,
            inputs=manifest.cloud.inputs,
            shape=(request_rows.shape[1],),
            accuracy=manifest.active_point.accuracy,
        )
        self._archive.add(rows, shard_facts, float(times[-1]))
        self._position_by_id |= dict(
            zip(rows.ids.tolist(), positions[sent_positions].tolist(), strict=True)
        )
        return float(n_bytes)

    def _request_labels(self, day: int, version: str) -> int:
        """Choose instances for the labeller, and return the number of requested labels."""
        rules = self._rules
        choice = choose(
            self._archive.path, rules.labels, self._rng, version=version, purpose=rules.choose_for
        )
        write_choice(self._archive.path, choice, f"{day:06d}")
        class_names = np.unique(self._truth)
        labels = {}
        for instance_id in choice.rows.ids.tolist():
            label = self._truth[self._position_by_id[instance_id]]
            # the labeller's errors name another class at random
            if len(class_names) > 1 and self._rng.random() < rules.label_errors:
                label = self._rng.choice(class_names[class_names != label])
            labels[instance_id] = str(label)
        self._labels_due[day + rules.label_days] = labels
        return len(labels)

    def _refit(self, day: int, report: MonitorReport) -> tuple[str, str]:
        """Refit if the rules require it; return the verdict and the released version."""
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
            **self._training_source,
            **rules.refit,
        )
        new_bundle, refit_report = refit_bundle(settings)
        if rules.release == "better" and refit_report.verdict != "better":
            return refit_report.verdict, ""
        self._bundle = new_bundle
        self._n_labels_at_refit = 0
        return refit_report.verdict, new_bundle.manifest.version


def _list_class_names(bundle: Bundle) -> NDArray[np.str_]:
    return np.array([str(label) for label in bundle.manifest.classes])


def _is_offloaded(bundle: Bundle, decisions: Decisions) -> NDArray[np.bool_]:
    return np.asarray(decisions.exits == len(bundle.manifest.stages), np.bool_)


def _compute_confidence(bundle: Bundle, decisions: Decisions) -> NDArray[np.float64]:
    """Compute the largest class probability of each device answer, shape (n,)."""
    stages = bundle.manifest.stages
    confidence_by_stage = [
        probabilities(split_outputs(outputs, stage.score)[0], stage.link).max(axis=1)
        for outputs, stage in zip(decisions.margins, stages, strict=True)
    ]
    exits = np.minimum(decisions.exits, len(stages) - 1)
    return np.asarray(np.stack(confidence_by_stage)[exits, np.arange(len(exits))], np.float64)


def _compute_device_bytes(bundle: Bundle) -> int:
    """Compute the size of the files that a device downloads: all except the high-cost model."""
    manifest = bundle.manifest
    cloud_file = None if manifest.cloud is None else manifest.cloud.file
    file_bytes = sum(file.size for name, file in manifest.files.items() if name != cloud_file)
    return file_bytes + len(manifest.to_json())
