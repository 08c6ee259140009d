"""Streams of answered instances with two classes, and the archive of their offloads and audits."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from benchmarks.data import problems
from gatewise.decision import exit_stages, labels, probabilities
from gatewise_edge.device.audit_sampler import AuditSampler
from gatewise_export.archive.shard import ArchivedRows, number_requests
from gatewise_training import StagedCascade
from gatewise_training.data.datasets import load

#: Share of the answers of a device that it sends to the worker as well.
AUDIT_RATE: Final = 0.02
#: Numbers of rows; 16,000 of the 20,000 letters are left for the streams.
_N_TRAINING_ROWS: Final = 2000
_N_VALIDATION_ROWS: Final = 2000


@dataclass(frozen=True, eq=False)
class Stream:
    """n answered instances.

    `truth`, `cloud` and `device` are class indices, of which `device` is the answer of an instance
    that is not offloaded. `p_one` is the high-cost model's probability of class 1. An instance
    reaches the worker with the probability `sent_probability`, which is 1 for an offload.
    """

    truth: NDArray[np.int32]
    cloud: NDArray[np.int32]
    device: NDArray[np.int32]
    p_one: NDArray[np.float64]
    is_offloaded: NDArray[np.bool_]
    sent_probability: NDArray[np.float64]

    @property
    def is_right(self) -> NDArray[np.bool_]:
        """Whether the answer of each instance is right."""
        return np.where(self.is_offloaded, self.cloud, self.device) == self.truth

    def archive(self, rng: np.random.Generator) -> tuple[ArchivedRows, NDArray[np.float64]]:
        """Draw the instances that reach the archive, and 1 for each right answer."""
        sent_instances = np.flatnonzero(rng.random(len(self.truth)) < self.sent_probability)
        n_sent = len(sent_instances)
        rows = ArchivedRows(
            request_id=number_requests(0, n_sent),
            request_row=np.zeros(n_sent, np.uint16),
            device=np.full(n_sent, "d"),
            time=sent_instances.astype(np.float64),
            X=rng.normal(size=(n_sent, 2)).astype(np.float32),
            cloud_label=self.cloud[sent_instances],
            probabilities=np.column_stack(
                [1 - self.p_one[sent_instances], self.p_one[sent_instances]]
            ).astype("f4"),
            device_label=np.where(
                self.is_offloaded[sent_instances], -1, self.device[sent_instances]
            ).astype(np.int32),
            confidence=np.full(n_sent, np.nan, np.float32),
            sent_probability=self.sent_probability[sent_instances],
            stored_probability=np.ones(n_sent),
            late=np.zeros(n_sent, bool),
        )
        return rows, self.is_right[sent_instances].astype(np.float64)


def drawn_stream(rng: np.random.Generator, n: int, accuracy: float, loss: float = 0.0) -> Stream:
    """Draw n instances of a made-up system with a high-cost model of this `accuracy`.

    The high-cost model is correct with a probability whose mean is `accuracy`. It is nearly certain
    about three quarters of the instances and uncertain about the others. The device answers 70 % of
    the instances. Its error rate exceeds the one of the model by 2 % plus `loss`. Audits do not
    depend on the confidence.
    """
    is_uncertain = rng.random(n) < 0.25
    # 0.75 * 0.999 + 0.25 * p_uncertain = accuracy
    p_uncertain = 1 - 4 * (1 - accuracy) + 0.003
    p_right = np.where(is_uncertain, np.clip(rng.normal(p_uncertain, 0.05, n), 0.5, 0.999), 0.999)
    truth = rng.integers(0, 2, n).astype(np.int32)
    cloud = np.where(rng.random(n) < p_right, truth, 1 - truth)
    # 0.25 * 0.8 + 0.75 * 0.13 is an offload rate of 30 %
    is_offloaded = rng.random(n) < np.where(is_uncertain, 0.8, 0.13)
    # of all instances, 2 % plus the loss differ, but only the 70 % of the device can
    differs = ~is_offloaded & (rng.random(n) < (0.02 + loss) / 0.7)
    return Stream(
        truth=truth,
        cloud=cloud,
        device=np.where(differs, 1 - cloud, cloud),
        p_one=np.where(cloud == 1, p_right, 1 - p_right),
        is_offloaded=is_offloaded,
        sent_probability=np.where(is_offloaded, 1.0, AUDIT_RATE),
    )


class LettersStreams:
    """Streams of Letters (A to M against N to Z) through a cascade, with a device's audits."""

    def __init__(self) -> None:
        letters = load(problems.data_file("letter"))
        y = (letters.y >= 13).astype(np.int32)  # 13 is N
        training, validation, unseen = np.split(
            np.random.default_rng(0).permutation(len(y)),
            [_N_TRAINING_ROWS, _N_TRAINING_ROWS + _N_VALIDATION_ROWS],
        )
        system = StagedCascade(random_state=0, offload_rate=0.3).fit(
            letters.X[training], y[training], validation=(letters.X[validation], y[validation])
        )
        unseen_rows = letters.X[unseen]
        n_stages = len(system.stages_)
        margins, stop_scores = zip(
            *(stage.run(unseen_rows) for stage in system.stages_),
            strict=True,
        )
        exits = exit_stages(stop_scores, system.operating_point_.thresholds)
        stage_of_row = np.minimum(exits, n_stages - 1), np.arange(len(unseen_rows))
        stage_probabilities = [
            probabilities(stage_margins, stage.link)
            for stage_margins, stage in zip(margins, system.stages_, strict=True)
        ]
        self._confidence = np.stack(
            [class_probabilities.max(axis=1) for class_probabilities in stage_probabilities]
        )[stage_of_row]
        self._pool = Stream(
            truth=y[unseen],
            cloud=system.high_cost_model_.labels(unseen_rows).astype(np.int32),
            device=np.stack([labels(stage_margins) for stage_margins in margins])[
                stage_of_row
            ].astype(np.int32),
            p_one=system.high_cost_model_.predict_proba(unseen_rows)[:, 1],
            is_offloaded=exits == n_stages,
            sent_probability=np.ones(len(unseen_rows)),
        )
        self.accuracy = float(self._pool.is_right.mean())
        self.offload_rate = float(self._pool.is_offloaded.mean())

    def stream(
        self, rng: np.random.Generator, n: int, loss: float, sampler: AuditSampler
    ) -> Stream:
        """Draw n rows of which `loss` more are answered wrongly than of all rows."""
        pool = self._pool
        right_rows = np.flatnonzero(pool.is_right)
        wrong_rows = np.flatnonzero(~pool.is_right)
        is_wrong = rng.random(n) < 1 - self.accuracy + loss
        rows = np.where(is_wrong, rng.choice(wrong_rows, n), rng.choice(right_rows, n))
        sent_probability = np.ones(n)
        for i in np.flatnonzero(~pool.is_offloaded[rows]).tolist():
            sent_probability[i] = sampler.record_confidence(float(self._confidence[rows[i]]))
        return Stream(
            truth=pool.truth[rows],
            cloud=pool.cloud[rows],
            device=pool.device[rows],
            p_one=pool.p_one[rows],
            is_offloaded=pool.is_offloaded[rows],
            sent_probability=sent_probability,
        )


def audit_sampler(seed: int) -> AuditSampler:
    """Make the sampler of a device that audits :data:`AUDIT_RATE` of its answers."""
    return AuditSampler(AUDIT_RATE, random.Random(seed))
