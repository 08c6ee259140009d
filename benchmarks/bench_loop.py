"""True figures, alarms, thinning, kills of the archive writer, and refits after a shift.

    python -m benchmarks.bench_loop [--quick] [--only monitor,alarm,thinning,kills,refit]

Finished refits are cached in .bench-cache/loop until the code changes, so that an interrupted run
continues. The results are loop.json and loop.md in benchmarks/results; ``--quick`` writes them into
.bench-cache/quick.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, write_whole
from benchmarks.data.loop_refits import N_SEEDS, SETS, STRATEGIES, refit_case
from benchmarks.data.loop_streams import LettersStreams, Stream, audit_sampler, drawn_stream
from gatewise.console import note
from gatewise_edge.device.audit import AuditSampler
from gatewise_export.archive.alarm import TOLERANCE, LabelBatch, evidence
from gatewise_export.archive.choice import (
    choice_probabilities,
    correct_probability,
    largest_correction,
)
from gatewise_export.archive.estimate import FigureData, Terms, TrueFigure, estimate_figure
from gatewise_export.archive.folder import ArchiveFolder, read_archive, shards_in
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, read_facts, read_shard

PACKAGES = ("gatewise", "numpy", "pyarrow", "scikit-learn")
PARTS = ("monitor", "alarm", "thinning", "kills", "refit")
ACCURACIES = (0.99, 0.95, 0.85)
LOOKS = (25, 50, 100, 200)
INSTANCES_A_WEEK = 1500
LABELS_A_WEEK = 100
FACTS = ShardFacts(model="m", version="1", classes=("0", "1"), inputs=("a", "b"), shape=(2,))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts."""
    parts = {
        "monitor": lambda: _monitor(40 if options.quick else 500),
        "alarm": lambda: _alarm(20 if options.quick else 200),
        "thinning": lambda: _thinning(200_000 if options.quick else 4_000_000),
        "kills": lambda: _kills(3 if options.quick else 12),
        "refit": lambda: _refits(options.quick),
    }
    figures = {}
    for name in options.only:
        note(name)
        figures[name] = parts[name]()
    return figures


def _figure(
    rows: ArchivedRows,
    right: NDArray[Any],
    labelled: NDArray[Any],
    probability: Any,
    **options: Any,
) -> TrueFigure:
    ones = np.ones(len(rows))
    p_correct = correct_probability(rows)
    weights = rows.weights
    return estimate_figure(
        FigureData(
            Terms(p_correct, ones, weights),
            Terms(right[labelled], ones[labelled], (weights / probability)[labelled]),
            Terms(p_correct[labelled], ones[labelled], weights[labelled]),
        ),
        **options,
    )


# -- parts ---------------------------------------------------------------------------------


def _monitor(n_streams: int) -> list[dict[str, Any]]:
    """Coverage of the intervals by number of labels, and widths with and without the model."""
    lines = []
    for accuracy in ACCURACIES:
        truth = drawn_stream(np.random.default_rng(0), 4_000_000, accuracy).is_right.mean()
        covered = np.zeros((n_streams, len(LOOKS)))
        widths = np.zeros((n_streams, 2))
        covered_at_all = np.ones(n_streams)
        for i in range(n_streams):
            rng = np.random.default_rng((i, round(1000 * accuracy)))
            rows, right = drawn_stream(rng, 25_000, accuracy).archive(rng)
            probability, _ = choice_probabilities(rows, LOOKS[-1], rng)
            # look at a growing random part of the labels
            label_order = rng.random(len(rows)) / np.maximum(probability, 1e-12)
            for k, n in enumerate(LOOKS):
                share = n / LOOKS[-1]
                figure = _figure(rows, right, label_order < share, probability * share)
                covered[i, k] = figure.low <= truth <= figure.high
                if n == 100:
                    # labels without the model, drawn in proportion to the weights
                    label_probability = rows.weights * n / rows.weights.sum()
                    labelled = rng.random(len(rows)) < label_probability
                    by_labels = _figure(rows, right, labelled, label_probability, tuning=0.0)
                    widths[i] = figure.high - figure.low, by_labels.high - by_labels.low
            covered_at_all[i] = covered[i].all()
        lines.append(
            {
                "accuracy": accuracy,
                "system": float(truth),
                "streams": n_streams,
                "coverage": covered.mean(axis=0).tolist(),
                "at_all_looks": float(covered_at_all.mean()),
                "width": float(widths[:, 0].mean()),
                "width_alone": float(widths[:, 1].mean()),
            }
        )
    return lines


def _batch(rng: np.random.Generator, stream: Stream) -> tuple[LabelBatch, int]:
    """Label about 100 instances of a week's stream; also count the instances that were sent."""
    rows, right = stream.archive(rng)
    probability, _ = choice_probabilities(rows, LABELS_A_WEEK, rng)
    is_labelled = rng.random(len(rows)) < probability
    batch = LabelBatch(
        weights=rows.weights,
        label_weights=np.where(is_labelled, rows.weights / probability, 0.0),
        wrong_probability=1 - correct_probability(rows),
        is_wrong=(1 - right) * is_labelled,
        largest_correction=largest_correction(rows, probability),
    )
    return batch, len(rows)


