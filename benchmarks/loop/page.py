"""Page loop.md with the results of :mod:`benchmarks.bench_loop`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.data.loop_refits import N_LABELS, STRATEGIES
from benchmarks.data.loop_streams import AUDIT_RATE
from benchmarks.harness import Column
from benchmarks.loop.alarms import LOSS, N_INSTANCES_PER_WEEK, N_LABELS_PER_WEEK, OFFLOAD_RATE
from benchmarks.loop.estimates import LABEL_COUNTS, N_WIDTH_LABELS


def write_page(results: Mapping[str, Any]) -> list[str]:
    """Write the page of the parts that were run."""
    lines = [
        "# The loop: archived instances, estimates of the accuracy, refits",
        "",
        f"Simulated streams have two classes. They offload {OFFLOAD_RATE:.0%} of the instances and "
        f"audit {AUDIT_RATE:.0%} of the others, whatever their confidence. `make bench-loop` makes "
        "this page. [Figures of GLIDE and of killed writers](loop_further.md) were measured once.",
        "",
    ]
    if "monitor" in results:
        lines += ["## Estimates of the accuracy", "", *_write_estimates(results["monitor"]), ""]
    if "alarm" in results:
        lines += ["## Alarm", "", *_write_alarms(results["alarm"]), ""]
    if "thinning" in results:
        rows = [
            [key.replace("_", " "), f"{figure:.6g}"] for key, figure in results["thinning"].items()
        ]
        lines += ["## Thinning", "", *harness.table_lines(["figure", "value"], rows), ""]
    if "refit" in results:
        lines += ["## Refits", "", *_write_refits(results["refit"]), ""]
    return lines


def _write_estimates(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the table of the coverage and the widths of the intervals."""
    return [
        "Accuracy of the high-cost model f0 and of the system, and share of streams in which the "
        "95 % interval contains the accuracy of the system after each number of labels, and after "
        f"all of them. Widths at {N_WIDTH_LABELS} labels are given with and without the "
        "predictions of f0.",
        "",
        *harness.column_table(_list_estimate_columns(), records),
    ]


def _list_estimate_columns() -> list[Column]:
    """List the columns of the estimates, with one of the coverage for each number of labels."""
    coverage_columns = [
        Column(f"{n_labels} labels", partial(_write_coverage, look_number))
        for look_number, n_labels in enumerate(LABEL_COUNTS)
    ]
    return [
        Column("f0", lambda record: f"{record['accuracy']:.0%}"),
        Column("system", lambda record: f"{record['system_accuracy']:.1%}"),
        *coverage_columns,
        Column("at all looks", lambda record: f"{record['coverage_at_all_looks']:.1%}"),
        Column(f"width at {N_WIDTH_LABELS}", lambda record: f"{record['width']:.3f}"),
        Column("labels alone", lambda record: f"{record['width_alone']:.3f}"),
        Column("ratio", lambda record: f"{record['width'] / record['width_alone']:.2f}"),
    ]


def _write_coverage(look_number: int, record: Mapping[str, Any]) -> str:
    return f"{record['coverage'][look_number]:.1%}"


def _write_alarms(results: Mapping[str, Any]) -> list[str]:
    """Write the table of the alarms of both kinds of streams."""
    titles = {
        "letters": "Letters, A to M against N to Z",
        "drawn": "simulated; only the device's own answers get worse",
    }
    rows = [{"title": title, **results[key]} for key, title in titles.items()]
    return [
        f"A week has {N_INSTANCES_PER_WEEK} instances, and {N_LABELS_PER_WEEK} of those sent get a "
        f"label. The error rate jumps to {100 * LOSS:.0f} points above the tolerated one, "
        "and false alarms are counted at the tolerated rate. On Letters, audits are chosen by the "
        "rule that devices use, and wrong answers of all kinds become more frequent.",
        "",
        *harness.column_table(ALARM_COLUMNS, rows),
    ]


ALARM_COLUMNS = (
    Column("stream", lambda row: row["title"]),
    Column("streams", lambda row: str(row["streams"])),
    Column("accuracy", lambda row: f"{row['accuracy']:.0%}"),
    Column("offloaded", lambda row: f"{row['offload_rate']:.0%}"),
    Column("false alarms", lambda row: f"{row['false_alarms']:.0%}"),
    Column("detected within 2000 sent", lambda row: f"{row['found_within_2000']:.0%}"),
    Column("within 10000", lambda row: f"{row['found_within_10000']:.0%}"),
)


def _write_refits(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write the mean accuracies of each set, and their differences from all labels."""
    columns = ["before refit", *(strategy.title for strategy in STRATEGIES), "all labels"]
    accuracies = []
    differences = []
    for name in dict.fromkeys(case["set"] for case in cases):
        cases_of_set = [case for case in cases if case["set"] == name]
        accuracies_of_set = {key: np.array([case[key] for case in cases_of_set]) for key in columns}
        row_start = [name, str(len(cases_of_set))]
        accuracies.append(
            [*row_start, *(_write_mean_and_error(accuracies_of_set[key]) for key in columns)]
        )
        n_accepted = sum(case["verdict of chosen"] == "better" for case in cases_of_set)
        differences.append(
            [
                *row_start,
                *(
                    _write_mean_and_error(accuracies_of_set[key] - accuracies_of_set["all labels"])
                    for key in columns[:-1]
                ),
                str(n_accepted),
            ]
        )
    return [
        f"The rows shift, and the instances of a week after the shift get {N_LABELS} labels:",
        "",
        "- chosen: chosen so as to estimate the accuracy, from offloaded and audited instances",
        "- random: from offloaded and audited instances",
        "- offloaded: at random from offloaded instances",
        "- 4 x 50 for refits: four times 50, chosen for refits from offloaded and audited "
        "instances; a refit follows each choice",
        "- 4 x 50 of all rows: the same from all instances",
        "",
        f"Devices audit {STRATEGIES[0].audits:.0%} of their answers, but all of them for "
        f'"{STRATEGIES[-1].title}", and none for "offloaded". The accuracy is measured on unseen '
        "rows from after the shift, and compared with that of a system fitted on all labels of the "
        "week. Windows of HAPT overlap, so each episode of an activity lies entirely in the week "
        "or entirely in the test rows. The same holds for a letter that is drawn twice.",
        "",
        *harness.table_lines(["accuracy", "seeds", *columns], accuracies),
        "",
        *harness.table_lines(
            [
                "difference from all labels", "seeds", *columns[:-1],
                "seeds in which the refit of chosen was better",
            ],
            differences,
        ),
    ]  # fmt: skip


def _write_mean_and_error(values: NDArray[np.float64]) -> str:
    """Write mean and standard error in percent."""
    if len(values) < 2:
        return f"{100 * values[0]:.1f} %"
    error = values.std(ddof=1) / np.sqrt(len(values))
    return f"{100 * values.mean():.1f} ± {100 * error:.1f} %"
