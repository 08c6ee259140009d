"""Tests of ``gatewise verify``."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from gatewise_export import Bundle
from gatewise_export.bundle.arrays import read_arrays, write_arrays
from gatewise_export.commands.run_verify import print_checks
from tests.support.bundle_files import replace_file
from tests.support.wine_table import load_wine_table, set_cell, write_changed_table

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


def read_figures(outcome: tuple[int, str, str]) -> dict[str, Any]:
    """Read the figures of the rows from the JSON that the command prints."""
    _, output, _ = outcome
    figures: dict[str, Any] = json.loads(output)["data"]
    return figures


def test_decisions_on_labelled_rows_agree_in_any_order_of_columns(
    wine_folder: Path, bundle: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    status, output, _ = run_command("verify", bundle)  # on the sample
    assert status == 0
    assert "the bundle's decisions agree" in output
    arguments = ["verify", bundle, "--target", "cultivar", "--json", "--data"]
    status, output, _ = run_command(*arguments, wine_folder / "wine.csv")
    assert status == 0
    document = json.loads(output)
    assert document["agrees"] is True
    figures = document["data"]
    assert figures["rows"] == 178
    assert figures["differing_decisions"] == figures["max_margin_difference"] == 0
    assert figures["accuracy"] > 0.8
    assert 0 <= figures["offload_rate"] <= 1
    wines = load_wine_table()
    wines.assign(spare=1.0).iloc[:, ::-1].to_csv(tmp_path / "reversed.csv", index=False)
    assert read_figures(run_command(*arguments, tmp_path / "reversed.csv")) == figures


def test_rows_without_labels_have_all_figures_but_the_accuracy(
    wine_folder: Path, bundle: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    table = tmp_path / "unlabelled.csv"
    load_wine_table().drop(columns="cultivar").to_csv(table, index=False)
    arguments = ["verify", bundle, "--data"]
    note = f"note: {table} has no label, so accuracy is not measured"
    assert note in run_command(*arguments, table)[1]
    figures = read_figures(run_command(*arguments, table, "--json"))
    del figures["remarks"]
    labelled_rows = [wine_folder / "wine.csv", "--target", "cultivar"]
    figures_with_labels = read_figures(run_command(*arguments, *labelled_rows, "--json"))
    assert "accuracy" not in figures
    assert figures.items() < figures_with_labels.items()


def test_a_note_names_the_column_of_values_far_outside_the_training_ranges(
    bundle: Path, run_command: RunCommand, tmp_path: Path
) -> None:
    wines = load_wine_table()
    wines["alcohol"] *= 1000
    wines.to_csv(tmp_path / "grams.csv", index=False)
    _, output, _ = run_command(
        "verify", bundle, "--data", tmp_path / "grams.csv", "--target", "cultivar"
    )
    assert "of these 178 rows have values far outside the training ranges, most" in output
    assert "often in column 'alcohol'" in output


def test_test_rows_of_the_training_need_no_target(
    wine_folder: Path, bundle: Path, run_command: RunCommand
) -> None:
    arguments = ["verify", bundle, "--data", wine_folder / "bundle-test.csv", "--json"]
    figures = read_figures(run_command(*arguments))
    assert figures["rows"] == 36
    assert "remarks" not in figures


def test_a_bundle_with_other_decisions_fails_verify(bundle: Path, run_command: RunCommand) -> None:
    manifest = Bundle.open(bundle).manifest
    arrays = dict(read_arrays((bundle / "sample.npz").read_bytes()))
    arrays["cloud_label"] = (arrays["cloud_label"] + 1) % manifest.n_classes
    replace_file(bundle, "sample.npz", write_arrays(arrays))
    status, output, _ = run_command("verify", bundle)
    assert status == 1
    assert "DIFFER: do not use it" in output
    status, output, _ = run_command("verify", bundle, "--json")
    assert status == 1
    assert json.loads(output)["agrees"] is False


def test_labels_of_another_type_are_the_same_classes(
    tmp_path: Path, run_command: RunCommand
) -> None:
    feature = np.arange(60.0)
    labels = np.select([feature < 20, feature < 40], ["1", "2"], "x")
    frame = pd.DataFrame({"a": feature, "b": feature[::-1], "label": labels})
    frame.to_csv(tmp_path / "all.csv", index=False)
    frame[frame.label != "x"].to_csv(tmp_path / "some.csv", index=False)
    bundle_path = tmp_path / "bundle"
    run_command("train", tmp_path / "all.csv", "--method", "budget-forest", "--out", bundle_path)
    assert run_command("verify", bundle_path, "--data", tmp_path / "some.csv")[0] == 0


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda frame: frame.drop(columns="ash"), "no column 'ash'"),
        (set_cell("cultivar", "moon"), "label 'moon' is not among the bundle's classes"),
        (set_cell("hue", np.nan), "column 'hue' is empty (NaN)"),
        (set_cell("hue", "red"), "bad.csv, line 5: column 'hue': 'red' is not a number"),
        (
            lambda frame: frame[["cultivar", "hue"]],
            "no column 'alcohol' (and 3 more), which the bundle",
        ),
    ],
)
def test_rows_that_do_not_fit_the_bundle_are_refused(
    wine_folder: Path,
    bundle: Path,
    assert_refused: AssertRefused,
    edit: Callable[[pd.DataFrame], Any],
    message: str,
) -> None:
    table = write_changed_table(wine_folder, edit)
    assert message in assert_refused("verify", bundle, "--target", "cultivar", "--data", table)


def test_large_counts_are_printed_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    print_checks({"data": {"rows": 1_234_567, "accuracy": 0.98765432}}, [])
    output = capsys.readouterr().out
    assert "1,234,567" in output
    assert "0.987654" in output
