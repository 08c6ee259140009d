"""Choose instances for people to label: the informative ones more often, each with a known chance.

Every instance i has its share of the n labels,

    q_i = sum over k of s_k u_ik / (sum over j of u_jk),      c_i = min(1, n' q_i),

where s_k is the share of reason k (:data:`SHARES`) and u_ik is its weight w_i times the reason's
score; n' makes the c_i sum to n. Each is drawn alone with probability c_i, so that their number is
n on average. Half of the labels fall evenly on what the instances stand for: no weight w_i / c_i in
an estimate exceeds twice its mean.
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

#: Part of the labels that is chosen for each reason.
SHARES: Final = {"even": 0.5, "doubt": 0.2, "margin": 0.1, "disagreement": 0.1, "region": 0.1}
#: Hyperplanes through the instances; each combination of their sides is a region.
_PLANES: Final = 8
_OFFERED: Final = b"gatewise_choice"
FOLDER: Final = "labels"


class ChoiceFacts(msgspec.Struct, frozen=True):
    """The `shards` of a choice, the largest weight w / c in it, and all instances' weights' sum."""

    shards: tuple[str, ...]
    total_weight: float
    largest_weight: float


@dataclass(frozen=True, eq=False)
class LabelChoice:
    """Instances that were chosen at one time, m of them.

    Attributes
    ----------
    rows : ArchivedRows
        The chosen instances; they stay when the archive drops its own copies.
    chance : ndarray of float64, shape (m,)
        Probability with which each was chosen.
    reason : ndarray of str, shape (m,)
        The reason that contributed most to it.
    facts : ShardFacts
    offered : ChoiceFacts
    """

    rows: ArchivedRows
    chance: Floats
    reason: NDArray[np.str_]
    facts: ShardFacts
    offered: ChoiceFacts


def scores(rows: ArchivedRows, rng: np.random.Generator) -> dict[str, Floats]:
    """Score instances for each reason of :data:`SHARES`, all from 0, each of shape (n,)."""
    p = rows.probabilities.astype(np.float64)
    p_answer = p[np.arange(len(rows)), rows.answers]
    first_two = np.sort(p, axis=1)[:, -2:]
    return {
        "even": np.ones(len(rows)),
        # standard deviation of whether the answer is right, as the high-cost model sees it
        "doubt": np.sqrt(np.clip(p_answer * (1 - p_answer), 0, None)),
        "margin": 1 - (first_two[:, 1] - first_two[:, 0]),
        "disagreement": (rows.answers != rows.cloud_label).astype(np.float64),
        "region": 1 / _region_sizes(rows.X, rng),
    }


def _region_sizes(X: NDArray[Any], rng: np.random.Generator) -> Floats:
    """Number of instances in the region of each, shape (n,)."""
    x = np.nan_to_num(X.astype(np.float64))
    # standardised, so that no feature decides alone on which side of a plane an instance lies
    scale = x.std(axis=0)
    x = (x - x.mean(axis=0)) / np.where(scale > 0, scale, 1.0)
    sides = x @ rng.normal(size=(x.shape[1], _PLANES)) > 0
    _, region, sizes = np.unique(sides, axis=0, return_inverse=True, return_counts=True)
    return sizes[region.reshape(-1)].astype(np.float64)


def chances(rows: ArchivedRows, n: int, rng: np.random.Generator) -> tuple[Floats, NDArray[Any]]:
    """Chance of each instance to be chosen, summing to n, and its main reason, shape (n,) each."""
    parts = {}
    for reason, score in scores(rows, rng).items():
        weighted = rows.weights * score
        total = weighted.sum()
        parts[reason] = SHARES[reason] * (weighted / total if total > 0 else rows.weights * 0)
    # where a reason has no instance, its labels fall evenly
    parts["even"] = parts["even"] * (1 + (1 - sum(map(np.sum, parts.values()))) / SHARES["even"])
    q = np.sum(list(parts.values()), axis=0)
    if n >= len(rows):
        chance = np.ones(len(rows))
    else:
        chance = np.zeros(len(rows))
        open_rows = np.ones(len(rows), bool)
        # chances above 1 leave labels over for the others
        while True:
            n_left = n - np.count_nonzero(~open_rows)
            chance[open_rows] = n_left * q[open_rows] / q[open_rows].sum()
            above = open_rows & (chance >= 1)
            if not above.any():
                break
            chance[above] = 1.0
            open_rows &= ~above
    reasons = np.array(list(parts))[np.argmax(list(parts.values()), axis=0)]
    return chance, reasons


def choose(
    path: Path, n: int, rng: np.random.Generator, *, version: str | None = None
) -> LabelChoice:
    """Choose about n instances of the shards that no earlier choice was made from.

    `version` is that of the model; by default the version of the newest shard.

    Raises InputError if there is no shard left.
    """
    if n < 1:
        raise InputError(f"--n {n}: at least 1 label must be wanted")
    offered_before = {name for one in read_choices(path) for name in one.offered.shards}
    new_shards = [shard for shard in shards_in(path) if shard.name not in offered_before]
    if not new_shards:
        if offered_before:
            raise InputError(f"{path} has no instances that are newer than the last choice")
        read_archive(path)  # says how to fill it
    if version is None:
        version = read_facts(new_shards[-1]).version
    shards = [shard for shard in new_shards if read_facts(shard).version == version]
    if not shards:
        raise InputError(f"{path} has no new instances of version {version}")
    facts = read_facts(shards[-1])
    rows = ArchivedRows.joined([read_shard(shard) for shard in shards])
    chance, reasons = chances(rows, n, rng)
    chosen = np.flatnonzero(rng.random(len(rows)) < chance)
    # in random order: whoever labels the first half labels a random half
    chosen = rng.permutation(chosen)
    offered = ChoiceFacts(
        shards=tuple(shard.name for shard in shards),
        total_weight=float(rows.weights.sum()),
        largest_weight=float((rows.weights / chance).max()),
    )
    return LabelChoice(rows.take(chosen), chance[chosen], reasons[chosen], facts, offered)


def write_choice(path: Path, choice: LabelChoice, stamp: str) -> Path:
    """Write a choice below the archive, as a whole or not at all."""
    pa = require_pyarrow()
    from pyarrow import parquet

    table = shard_table(choice.rows, choice.facts)
    table = table.append_column("choice_chance", pa.array(choice.chance))
    table = table.append_column("reason", pa.array(choice.reason))
    offered = {_OFFERED: msgspec.json.encode(choice.offered)}
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
        offered = msgspec.json.decode(table.schema.metadata[_OFFERED], type=ChoiceFacts)
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
    """Write a choice as CSV, with an empty column ``label`` to fill in.

    The models' answers are left out: people who see them tend to agree.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    is_row = len(choice.facts.shape) == 1
    names: Sequence[str] = choice.facts.inputs if is_row else ()
    writer.writerow(["id", "label", "device", "time", *names])
    for i in range(len(choice.rows)):
        values = [f"{value:.9g}" for value in choice.rows.X[i].tolist()] if is_row else []
        writer.writerow(
            [choice.rows.ids[i], "", choice.rows.device[i], f"{choice.rows.time[i]:.3f}", *values]
        )
    return text.getvalue()
