"""Test the remarks on misleading columns of tables."""

from __future__ import annotations

import unicodedata

import numpy as np
import pandas as pd
import pytest
from sklearn import datasets

from gatewise_training.data.misleading_columns import drop_reason, label_remark, table_remarks
from gatewise_training.data.table_columns import ColumnOptions, table_facts
from gatewise_training.data.table_problems import column_problems


def draw_ordinary_table(n: int = 400) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "mass": rng.normal(size=n).round(2),
            "rooms": rng.integers(1, 9, n),
            "age": rng.integers(18, 80, n),
            "colour": rng.choice(["red", "green", "blue"], n),
        }
    )


def draw_labels(frame: pd.DataFrame) -> np.ndarray:
    """Draw labels that depend on two columns and on chance."""
    rng = np.random.default_rng(1)
    return np.where(frame.mass + 0.05 * frame.age + rng.normal(size=len(frame)) > 2.4, "yes", "no")


def draw_rows_of_persons(n_persons: int = 200) -> pd.DataFrame:
    """Draw several rows per person; the label depends on the person alone."""
    rng = np.random.default_rng(2)
    person = np.repeat(rng.permutation(n_persons), rng.integers(2, 8, n_persons))
    frame = draw_ordinary_table(len(person)).assign(person_id=person)
    return frame.assign(label=np.where(rng.normal(size=n_persons)[person] > 0, "yes", "no"))


def find_columns_by_trouble(
    frame: pd.DataFrame, y: np.ndarray, dropped_columns: tuple[str, ...] = ()
) -> dict[str, tuple]:
    """Map the trouble of each remark to the columns that the remark names."""
    remarks = table_remarks(frame, np.asarray(y), table_facts(frame), dropped_columns)
    return {remark.trouble: remark.columns for remark in remarks}


@pytest.mark.parametrize(
    ("columns", "trouble", "option"),
    [
        ({"row": np.random.default_rng(3).permutation(400) * 7}, "identifier", "--drop row"),
        ({"code": [f"x{i}" for i in range(400)]}, "identifier", "--drop code"),
        ({"unit": np.full(400, 3.5)}, "constant", "--drop unit"),
        ({"unit": ["kg"] * 400}, "constant", "--drop unit"),
        (
            {"when": pd.date_range("2024", periods=400).strftime("%d.%m.%Y")},
            "time",
            "--time-split when=%d.%m.%Y",
        ),
        ({"month": np.repeat(np.arange(8), 50)}, "time", "--time-split month"),
        ({"level": np.sort(np.random.default_rng(4).normal(size=400))}, "order", "--time-split"),
        # three rows for each of 130 patients, and a fourth for the first ten
        ({"my patient": np.arange(400) % 130}, "entities", "--groups 'my patient'"),
    ],
)
def test_remarks_name_a_misleading_column_and_the_option_for_it(columns, trouble, option):
    frame = draw_ordinary_table().assign(**columns)
    (remark,) = table_remarks(frame, draw_labels(frame), table_facts(frame))
    assert (remark.trouble, remark.columns) == (trouble, tuple(columns))
    assert f"({option}" in remark.text


def test_remarks_name_numeric_and_text_copies_of_the_label():
    frame = draw_ordinary_table()
    y = draw_labels(frame)
    score = (y == "yes") + np.random.default_rng(5).normal(size=400) * 0.01
    paid = np.where(y == "yes", "paid", "open")
    paid[3] = "paid"  # one cell differs from the label
    assert find_columns_by_trouble(frame.assign(score=score, paid=paid), y) == {
        "copy": ("score", "paid")
    }


def test_remarks_name_columns_that_identify_entities():
    frame = draw_rows_of_persons()
    y = frame.pop("label")
    assert find_columns_by_trouble(frame, y) == {"entities": ("person_id",)}


def test_traits_that_are_constant_within_entities_reveal_them_for_any_labels():
    frame = draw_rows_of_persons().drop(columns="label")
    trait = np.random.default_rng(6).normal(size=200).round(3)[frame.person_id]
    columns = find_columns_by_trouble(frame.assign(trait=trait), draw_labels(frame))
    assert "person_id" in columns["entities"]


def test_labels_alone_reveal_a_column_of_entities_with_any_name():
    frame = draw_rows_of_persons().rename(columns={"person_id": "v7"})
    y = frame.pop("label")
    assert find_columns_by_trouble(frame, y) == {"entities": ("v7",)}


