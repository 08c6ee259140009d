"""Test the encoder of raw tables: its options, its features and their costs."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from gatewise.columns import kinds
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_training.data.table_encoder import TableEncoder
from tests.support.machine_table import PRICES, draw_machines

KINDS = {"supplier": "category", "when": "time", "serial": "drop"}


@pytest.fixture
def frame() -> pd.DataFrame:
    return draw_machines(80)[0]


def test_one_message_lists_all_columns_that_need_an_option(frame):
    frame["mass"] = frame.mass.astype(object)
    frame.loc[7, "mass"] = "ERR"
    frame["flat"] = None
    with pytest.raises(InputError) as error_info:
        TableEncoder().fit(frame)
    error_text = str(error_info.value)
    assert "5 columns need an option" in error_text
    assert error_text.endswith(
        "To mend all: columns={'supplier': 'category', 'when': 'time', 'serial': 'drop', "
        "'flat': 'drop'}, missing_words=['ERR']"
    )
    with pytest.raises(InputError, match="'oh' is named, but there is no such column; it has ser"):
        TableEncoder(columns={"oh": "drop"}).fit(frame)
    encoder = TableEncoder(columns=KINDS | {"flat": "drop"}, missing_words=["ERR"])
    assert np.isnan(encoder.fit(frame).transform(frame).mass[7])


@pytest.mark.parametrize(
    ("cells", "other_cell", "message"),
    [
        (
            ["1,250", "2,5"],
            "1",
            "2 columns .* 'a' has decimal commas, as '2,5': write points .*=',",
        ),
        (["1,250", "12,500"], "0,5", "'a' has decimal commas, as '1,250'.* 'b' has decimal commas"),
        (["950", "1,250"], "1", "'a' has commas in numbers, as '1,250': leave out .*; decimal"),
        (
            ["2,000,000", "1,250,000.5"],
            "1",
            "'a' has commas in numbers, as '2,000,000': leave .*','\\);",
        ),
        (["0,125", "ERR"], "1", "'a' has decimal commas, as '0,125'"),
    ],
)
def test_columns_with_commas_in_numbers_are_not_proposed_as_categories_or_dropped(
    cells, other_cell, message
):
    frame = pd.DataFrame({"a": cells * 20, "b": other_cell, "kind": "x"})
    for table in (frame, frame[frame.columns[::-1]]):
        with pytest.raises(InputError) as error_info:
            TableEncoder().fit(table)
        advice = str(error_info.value).partition(": ")[2].split(". To mend")[0]
        assert not any(
            "category" in sentence or "drop" in sentence
            for sentence in advice.split("; '")  # one for each column
            if "commas" in sentence
        )
    with pytest.raises(InputError, match=message):
        TableEncoder().fit(frame)
    # the columns may still be declared as categories
    TableEncoder(columns=dict.fromkeys(("a", "b", "kind"), "category")).fit(frame)


def test_two_words_other_than_true_and_false_need_the_kind_category():
    door = pd.DataFrame({"door": ["ja", "nein"]})
    with pytest.raises(
        InputError, match=r"'door' is not true or false .*columns=\{'door': 'category'\}\)$"
    ):
        TableEncoder(columns={"door": "boolean"}).fit(door)
    with pytest.raises(InputError, match=r"missing_words=\['ERR'\] or columns"):
        TableEncoder(columns={"door": "boolean"}).fit(pd.DataFrame({"door": ["on", "off", "ERR"]}))


def test_the_encoder_follows_the_conventions_of_scikit_learn(frame):
    encoder = clone(TableEncoder(columns=KINDS, impute=True))
    x = encoder.fit_transform(frame)
    assert x.columns.tolist() == encoder.get_feature_names_out().tolist()
    assert (x.dtypes == np.float32).all()
    assert x.index.equals(frame.index)
    assert encoder.transform(frame[frame.columns[::-1]]).equals(x)
    assert encoder.n_features_in_ == 6  # columns of the frame, before they are encoded
    assert encoder.feature_names_in_.tolist() == frame.columns.tolist()
    with pytest.raises(InputError, match="no column 'ok'"):
        encoder.transform(frame.drop(columns="ok"))
    with pytest.raises(InputError, match="not ndarray"):
        encoder.transform(frame.to_numpy())


def test_columns_become_named_features(frame, monkeypatch):
    monkeypatch.setattr(kinds, "MAX_ONE_HOT", 2)
    encoder = TableEncoder(columns=KINDS).fit(frame)
    names = encoder.get_feature_names_out().tolist()
    assert names[:2] == ["supplier", "supplier_missing"]
    assert names[-3:] == ["mass", "heat", "ok"]
    row = encoder.transform(frame.assign(supplier="new").iloc[:1]).iloc[0]
    assert row.tolist()[:2] == [-1.0, 0.0]
    for settings, message in (
        ({"columns": KINDS | {"when": "time:%A"}}, "not a format of a time"),
        ({"columns": KINDS | {"nothing": "category"}}, "'nothing' is named, but there is no such"),
        ({"columns": dict.fromkeys(frame.columns, "drop")}, "no column is left"),
        ({"columns": {"supplier": "colour"}}, "kind is 'colour'; choose one of number, boolean"),
        ({"columns": {"supplier": "category:x"}}, "'x': only a time has a format"),
    ):
        with pytest.raises(InputError, match=message):
            TableEncoder(**{"columns": KINDS} | settings).fit(frame)
    monkeypatch.undo()
    frame_with_duplicate = frame.assign(**{"supplier=ACME": 1.0})
    with pytest.raises(InputError, match="two columns make a feature 'supplier=ACME'"):
        TableEncoder(columns=KINDS).fit(frame_with_duplicate)


def test_features_of_a_column_share_its_price(frame):
    encoder = TableEncoder(columns=KINDS, impute=True).fit(frame)
    costs = encoder.feature_costs(PRICES)
    for column, name in enumerate(encoder.encoder_.names):
        feature_indices = list(encoder.encoder_.members(column))
        assert costs.price(feature_indices) == costs.price(feature_indices[:1]) == PRICES[name]
    # by default each of the 5 columns costs 1; below, 3 for one column and 0.5 for each other
    assert encoder.feature_costs().total == 5.0
    assert encoder.feature_costs({"heat": 3.0}, default=0.5).total == 5.0
    lab_costs = FeatureCosts(PRICES | {"heat": 0.0}, group={"heat": "lab", "mass": "lab"},
                       shared={"lab": 2.0})  # fmt: skip
    assert encoder.feature_costs(lab_costs).total == pytest.approx(sum(PRICES.values()) - 3.0 + 2.0)
    grouped_costs = FeatureCosts(
        PRICES | {"supplier": 0.0, "when": 0.0},
        group={"heat": "lab", "mass": "lab", "supplier": "supplier", "when": "when"},
        shared={"lab": 2.0, "supplier": PRICES["supplier"], "when": PRICES["when"]},
        requires={"supplier": "when"},
    )
    costs = encoder.feature_costs(grouped_costs)
    assert costs.total == grouped_costs.total
    heat, heat_missing, mass, when, supplier = (
        encoder.encoder_.feature_names.index(name)
        for name in ("heat", "heat_missing", "mass", "when_day", "supplier_missing")
    )
    for features in ([heat], [heat_missing], [heat, heat_missing]):
        assert costs.price(features) == 3.0 + 2.0
        assert costs.price(features, acquired=[mass]) == 3.0
        assert costs.price([mass], acquired=features) == 1.0
    assert costs.price([heat_missing], acquired=[heat]) == 0.0
    assert costs.price([supplier]) == PRICES["supplier"] + PRICES["when"]
    assert costs.price([when]) == PRICES["when"]
    with pytest.raises(InputError, match="no feature cost for 'supplier'"):
        encoder.feature_costs({"heat": 3.0})


def test_prices_of_all_columns_include_those_of_dropped_columns(frame):
    encoder = TableEncoder(columns=KINDS, impute=True).fit(frame)
    prices = pd.Series(1.0, frame.columns)  # with the dropped column
    assert encoder.feature_costs(prices).total == encoder.feature_costs(dict(prices)).total == 5.0
    assert encoder.feature_costs(prices[["heat"]], default=0.5).total == 3.0
    with pytest.raises(InputError, match="a feature cost for 'haet', which is not a column"):
        encoder.feature_costs(prices.rename({"heat": "haet"}))


@pytest.mark.parametrize(
    ("cells", "option"),
    [
        (["3"] * 60 + ["v4.1"] * 60, "columns={'a': 'category'}"),  # a code in a new form
        (["0", "1"] * 57 + ["ERR"] * 6, "missing_words=['ERR']"),
        ([str(i) for i in range(80)] + ["ERR"] * 40, "missing_words=['ERR']"),
    ],
)
def test_codes_in_two_forms_are_categories_and_rare_words_are_failures(cells, option):
    with pytest.raises(InputError) as error_info:
        TableEncoder(impute=True).fit(pd.DataFrame({"a": cells}))
    assert f"({option} or " in str(error_info.value)


def test_a_constant_text_is_dropped_first_unless_it_has_gaps():
    frame = pd.DataFrame({"unit": ["kg"] * 40, "alarm": ["on fire", None] * 20})
    with pytest.raises(InputError) as error_info:
        TableEncoder(impute=True).fit(frame)
    message = str(error_info.value)
    assert "'unit' has the text 'kg' in all rows (columns={'unit': 'drop'} or" in message
    assert "(columns={'alarm': 'category'} or" in message


def test_times_of_one_instant_in_two_zones_have_their_own_hours():
    zones = (datetime.UTC, datetime.timezone(datetime.timedelta(hours=2)))
    moment = datetime.datetime(2025, 3, 1, 8, tzinfo=datetime.UTC)
    times = [moment.astimezone(zones[row % 2]) + datetime.timedelta(hours=row // 2)
             for row in range(40)]  # fmt: skip
    frame = pd.DataFrame({"t": pd.Series(times, dtype=object)})
    encoder = TableEncoder(columns={"t": "time"}).fit(frame)
    hours = encoder.transform(frame)["t_hour"]
    assert hours.tolist() == [time.hour for time in times]


def test_a_time_near_the_end_of_the_calendar_is_encoded():
    times = [f"20{row:02}-01-01" for row in range(20)] + ["9999-12-31T23:59:59-05:00"]
    TableEncoder(columns={"t": "time"}).fit(pd.DataFrame({"t": times}))
