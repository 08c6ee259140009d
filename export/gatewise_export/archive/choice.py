"""Choose instances for people to label, and prefer informative ones with known probabilities.

Each instance i gets a share q_i of the n labels, and is chosen with the probability c_i:

    q_i = sum over k of s_k u_ik / (sum over j of u_jk),      c_i = min(1, n' q_i),

where s_k is the share of reason k (:data:`SHARES`), and u_ik is the weight w_i of the instance
times its score for reason k. The number n' is set so that the c_i sum to n. Instances are drawn
independently, so that n of them are chosen on average. Half of the labels are spread evenly over
the traffic that the instances represent. Because of this, no weight w_i / c_i in an estimate
exceeds twice the mean weight.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gatewise.errors import InputError
from gatewise_export.archive.folder import read_archive, shards_in
from gatewise_export.archive.shard import (
    ArchivedRows,
    ShardFacts,
    read_facts,
    read_shard,
    require_pyarrow,
    shard_table,
)

Floats = NDArray[np.float64]

#: Share of the labels that is chosen for each reason.
SHARES: Final = {"even": 0.5, "doubt": 0.2, "margin": 0.1, "disagreement": 0.1, "region": 0.1}
#: Number of random hyperplanes. A region is the set of instances on the same sides of all planes.
_PLANES: Final = 8
_FACTS_KEY: Final = b"gatewise_choice"
FOLDER: Final = "labels"


class ChoiceFacts(msgspec.Struct, frozen=True):
    """The `shards` that a choice was made from, the sum of their weights, and its largest w / c."""

    shards: tuple[str, ...]
    total_weight: float
    largest_weight: float


@dataclass(frozen=True, eq=False)
class LabelChoice:
    """The m instances of one choice.

    Attributes
    ----------
    rows : ArchivedRows
        The chosen instances. They remain after the archive deletes their shards.
    chance : ndarray of float64, shape (m,)
        Probability with which each instance was chosen.
    reason : ndarray of str, shape (m,)
        The reason that contributed most to this probability.
    facts : ShardFacts
    offered : ChoiceFacts
    """

    rows: ArchivedRows
    chance: Floats
    reason: NDArray[np.str_]
    facts: ShardFacts
    offered: ChoiceFacts


def scores(rows: ArchivedRows, rng: np.random.Generator) -> dict[str, Floats]:
    """Scores of instances for each reason of :data:`SHARES`, at least 0, each of shape (n,)."""
    p = rows.probabilities.astype(np.float64)
    p_answer = p[np.arange(len(rows)), rows.answers]
    first_two = np.sort(p, axis=1)[:, -2:]
    return {
        "even": np.ones(len(rows)),
        # standard deviation of the event that the answer is right, by the high-cost model
        "doubt": np.sqrt(np.clip(p_answer * (1 - p_answer), 0, None)),
        "margin": 1 - (first_two[:, 1] - first_two[:, 0]),
        "disagreement": (rows.answers != rows.cloud_label).astype(np.float64),
        "region": 1 / _region_sizes(rows.X, rng),
    }


def _region_sizes(X: NDArray[Any], rng: np.random.Generator) -> Floats:
    """Number of instances in the region of each instance, shape (n,)."""
    x = np.nan_to_num(X.astype(np.float64))
    # standardised, so that no single feature decides on which side of a plane an instance lies
    scale = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    sides = x @ rng.normal(size=(x.shape[1], _PLANES)) > 0
    _, region, sizes = np.unique(sides, axis=0, return_inverse=True, return_counts=True)
    return sizes[region.reshape(-1)].astype(np.float64)


def chances(rows: ArchivedRows, n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[Any]]:
    """Probability and main reason of choosing each instance; the probabilities sum to n."""
    parts = {}
    for reason, score in scores(rows, rng).items():
        weighted = rows.weights * score
        total = weighted.sum()
        parts[reason] = SHARES[reason] * (weighted / total if total > 0 else rows.weights * 0)
    # if a reason applies to no instance, its labels are spread evenly
    parts["even"] = parts["even"] * (1 + (1 - sum(map(np.sum, parts.values()))) / SHARES["even"])
    q = np.sum(list(parts.values()), axis=0)
    if n >= len(rows):
        chance = np.ones(len(rows))
    else:
        chance = np.zeros(len(rows))
        is_uncapped = np.ones(len(rows), bool)
        # cap probabilities at 1, and share the remaining labels among the other instances
        while True:
            n_left = n - np.count_nonzero(~is_uncapped)
            chance[is_uncapped] = n_left * q[is_uncapped] / q[is_uncapped].sum()
            is_capped = is_uncapped & (chance >= 1)
            if not is_capped.any():
                break
            chance[is_capped] = 1.0
            is_uncapped &= ~is_capped
    reasons = np.array(list(parts))[np.argmax(list(parts.values()), axis=0)]
    return chance, reasons


def choose(
    path: Path, n: int, rng: np.random.Generator, *, version: str | None = None
) -> LabelChoice:
    """Choose about n instances from the shards that no earlier choice covered.

    `version` is the version of the model, by default of the newest such shard. Raises InputError if
    no such shard exists.
    """
    if n < 1:
        raise InputError(f"--n {n}: choose at least 1 instance")
    covered_shards = {name for choice in read_choices(path) for name in choice.offered.shards}
    new_shards = [shard for shard in shards_in(path) if shard.name not in covered_shards]
    if not new_shards:
        if covered_shards:
            raise InputError(f"{path} has no instances that are newer than the last choice")
        read_archive(path)  # its error says how to fill the archive
    if version is None:
        version = read_facts(new_shards[-1]).version
    shards = [shard for shard in new_shards if read_facts(shard).version == version]
    if not shards:
        raise InputError(f"{path} has no new instances of version {version}")
    facts = read_facts(shards[-1])
    rows = ArchivedRows.joined([read_shard(shard) for shard in shards])
    chance, reasons = chances(rows, n, rng)
    chosen = np.flatnonzero(rng.random(len(rows)) < chance)
    # in random order, so that a person who labels the first half labels a random half
    chosen = rng.permutation(chosen)
    offered = ChoiceFacts(
        shards=tuple(shard.name for shard in shards),
        total_weight=float(rows.weights.sum()),
        largest_weight=float((rows.weights / chance).max()),
    )
    return LabelChoice(rows.take(chosen), chance[chosen], reasons[chosen], facts, offered)


def write_choice(path: Path, choice: LabelChoice, stamp: str) -> Path:
    """Write a choice atomically to the labels folder of the archive."""
    pa = require_pyarrow()
    from pyarrow import parquet

    table = shard_table(choice.rows, choice.facts)
    table = table.append_column("choice_chance", pa.array(choice.chance))
    table = table.append_column("reason", pa.array(choice.reason))
    offered = {_FACTS_KEY: msgspec.json.encode(choice.offered)}
    table = table.replace_schema_metadata(table.schema.metadata | offered)
    file = path / FOLDER / f"choice-{stamp}.parquet"
    file.parent.mkdir(exist_ok=True, mode=0o700)
    unfinished = file.with_suffix(".open")
    parquet.write_table(table, unfinished)
    unfinished.replace(file)
    return file


def read_choices(path: Path) -> list[LabelChoice]:
    """Read the choices of an archive, oldest first."""
    require_pyarrow()
    from pyarrow import parquet

    choices = []
    for file in sorted((path / FOLDER).glob("choice-*.parquet")):
        table = parquet.read_table(file)
        offered = msgspec.json.decode(table.schema.metadata[_FACTS_KEY], type=ChoiceFacts)
        choices.append(
            LabelChoice(
                rows=read_shard(file),
                chance=table["choice_chance"].to_numpy(),
                reason=np.array(table["reason"].to_pylist(), np.str_),
                facts=read_facts(file),
                offered=offered,
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
    for i in range(len(choice.rows)):
        values = [f"{value:.9g}" for value in choice.rows.X[i].tolist()] if is_feature_row else []
        writer.writerow(
            [choice.rows.ids[i], "", choice.rows.device[i], f"{choice.rows.time[i]:.3f}", *values]
        )
    return buffer.getvalue()