def _alarm(n_streams: int) -> dict[str, Any]:
    """Rates of false alarms and of detected losses of 3 points, by number of sent instances."""
    letters = LettersStreams()
    drawn_accuracy = float(drawn_stream(np.random.default_rng(0), 4_000_000, 0.95).is_right.mean())

    def letters_week(rng: np.random.Generator, loss: float, sampler: AuditSampler) -> Stream:
        return letters.stream(rng, INSTANCES_A_WEEK, loss, sampler)

    def drawn_week(rng: np.random.Generator, loss: float, _: AuditSampler) -> Stream:
        return drawn_stream(rng, INSTANCES_A_WEEK, 0.95, loss)

    return {
        "letters": {
            "streams": n_streams,
            "accuracy": letters.accuracy,
            "offload_rate": letters.offload_rate,
            **_alarm_rates(n_streams, letters_week, letters.accuracy),
        },
        "drawn": {
            "streams": n_streams,
            "accuracy": drawn_accuracy,
            "offload_rate": 0.3,
            **_alarm_rates(n_streams, drawn_week, drawn_accuracy),
        },
    }


def _alarm_rates(
    n_streams: int,
    week: Callable[[np.random.Generator, float, AuditSampler], Stream],
    accuracy: float,
) -> dict[str, float]:
    """Share of streams with an alarm at the tolerated error rate and 3 points above it."""
    tolerated_rate = 1 - accuracy + TOLERANCE
    rates = {}
    for name, loss, n_sent in (
        ("false_alarms", TOLERANCE, 10_000),
        ("found_within_2000", TOLERANCE + 0.03, 2_000),
        ("found_within_10000", TOLERANCE + 0.03, 10_000),
    ):
        n_alarms = 0
        for i in range(n_streams):
            rng = np.random.default_rng((7, i))
            sampler = audit_sampler(i)
            batches: list[LabelBatch] = []
            n_total = 0
            while True:
                batch, n = _batch(rng, week(rng, loss, sampler))
                n_total += n
                if n_total > n_sent:
                    break
                batches.append(batch)
                if evidence(batches, tolerated_rate) >= 20:
                    n_alarms += 1
                    break
        rates[name] = n_alarms / n_streams
    return rates


def _thinning(n_rows: int) -> dict[str, Any]:
    """Maximum size of an archive with a bound, and the sum of weights of its rows."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        bound = n_rows * 10.0  # an instance takes about 40 bytes
        archive = ArchiveFolder(Path(folder), max_bytes=bound, max_days=1e6, rng=rng)
        largest = 0
        started = time.monotonic()
        for i in range(n_rows // 20_000):
            stream = replace(drawn_stream(rng, 20_000, 0.95), sent_probability=np.ones(20_000))
            rows, _ = stream.archive(rng)
            probability = archive.read_store_probability()
            is_stored = rng.random(len(rows)) < probability
            stored_chance = np.full(int(is_stored.sum()), probability)
            rows = replace(rows.take(is_stored), stored_chance=stored_chance)
            archive.add(rows, msgspec.structs.replace(FACTS, stored_chance=probability), float(i))
            largest = max(largest, archive.size_bytes())
        _, remaining_rows = read_archive(archive.path)["m", "1"]
    return {
        "instances": n_rows,
        "bound": bound,
        "largest": largest,
        "left": len(remaining_rows),
        "sum_of_weights": float(remaining_rows.weights.sum()),
        "error": float(remaining_rows.weights.sum() / n_rows - 1),
        "seconds": time.monotonic() - started,
    }


_WRITER = """
import sys
import numpy as np
from pathlib import Path
from benchmarks.bench_loop import FACTS
from benchmarks.data.loop_streams import drawn_stream
from gatewise_export.archive.folder import ArchiveFolder
rng = np.random.default_rng()
archive = ArchiveFolder(Path(sys.argv[1]), max_bytes=2e6, max_days=1e6, rng=rng)
rows, _ = drawn_stream(rng, 20_000, 0.95).archive(rng)
print("ready", flush=True)
for i in range(100_000):
    archive.add(rows, FACTS, float(i))
