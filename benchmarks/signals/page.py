"""Accuracy and feature time of cascades on raw signals, measured on unseen groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Column
from benchmarks.signals.peers import ROUNDS
from benchmarks.signals.splits import MAX_LOSS


def page(results: Mapping[str, Any]) -> list[str]:
    """Write the page."""
    lines = [
        "# Signals",
        "",
        "`make bench-signals` writes this page from the figures in `signals.json`. No group has "
        "both training and test rows. Accuracy is balanced if a set has rare classes. ± is the "
        "standard error over groups, averaged over the splits; it is 0 if there is only one test "
        "group.",
        "",
        "- *Time* is the mean time that the features of a window take on this machine, in "
        "microseconds.",
        f"- *Kept* counts the splits with a loss on test rows within the promise "
        f"({100 * MAX_LOSS:g} point), and within the promise plus one standard error.",
        "- *Device* is the time on a device divided by the charged price. It is too high if the "
        "machine was busy.",
        "",
    ]
    lines += harness.column_table(
        SET_COLUMNS,
        [_summarise_set(name, figures) for name, figures in results["sets"].items()],
    )
    lines += ["", *_peers_table(results), "", "Sets:", ""]
    for name, figures in results["sets"].items():
        groups_text = "" if figures["groups"] is None else f" {figures['groups']} groups."
        lines.append(
            f"- **{name}**: {figures['note']}. {figures['rows']} windows, {figures['features']} "
            f"features.{groups_text}"
        )
    return lines


def _summarise_set(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Summarise the splits of a set for its row of the table."""
    cells = figures["splits"]
    cascades = [cell["gatewise"] for cell in cells]
    means = {
        key: np.mean([cascade[key] for cascade in cascades])
        for key in ("cost_us", "loss", "loss_error", "offloaded")
    }
    return {
        "name": name,
        "high_cost_accuracy": _write_accuracy([cell["all features"] for cell in cells]),
        "accuracy": _write_accuracy(cascades),
        "total_us": figures["total_us"],
        "target": figures["target"],
        **means,
        "n_splits": len(cells),
        "n_kept": sum(cascade["loss"] <= MAX_LOSS + 1e-12 for cascade in cascades),
        "n_kept_within_error": sum(
            cascade["loss"] <= MAX_LOSS + cascade["loss_error"] for cascade in cascades
        ),
        "device_over_charged": np.median([cascade["device_over_charged"] for cascade in cascades]),
    }


#: Table of all sets; a row is the summary of one.
SET_COLUMNS = (
    Column("set", lambda row: row["name"]),
    Column("all features", lambda row: row["high_cost_accuracy"]),
    Column("time", lambda row: f"{row['total_us']:.0f}"),
    Column("Gatewise", lambda row: row["accuracy"]),
    Column("time", lambda row: f"{row['cost_us']:.0f}"),
    Column("times less", lambda row: f"{row['total_us'] / row['cost_us']:.1f}"),
    Column("wanted", lambda row: f"{row['target']:g}"),
    Column("loss, points", lambda row: f"{100 * row['loss']:.2f} ± {100 * row['loss_error']:.2f}"),
    Column(
        "kept", lambda row: f"{row['n_kept']}, {row['n_kept_within_error']} of {row['n_splits']}"
    ),
    Column("offloaded", lambda row: f"{row['offloaded']:.2f}"),
    Column("device", lambda row: f"{row['device_over_charged']:.2f}"),
)


def _peers_table(results: Mapping[str, Any]) -> list[str]:
    """Write the table that compares all methods on the splits of the peers."""
    methods = ["all features", "gatewise", "cheapest block", "network on the window"]
    methods += ["CEGB", "Adapt-GBRT"]
    rows = []
    for name, figures in results["sets"].items():
        cells = [cell for cell in figures["splits"] if "CEGB" in cell]
        rows.append((name, *(_write_peer_cell(cells, method) for method in methods)))
    caption = (
        "The next table has accuracy and microseconds on the first splits, also of peers. CEGB and "
        f"Adapt-GBRT have {ROUNDS['n_rounds']} rounds and few penalties."
    )
    return [caption, "", *harness.table_lines(("set", *methods), rows)]


def _write_accuracy(cells: Sequence[dict[str, Any]]) -> str:
    mean, error = (np.mean([cell[key] for cell in cells]) for key in ("accuracy", "error"))
    return f"{mean:.3f} ± {error:.3f}"


def _write_peer_cell(cells: Sequence[dict[str, Any]], method: str) -> str:
    fits = [cell[method] for cell in cells if method in cell and "accuracy" in cell[method]]
    if not fits:
        return "no fit"
    cost = np.mean([cell["cost_us"] for cell in fits])
    return f"{np.mean([fit['accuracy'] for fit in fits]):.3f}" + (f", {cost:.0f}" if cost else "")