def test_a_quantity_with_many_equal_values_of_one_class_is_no_entity():
    """The days of a study: events and losses at any time, and most persons observed to the end."""
    rng = np.random.default_rng(7)
    earlier_days = rng.integers(20, 1100, 800)
    last_days = rng.integers(1100, 1200, 1200)
    days = np.concatenate([earlier_days, last_days])
    y = np.where(rng.random(2000) < np.repeat([0.5, 0.02], [800, 1200]), "event", "none")
    frame = draw_ordinary_table(2000).assign(days=days)
    order = rng.permutation(2000)
    assert find_columns_by_trouble(frame.iloc[order], y[order]) == {}


def test_a_product_of_two_quantities_is_no_entity():
    """Boxes of equal areas often have the same sides, and therefore the same label."""
    rng = np.random.default_rng(3)
    height = rng.geometric(0.15, 4000) + 1
    width = rng.geometric(0.02, 4000) + 1
    y = np.where(height > width, "tall", np.where(height < 3, "line", "text"))
    frame = pd.DataFrame({"height": height, "width": width, "area": height * width})
    assert find_columns_by_trouble(frame, y) == {}


def test_columns_of_mostly_zeros_are_no_traits_of_a_count():
    """Words that hardly any message has change rarely, within messages of a length or not."""
    rng = np.random.default_rng(4)
    n = 6000
    columns = {"length": rng.geometric(0.004, n)}
    for word in range(4):
        columns[f"word_{word}"] = np.where(rng.random(n) < 0.006, rng.random(n).round(2), 0.0)
    assert find_columns_by_trouble(pd.DataFrame(columns), rng.choice(["ham", "spam"], n)) == {}


def test_dropped_columns_of_entities_are_named_too():
    """A random split would still put rows of one entity in both parts."""
    frame = draw_rows_of_persons()
    y = frame.pop("label")
    columns = find_columns_by_trouble(frame, y, dropped_columns=("person_id",))
    assert columns == {"entities": ("person_id",)}


def test_ordinary_tables_have_no_remark():
    frame = draw_ordinary_table()
    assert find_columns_by_trouble(frame, draw_labels(frame)) == {}
    for load_table in (datasets.load_iris, datasets.load_wine, datasets.load_breast_cancer):
        table = load_table(as_frame=True)
        assert find_columns_by_trouble(table.data, table.target) == {}


def test_columns_with_too_many_categories_are_dropped():
    frame = draw_ordinary_table(4000).assign(text=[f"t{i % 1500}" for i in range(4000)])
    facts = table_facts(frame)
    reasons = {name: drop_reason(name, column, []) for name, column in facts.items()}
    assert reasons.pop("text") == "more than 1,000 categories"
    assert set(reasons.values()) == {None}


def test_labels_that_differ_only_in_spelling_are_named():
    labels = ["Lager defekt", "lager  defekt", "Übermaß", unicodedata.normalize("NFD", "Übermaß")]
    remark = label_remark(np.array([*labels, "ok"] * 3))
    assert remark.startswith("the labels 'Lager defekt' and 'lager  defekt'; 'Übermaß' and ")
    assert label_remark(np.array(["ok", "fault", "faults"])) is None


def test_measurements_named_like_identifiers_are_kept():
    frame = draw_ordinary_table().assign(
        heat_index=np.random.default_rng(7).normal(size=400), case_id=np.arange(400)
    )
    assert find_columns_by_trouble(frame, draw_labels(frame)) == {"identifier": ("case_id",)}


def test_ordinary_columns_are_no_copies_of_a_label_with_a_rare_class():
    frame = draw_ordinary_table(5000).assign(mode=np.tile([0, 1], 2500))
    y = np.where(np.arange(5000) % 263 == 0, "fault", "ok")  # 20 faults, .4 % of the rows
    assert "copy" not in find_columns_by_trouble(frame, y)
    # a copy that misses one of the faults is still found
    frame["alarm"] = y == "fault"
    frame.loc[frame.index[y == "fault"][:1], "alarm"] = False
    troubles = find_columns_by_trouble(frame, y)
    assert ("alarm",) in troubles.values()


def test_dates_with_missing_cells_are_examined():
    when = pd.Series(pd.date_range("2024", periods=400, freq="h"))
    when[::9] = pd.NaT
    frame = draw_ordinary_table().assign(when=when)
    assert find_columns_by_trouble(frame, draw_labels(frame)).get("time", ("when",)) == ("when",)


def test_columns_of_lists_are_dropped_and_named():
    frame = draw_ordinary_table(40).assign(spectrum=[[1.0, 2.0]] * 40)
    facts = table_facts(frame)
    assert drop_reason("spectrum", facts["spectrum"], []) == "several values in a cell"
    assert table_remarks(frame, draw_labels(frame), facts) == []
    (problem,) = column_problems(frame.drop(columns="colour"), ColumnOptions())
    assert (problem.column, problem.reason) == ("spectrum", "holds lists, not single values")
    assert problem.remedies == ((("drop", "spectrum"),),)
