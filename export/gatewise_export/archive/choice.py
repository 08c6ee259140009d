"""Choose instances for people to label; informative instances have larger known probabilities.

Each instance i gets a share q_i of the n labels, and is chosen with the probability c_i:

    q_i = sum over k of s_k u_ik / (sum over j of u_jk),      c_i = min(1, n' q_i).

The share of reason k is s_k (:data:`REASON_SHARES`), and u_ik is the weight w_i of the instance
times its score for reason k. The number n' is set so that the c_i sum to n. Instances are drawn
independently, so that n of them are chosen on average. A quarter of the labels is spread evenly
over the traffic that the instances represent. Because of this, no weight w_i / c_i in an estimate
exceeds four times the mean weight.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise.file_lock import lock_file
from gatewise_export.archive.folder import find_release, read_rows, shards_by_release
from gatewise_export.archive.shard import (
    ArchivedRows,
    Release,
    ShardFacts,
    read_facts,
    read_shard,
    require_pyarrow,
    shard_table,
)

Floats = NDArray[np.float64]

Purpose = Literal["estimate", "refit"]

#: Share of the labels that is chosen for each reason. An estimate varies least if labels are chosen
#: in proportion to the doubt. Disagreements and regions find errors of which the high-cost model is
#: unaware. A refit learns most where two classes meet.
REASON_SHARES: Final[dict[Purpose, dict[str, float]]] = {
    "estimate": {"even": 0.25, "doubt": 0.65, "disagreement": 0.05, "region": 0.05},
    "refit": {"even": 0.25, "margin": 0.75},
}
#: Exponent of 1 - margin. The score halves if 1 - margin falls by 16 %, so that most of these
#: labels are at the borders between classes.
_MARGIN_POWER: Final = 4
#: Number of random hyperplanes. A region is the set of instances on the same sides of all planes.
_N_PLANES: Final = 8
_CHOICE_FACTS_KEY: Final = b"gatewise_choice"
LABELS_FOLDER: Final = "labels"


class ChoiceFacts(msgspec.Struct, frozen=True):
    """Facts about the instances from which a choice was made.

    Attributes
    ----------
    shards : tuple of str
        File names of the shards with these instances.
    largest_correction : float
        Bound for the alarm, as in :class:`gatewise_export.archive.alarm.LabelBatch`.
    """

    shards: tuple[str, ...]
    largest_correction: float


@dataclass(frozen=True, eq=False)
class LabelChoice:
    """The m instances of one choice.

    Attributes
    ----------
    rows : ArchivedRows
        Copies of the chosen instances, which remain when the archive deletes their shards.
    choice_probability : ndarray of float64, shape (m,)
        Probability with which each instance was chosen.
    main_reason : ndarray of str, shape (m,)
        The reason that contributed most to this probability.
    facts : ShardFacts
        Facts about the model that answered them.
    choice_facts : ChoiceFacts
    """

    rows: ArchivedRows
    choice_probability: Floats
    main_reason: NDArray[np.str_]
    facts: ShardFacts
    choice_facts: ChoiceFacts


def correct_probability(rows: ArchivedRows) -> Floats:
    """Probability, by the high-cost model, that each answer is right, shape (n,)."""
    return rows.probabilities[np.arange(len(rows)), rows.answers].astype(np.float64)


def largest_correction(rows: ArchivedRows, probability: Floats) -> float:
    """Largest q (W - w), as in :mod:`.alarm`, of instances with a `probability` of their choice.

    It is 0 without instances.
    """
    wrong_probability = 1 - correct_probability(rows)
    return float((wrong_probability * rows.weights * (1 / probability - 1)).max(initial=0.0))


def reason_scores(
    rows: ArchivedRows, rng: np.random.Generator, purpose: Purpose = "estimate"
) -> dict[str, Floats]:
    """Scores of the instances for each reason of a purpose, at least 0, each of shape (n,)."""
    if purpose == "refit":
        return {"even": np.ones(len(rows)), "margin": _margin_scores(rows)}
    answer_probability = correct_probability(rows)
    return {
        "even": np.ones(len(rows)),
        # by the high-cost model, the standard deviation of "the answer is right" as 0 or 1
        "doubt": np.sqrt(np.clip(answer_probability * (1 - answer_probability), 0, None)),
        "disagreement": (rows.answers != rows.cloud_label).astype(np.float64),
        "region": 1 / _region_sizes(rows.X, rng),
    }


def _margin_scores(rows: ArchivedRows) -> Floats:
    """Scores that are larger for smaller margins, divided by the weights.

    The weights cancel, because a refit needs labels at the borders between classes, however many
    instances each of these labels represents.
    """
    sorted_probabilities = np.sort(rows.probabilities.astype(np.float64), axis=1)
    margins = sorted_probabilities[:, -1] - sorted_probabilities[:, -2]
    return np.asarray((1 - margins) ** _MARGIN_POWER / rows.weights)


def _region_sizes(X: NDArray[Any], rng: np.random.Generator) -> Floats:
    """Number of instances in the region of each instance, shape (n,)."""
    values = np.nan_to_num(X.astype(np.float64))
    # standardise, so that no single feature decides on which side of a plane an instance lies
    deviations = values.std(axis=0)
    standardised_values = (values - values.mean(axis=0)) / np.where(deviations > 0, deviations, 1.0)
    is_above_plane = standardised_values @ rng.normal(size=(values.shape[1], _N_PLANES)) > 0
    _, regions, sizes = np.unique(is_above_plane, axis=0, return_inverse=True, return_counts=True)
    return sizes[regions.reshape(-1)].astype(np.float64)


def choice_probabilities(
    rows: ArchivedRows, n: int, rng: np.random.Generator, purpose: Purpose = "estimate"
) -> tuple[Floats, NDArray[Any]]:
    """Probability and main reason of choosing each instance; the probabilities sum to n."""
    if not len(rows):
        return np.zeros(0), np.zeros(0, np.str_)
    reason_shares = REASON_SHARES[purpose]
    label_shares = {}
    for reason, scores in reason_scores(rows, rng, purpose).items():
        weighted_scores = rows.weights * scores
        score_sum = weighted_scores.sum()
        if score_sum > 0:
            label_shares[reason] = reason_shares[reason] * weighted_scores / score_sum
        else:
            label_shares[reason] = np.zeros(len(rows))
    # if a reason applies to no instance, its labels are spread evenly
    unused_share = 1 - sum(map(np.sum, label_shares.values()))
    label_shares["even"] = label_shares["even"] * (1 + unused_share / reason_shares["even"])
    probability = _scaled_probabilities(np.sum(list(label_shares.values()), axis=0), n)
    main_reason = np.array(list(label_shares))[np.argmax(list(label_shares.values()), axis=0)]
    return probability, main_reason


def _scaled_probabilities(shares: Floats, n_labels: int) -> Floats:
    """Probabilities with the sum `n_labels`; those below 1 are proportional to `shares`."""
    if n_labels >= len(shares):
        return np.ones(len(shares))
    probability = np.zeros(len(shares))
    is_below_1 = np.ones(len(shares), np.bool_)
    # cap probabilities at 1, and share the remaining labels among the other instances
    while True:
        n_remaining_labels = n_labels - np.count_nonzero(~is_below_1)
        probability[is_below_1] = n_remaining_labels * shares[is_below_1] / shares[is_below_1].sum()
        is_newly_capped = is_below_1 & (probability >= 1)
        if not is_newly_capped.any():
            return probability
        probability[is_newly_capped] = 1.0
        is_below_1 &= ~is_newly_capped


@contextmanager
def lock_choices(archive_path: Path) -> Iterator[None]:
    """Wait until no other process chooses in the archive, and keep others out in the block.

    Otherwise two choices at the same time could cover the same instances. A missing archive is not
    made, so that :func:`choose` can name it.
    """
    if not archive_path.is_dir():
        yield
        return
    folder = archive_path / LABELS_FOLDER
    folder.mkdir(exist_ok=True, mode=0o700)
    with (folder / "choice.lock").open("wb") as file:
        lock_file(file.fileno())
        yield


def choose(
    archive_path: Path,
    n: int,
    rng: np.random.Generator,
    *,
    version: str | None = None,
    purpose: Purpose = "estimate",
) -> LabelChoice:
    """Choose about n instances from the shards that no earlier choice covered.

    `version` is a version or MODEL/VERSION, by default that of the newest such shard. The `purpose`
    decides where most of the labels are; every estimate and refit uses all labels. Raises
    InputError if no such shard exists, or if several models have the version.
    """
    if n < 1:
        raise InputError(f"--n {n}: choose at least 1 instance")
    covered_shards = {
        name for choice in read_choices(archive_path) for name in choice.choice_facts.shards
    }
    shards_of = shards_by_release(archive_path)
    new_shards_of = {
        release: new_shards
        for release, shards in shards_of.items()
        if (new_shards := [shard for shard in shards if shard.name not in covered_shards])
    }
    selectable = new_shards_of if version is None and new_shards_of else shards_of
    release = find_release(archive_path, selectable, version)
    shards = new_shards_of.get(release, [])
    if not shards:
        raise InputError(
            f"{archive_path} has no instances of {'/'.join(release)} that are newer than the last "
            "choice"
        )
    facts = read_facts(shards[-1])
    rows = read_rows(shards)
    probability, main_reason = choice_probabilities(rows, n, rng, purpose)
    # in random order, so that a person who labels the first half labels a random half
    chosen_positions = rng.permutation(np.flatnonzero(rng.random(len(rows)) < probability))
    choice_facts = ChoiceFacts(
        shards=tuple(shard.name for shard in shards),
        largest_correction=largest_correction(rows, probability),
    )
    return LabelChoice(
        rows=rows.take(chosen_positions),
        choice_probability=probability[chosen_positions],
        main_reason=main_reason[chosen_positions],
        facts=facts,
        choice_facts=choice_facts,
    )


def write_choice(archive_path: Path, choice: LabelChoice, timestamp: str) -> Path:
    """Write a choice atomically to the labels folder of the archive."""
    pa = require_pyarrow()
    from pyarrow import parquet

    table = shard_table(choice.rows, choice.facts)
    table = table.append_column("choice_chance", pa.array(choice.choice_probability))
    table = table.append_column("reason", pa.array(choice.main_reason))
    metadata = {_CHOICE_FACTS_KEY: msgspec.json.encode(choice.choice_facts)}
    table = table.replace_schema_metadata(table.schema.metadata | metadata)
    file = archive_path / LABELS_FOLDER / f"choice-{timestamp}.parquet"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    unfinished_file = file.with_suffix(".open")
    parquet.write_table(table, unfinished_file)
    unfinished_file.replace(file)
    return file


def read_choices(archive_path: Path, release: Release | None = None) -> list[LabelChoice]:
    """Read the choices of a release, or of all releases of an archive, oldest first."""
    require_pyarrow()
    from pyarrow import parquet

    choices = []
    for file in sorted((archive_path / LABELS_FOLDER).glob("choice-*.parquet")):
        facts = read_facts(file)
        if release not in (None, facts.release):
            continue
        table = parquet.read_table(file)
        choice_facts = msgspec.json.decode(
            table.schema.metadata[_CHOICE_FACTS_KEY], type=ChoiceFacts
        )
        choices.append(
            LabelChoice(
                rows=read_shard(file),
                choice_probability=table["choice_chance"].to_numpy(),
                main_reason=np.array(table["reason"].to_pylist(), np.str_),
                facts=facts,
                choice_facts=choice_facts,
            )
        )
    return choices


def choice_csv(choice: LabelChoice) -> str:
    """Format a choice as CSV with an empty column ``label`` to fill in.

    The CSV omits the models' answers, because people who see them tend to agree with them.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    is_feature_row = len(choice.facts.shape) == 1
    input_names: Sequence[str] = choice.facts.inputs if is_feature_row else ()
    writer.writerow(["id", "label", "device", "time", *input_names])
    for row in range(len(choice.rows)):
        values = [f"{value:.9g}" for value in choice.rows.X[row].tolist()] if is_feature_row else []
        writer.writerow(
            [
                choice.rows.ids[row],
                "",
                choice.rows.device[row],
                f"{choice.rows.time[row]:.3f}",
                *values,
            ]
        )
    return buffer.getvalue()