"""


def _kills(n_kills: int) -> dict[str, Any]:
    """Kill a writer at random times; count the closed shards that are damaged."""
    rng = np.random.default_rng(0)
    n_shards = 0
    damaged = 0
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(n_kills):
            child = subprocess.Popen(
                [sys.executable, "-c", _WRITER, folder], stdout=subprocess.PIPE, text=True
            )
            assert child.stdout is not None
            child.stdout.readline()
            time.sleep(float(rng.uniform(0.0, 1.0)))
            os.kill(child.pid, signal.SIGKILL)
            child.communicate()
            for shard in shards_in(Path(folder)):
                n_shards += 1
                probability = read_facts(shard).stored_chance
                damaged += not np.all(read_shard(shard).stored_chance == probability)
    return {"kills": n_kills, "shards_read": n_shards, "damaged": damaged}


def _refits(quick: bool) -> list[dict[str, Any]]:
    """Accuracies of each set and seed, read from the cache if they are there."""
    lines = []
    version = code_version("benchmarks.data.loop_refits")
    for seed in range(1 if quick else N_SEEDS):
        for name in SETS:
            file = CACHE / "loop" / f"{version}-{name.replace(' ', '-')}-{seed}.json"
            if not file.exists():
                note(f"refit {name} {seed}")
                write_whole(file, json.dumps(refit_case(name, seed)))
            lines.append(json.loads(file.read_text()))
    return lines


# -- the page ------------------------------------------------------------------------------


def page(figures: Mapping[str, Any]) -> list[str]:
    """Write the page of the results."""
    lines = [
        "# The loop: kept instances, true figures, refits",
        "",
        "Drawn streams have two classes; 30 % of the instances are offloaded and 2 % of the others "
        "audited, whatever their confidence. "
        "Refits: 200 labels of a week after a shift, chosen for an estimate, at random, or of "
        "offloaded instances alone, for one refit; or 50 chosen for each of 4 refits, of offloaded "
        "and audited instances (a fifth, as in the first three) or of all. Accuracy on rows of "
        "after the shift that no fit has seen, beside a system fitted on all labels of the week. "
        "`make bench-loop` makes this page.",
        "",
    ]
    if "monitor" in figures:
        lines += [
            "## True accuracy",
            "",
            "Coverage of the 95 % intervals after so many labels.",
            "",
        ]
        looks = [f"{n} labels" for n in LOOKS]
        header = ["f0", "system", *looks, "at all looks", "width at 100", "labels alone", "ratio"]
        rows = [
            [
                f"{r['accuracy']:.0%}", f"{r['system']:.1%}", *(f"{c:.1%}" for c in r["coverage"]),
                f"{r['at_all_looks']:.1%}", f"{r['width']:.3f}", f"{r['width_alone']:.3f}",
                f"{r['width'] / r['width_alone']:.2f}",
            ]
            for r in figures["monitor"]
        ]  # fmt: skip
        lines += [*harness.table_lines(header, rows), ""]
    if "alarm" in figures:
        lines += ["## Alarm", "", *_alarm_lines(figures["alarm"]), ""]
    for name in ("thinning", "kills"):
        if name in figures:
            pairs = [[key.replace("_", " "), f"{v:.6g}"] for key, v in figures[name].items()]
            lines += [
                f"## {name.capitalize()}",
                "",
                *harness.table_lines(["figure", "value"], pairs),
                "",
            ]
    if "refit" in figures:
        lines += ["## Refits", "", *_refit_lines(figures["refit"]), ""]
    return lines


def _alarm_lines(figures: Mapping[str, Any]) -> list[str]:
    """Table of the alarms of both kinds of streams."""
    header = [
        "stream", "streams", "accuracy", "offloaded", "false alarms",
        "detected within 2000 sent", "within 10000",
    ]  # fmt: skip
    rows = [
        [
            title,
            str(figures[key]["streams"]),
            *(
                f"{figures[key][rate]:.0%}"
                for rate in (
                    "accuracy", "offload_rate", "false_alarms",
                    "found_within_2000", "found_within_10000",
                )
            ),
        ]
        for key, title in (
            ("letters", "Letters, A to M against N to Z"),
            ("drawn", "drawn, loss among the device's own answers alone"),
        )
    ]  # fmt: skip
    return [
        f"A week has {INSTANCES_A_WEEK} instances, of which {LABELS_A_WEEK} get a label. A loss "
        "begins at once and is 3 points above the tolerated error rate, at which false alarms are "
        "counted. On Letters, 2 % of the device's own answers are audited by the device's rule, "
        "and wrong answers of all kinds become more frequent.",
        "",
        *harness.table_lines(header, rows),
    ]


def _refit_lines(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean accuracies of each set over its seeds, and their differences from all labels."""
    columns = ["before refit", *(strategy.title for strategy in STRATEGIES), "all labels"]
    accuracies = []
    differences = []
    for name in dict.fromkeys(case["set"] for case in cases):
        of_set = [case for case in cases if case["set"] == name]
        values = {key: np.array([case[key] for case in of_set]) for key in columns}
        row_start = [name, str(len(of_set))]
        accuracies.append([*row_start, *(_with_error(values[key]) for key in columns)])
        differences.append(
            [
                *row_start,
                *(_with_error(values[key] - values["all labels"]) for key in columns[:-1]),
                f"{sum(case['verdict of chosen'] == 'better' for case in of_set)}",
            ]
        )
    return [
        *harness.table_lines(["accuracy", "seeds", *columns], accuracies),
        "",
        *harness.table_lines(
            ["less all labels", "seeds", *columns[:-1], "chosen called better"], differences
        ),
    ]


def _with_error(values: NDArray[np.float64]) -> str:
    """Mean and standard error in percent."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f} %"
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():.1f} ± {100 * error:.1f} %"


BENCHMARK = harness.Benchmark(
    name="loop",
    quick_help="use few streams and one seed",
    packages=PACKAGES,
    measure=measure,
    page=page,
    parts=PARTS,
)

if __name__ == "__main__":
    raise SystemExit(BENCHMARK.main())
