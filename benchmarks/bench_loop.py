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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.cache import CACHE, code_version, write_whole
from benchmarks.data.loop_refits import N_SEEDS, SETS, refit_case
from gatewise.console import note
from gatewise_export.archive.alarm import LabelBatch, evidence
from gatewise_export.archive.choice import choice_probabilities
from gatewise_export.archive.estimate import FigureData, Terms, TrueFigure, estimate_figure
from gatewise_export.archive.folder import ArchiveFolder, read_archive, shards_in
from gatewise_export.archive.shard import ArchivedRows, ShardFacts, read_facts, read_shard

PACKAGES = ("gatewise", "numpy", "pyarrow", "scikit-learn")
PARTS = ("monitor", "alarm", "thinning", "kills", "refit")
ACCURACIES = (0.99, 0.95, 0.85)
LOOKS = (25, 50, 100, 200)
AUDITS = 0.02
BOUND = 0.01
FACTS = ShardFacts(model="m", version="1", classes=("0", "1"), inputs=("a", "b"), shape=(2,))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Run the parts."""
    parts = {
        "monitor": lambda: _monitor(40 if options.quick else 500),
        "alarm": lambda: _alarm(20 if options.quick else 100),
        "thinning": lambda: _thinning(200_000 if options.quick else 4_000_000),
        "kills": lambda: _kills(3 if options.quick else 12),
        "refit": lambda: _refits(options.quick),
    }
    figures = {}
    for name in options.only:
        note(name)
        figures[name] = parts[name]()
    return figures


# -- streams -------------------------------------------------------------------------------


def stream(rng: np.random.Generator, n: int, accuracy: float, loss: float = 0.0) -> dict[str, Any]:
    """Draw n instances with two classes, the answers of both models and the truth.

    The high-cost model is correct with probability p, whose mean is `accuracy`. It is nearly
    certain about three quarters of the instances and uncertain about the others. The device answers
    70 % of the instances. Its error rate exceeds the one of the model by 2 % plus `loss`.
    """
    in_doubt = rng.random(n) < 0.25
    p_doubt = 1 - 4 * (1 - accuracy) + 0.003
    p = np.where(in_doubt, np.clip(rng.normal(p_doubt, 0.05, n), 0.5, 0.999), 0.999)
    truth = rng.random(n) < 0.5
    model_is_right = rng.random(n) < p
    cloud = np.where(model_is_right, truth, ~truth)
    offloaded = rng.random(n) < np.where(in_doubt, 0.8, 0.13)
    differs = ~offloaded & (rng.random(n) < (0.02 + loss) / 0.7)
    device = np.where(differs, ~cloud, cloud)
    sent_chance = np.where(offloaded, 1.0, AUDITS)
    return {
        "truth": truth, "cloud": cloud, "p": p, "device": device, "offloaded": offloaded,
        "sent_chance": sent_chance, "right": (np.where(offloaded, cloud, device) == truth),
    }  # fmt: skip


def archived(rng: np.random.Generator, s: Mapping[str, NDArray[Any]]) -> tuple[Any, NDArray[Any]]:
    """Rows of a stream that reach the archive, and whether each answer is correct."""
    sent = np.flatnonzero(rng.random(len(s["p"])) < s["sent_chance"])
    cloud = s["cloud"][sent].astype(np.int32)
    p_one = np.where(cloud == 1, s["p"][sent], 1 - s["p"][sent])
    n = len(sent)
    rows = ArchivedRows(
        ids=np.full(n, f"{0:032x}-0"),
        device=np.full(n, "d"),
        time=sent.astype(np.float64),
        X=rng.normal(size=(n, 2)).astype(np.float32),
        cloud_label=cloud,
        probabilities=np.column_stack([1 - p_one, p_one]).astype(np.float32),
        device_label=np.where(s["offloaded"][sent], -1, s["device"][sent]).astype(np.int32),
        confidence=np.full(n, np.nan, np.float32),
        sent_chance=s["sent_chance"][sent],
        stored_chance=np.ones(n),
        late=np.zeros(n, bool),
    )
    return rows, s["right"][sent].astype(np.float64)


def predicted(rows: ArchivedRows) -> NDArray[np.float64]:
    """Probability of the high-cost model that each answer is correct."""
    return rows.probabilities[np.arange(len(rows)), rows.answers].astype(np.float64)


def _figure(
    rows: ArchivedRows,
    right: NDArray[Any],
    labelled: NDArray[Any],
    probability: Any,
    **options: Any,
) -> TrueFigure:
    ones = np.ones(len(rows))
    p_correct = predicted(rows)
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
        truth = stream(np.random.default_rng(0), 4_000_000, accuracy)["right"].mean()
        covered = np.zeros((n_streams, len(LOOKS)))
        widths = np.zeros((n_streams, 2))
        covered_at_all = np.ones(n_streams)
        for i in range(n_streams):
            rng = np.random.default_rng((i, round(1000 * accuracy)))
            rows, right = archived(rng, stream(rng, 25_000, accuracy))
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


def _batch(rng: np.random.Generator, n: int, loss: float) -> tuple[LabelBatch, int]:
    """Batch of a week with n instances and 100 labels, and its number of sent instances."""
    rows, right = archived(rng, stream(rng, n, 0.95, loss))
    probability, _ = choice_probabilities(rows, 100, rng)
    labelled = rng.random(len(rows)) < probability
    label_weights = np.where(labelled, rows.weights / probability, 0.0)
    largest = float((rows.weights / probability).max())
    batch = LabelBatch(rows.weights, label_weights, predicted(rows), right * labelled, largest)
    return batch, len(rows)


def _alarm(n_streams: int) -> dict[str, Any]:
    """Rates of false alarms and of detected losses of 3 points, by number of sent instances."""
    bound = stream(np.random.default_rng(0), 4_000_000, 0.95)["right"].mean() - BOUND
    figures: dict[str, Any] = {"streams": n_streams, "labels_a_week": 100}
    # false alarms are most frequent at the bound; the other streams are 3 points below it
    for name, loss, n_sent in (
        ("false_alarms", 0.011, 10_000),
        ("found_within_2000", 0.044, 2_000),
        ("found_within_10000", 0.044, 10_000),
    ):
        alarms = 0
        for i in range(n_streams):
            rng = np.random.default_rng((7, i))
            batches: list[LabelBatch] = []
            total = 0
            while total < n_sent:
                batch, n = _batch(rng, 1_500, loss)
                total += n
                batches.append(batch)
                if evidence(batches, bound) >= 20:
                    alarms += 1
                    break
        figures[name] = alarms / n_streams
    return figures


def _thinning(n_rows: int) -> dict[str, Any]:
    """Maximum size of an archive with a bound, and the sum of weights of its rows."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        bound = n_rows * 10.0  # an instance takes about 40 bytes
        archive = ArchiveFolder(Path(folder), max_bytes=bound, max_days=1e6, rng=rng)
        largest = 0
        started = time.monotonic()
        for i in range(n_rows // 20_000):
            rows, _ = archived(rng, {**stream(rng, 20_000, 0.95), "sent_chance": np.ones(20_000)})
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
from benchmarks.bench_loop import FACTS, archived, stream
from gatewise_export.archive.folder import ArchiveFolder
rng = np.random.default_rng()
archive = ArchiveFolder(Path(sys.argv[1]), max_bytes=2e6, max_days=1e6, rng=rng)
rows, _ = archived(rng, stream(rng, 20_000, 0.95))
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
        "Streams have two classes; 30 % of the instances are offloaded and 2 % of the others "
        "audited. A false alarm is one at the bound of the test, a loss lies 3 points below it. "
        "Refits: 200 labels, chosen, at random, or of offloaded instances alone; accuracy on rows "
        "of after the shift that no fit has seen, beside a system fitted on all labels of the new "
        "kind. `make bench-loop` makes this page.",
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
    for name in ("alarm", "thinning", "kills"):
        if name in figures:
            pairs = [[key.replace("_", " "), f"{v:.6g}"] for key, v in figures[name].items()]
            lines += [
                f"## {name.capitalize()}",
                "",
                *harness.table_lines(["figure", "value"], pairs),
                "",
            ]
    if "refit" in figures:
        lines += ["## Refits", "", *_refit_table(figures["refit"]), ""]
    return lines


def _refit_table(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Mean accuracy of each set over its seeds, with its standard error."""
    columns = [key for key, value in cases[0].items() if isinstance(value, float)]
    header = ["set", "seeds", *columns, "200 chosen less all labels", "called better"]
    rows = []
    for name in dict.fromkeys(case["set"] for case in cases):
        of_set = [case for case in cases if case["set"] == name]
        values = {key: np.array([case[key] for case in of_set]) for key in columns}
        cells = [_with_error(values[key]) for key in columns]
        difference = values["200 chosen"] - values["all labels"]
        n_better = sum(case["verdict"] == "better" for case in of_set)
        cells += [_with_error(difference), f"{n_better} of {len(of_set)}"]
        rows.append([name, str(len(of_set)), *cells])
    return harness.table_lines(header, rows)


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
