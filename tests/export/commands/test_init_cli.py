"""``gatewise init`` writes a file of prices that ``gatewise train`` reads."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gatewise.prices import PriceList
from gatewise_export import Bundle
from tests.support.wine_table import load_wine_table

pytestmark = pytest.mark.slow  # fits models or starts processes

RunCommand = Callable[..., tuple[int, str, str]]
AssertRefused = Callable[..., str]


def make_shuffled_days() -> list[str]:
    days = np.random.default_rng(0).permutation(178) % 28
    return [f"2025-01-{day + 1:02} 10:00" for day in days]


def test_init_writes_a_file_of_prices(
    run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    frame = load_wine_table().assign(
        bottle=[f"B{i}" for i in range(178)], when=make_shuffled_days()
    )
    frame["bin no."] = np.arange(178) + 7000
    frame["grape, kind"] = np.where(frame.ash > 2.3, "Müller", 'a "b"')
    frame.loc[3, "hue"] = np.nan
    frame["sold"] = [f"€ {i},200" for i in range(178)]
    frame["Unnamed: 0"] = range(178)  # pandas' name for an index column in a CSV
    frame.to_csv(tmp_path / "w.csv", index=False)
    price_file = tmp_path / "prices.toml"
    status, _, message = run_command(
        "init", tmp_path / "w.csv", "--target", "cultivar", "--out", price_file
    )
    assert status == 0
    command = shlex.split(message.splitlines()[1])
    assert command[1:] == [
        "train", str(tmp_path / "w.csv"), "--target", "cultivar", "--costs", str(price_file),
        "--impute", "--out", "bundle",
    ]  # fmt: skip
    kinds = {name: price.kind for name, price in PriceList.read(price_file).features.items()}
    assert kinds["bottle"] == kinds["bin no."] == kinds["Unnamed: 0"] == "drop"
    assert "for the label 'cultivar'" in message
    advice = r"such as '€ \d+,200': if numbers, write them like \d+200$"
    assert re.search(advice, price_file.read_text(), re.M)
    assert kinds["when"] == "time"
    assert kinds["grape, kind"] == "category"
    assert kinds["hue"] is None
    # Run the command that `init` advises, with another bundle and a fast method.
    arguments = [*command[1:-1], tmp_path / "b.gwb", "--method", "confidence"]
    status, _, _ = run_command(*arguments, "--max-loss", "0.1")
    assert status == 0
    manifest = Bundle.open(tmp_path / "b.gwb").manifest
    assert manifest.feature_costs().total == 7.0  # 1 for each of seven columns
    assert "grape, kind=Müller" in manifest.feature_names
    rows = pd.read_csv(tmp_path / "b-test.csv")
    # A quarter of the 178 rows is held out.
    assert (len(rows), list(rows.columns)) == (45, [*frame.drop(columns="cultivar"), "label"])
    status, text, _ = run_command(
        "verify", tmp_path / "b.gwb", "--data", tmp_path / "b-test.csv", "--json"
    )
    assert (status, json.loads(text)["data"]["rows"]) == (0, 45)
    assert "exists" in assert_refused(
        "init", tmp_path / "w.csv", "--target", "cultivar", "--out", price_file
    )
    assert "none.csv is not a file" in assert_refused("init", tmp_path / "none.csv")


def test_init_names_columns_with_decimal_commas(
    run_command: RunCommand, assert_refused: AssertRefused, tmp_path: Path
) -> None:
    table_file = tmp_path / "w.csv"
    price_file = tmp_path / "p.toml"
    mass = [f"1,{i}" for i in range(100, 278)]  # alone they could be thousands
    load_wine_table().assign(mass=mass, heat="77,5").to_csv(table_file, index=False)
    assert run_command("init", table_file, "--target", "cultivar", "--out", price_file)[0] == 0
    advice = "decimal commas, as '77,5': write points (pandas: decimal=',')"
    assert f"heat = 1.0  # {advice}\n" in price_file.read_text()
    assert f"mass = 1.0  # {advice.replace('77,5', '1,100')}\n" in price_file.read_text()
    arguments = ["--target", "cultivar", "--costs", price_file, "--out", tmp_path / "b"]
    assert f"'heat' has {advice}" in assert_refused("train", table_file, *arguments)


def test_init_names_the_columns_that_it_drops_and_dates_of_two_formats(
    run_command: RunCommand, tmp_path: Path
) -> None:
    table_file = tmp_path / "w.csv"
    rng = np.random.default_rng(0)
    shares = [f"{share:.2f}%" for share in rng.uniform(0, 100, 178)]
    days = [f"{1 + i % 12:02}/{1 + i * 7 % 12:02}/2025" for i in rng.permutation(178)]
    frame = load_wine_table().assign(share=shares, day=days, void="")
    frame.loc[:20, "cultivar"] = frame.cultivar[:21].str.upper()
    frame.to_csv(table_file, index=False)
    command = ["init", table_file, "--target", "cultivar", "--out"]
    _, _, message = run_command(*command, tmp_path / "p.toml")
    assert "note: 'share': too many texts for categories; dropped in the file\n" in message
    assert "note: 'void': empty; dropped in the file\n" in message
    assert f"note: 'day': its dates, such as {days[0]!r}, fit %d/%m/%Y and %m/%d/%Y;" in message
    assert "differ only in case or spelling" in message
    document = json.loads(run_command(*command, tmp_path / "q.toml", "--json")[1])
    assert any(text.startswith("'share'") for text in document["remarks"])


def test_cells_of_several_lines_leave_the_file_readable(
    run_command: RunCommand, tmp_path: Path
) -> None:
    table_file = tmp_path / "w.csv"
    mass = [str(i / 7) for i in range(176)] + ["sensor\nfailed"] * 2
    load_wine_table().assign(mass=mass).to_csv(table_file, index=False)
    price_file = tmp_path / "p.toml"
    _, _, message = run_command("init", table_file, "--target", "cultivar", "--out", price_file)
    assert "--na 'sensor\nfailed'" in message
    assert "mass" in PriceList.read(price_file).features
