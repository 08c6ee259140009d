"""A device takes raw columns: encoded with training's bits, acquired once, named when bad."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import NumberColumn
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge import Device, SensorError, Sensors
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_edge.sensors.row_sources import RawRowSource
from gatewise_edge.sensors.sources import open_source
from gatewise_edge.sensors.table import read_table
from gatewise_edge.stop_request import Stop
from gatewise_export import Bundle, pack
from gatewise_training import ConfidenceCascade
from gatewise_training.data.table_encoder import TableEncoder
from tests.support.machine_table import PRICES, machine_table, make_raw_bundle


@pytest.fixture
def made(make_once):
    return make_once("raw-bundle", make_raw_bundle)


@pytest.fixture
def rows():
    frame, _ = machine_table(60, seed=1)
    frame.loc[3, "supplier"] = "never seen"
    return frame


def test_raw_rows_are_answered_as_training_answers(made, rows, tmp_path):
    system, encoder, path = made
    x = encoder.transform(rows)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with Device(path) as device, Stop() as stop:
        manifest = device.bundle.manifest
        source = open_source(
            str(tmp_path / "rows.csv"), manifest.column_names, stop, manifest.encoder
        )
        by_name = [device.answer(row) for row in rows.to_dict("records")]
        from_file = [device.answer(row) for row, _ in source]
        in_order = device.answer_many([list(row) for row in rows[list(PRICES)].to_numpy(object)])
        as_features = device.answer_many(x.to_numpy())
    stays = ~system.offload(x)
    here = [a.route == "edge" for a in by_name]
    assert here == stays.tolist()
    assert {True, False} == set(here)
    labels = np.array([a.label for a in by_name])
    assert labels[stays].tolist() == system.predict(x)[stays].tolist()
    assert np.array([a.cost for a in by_name])[stays].tolist() == system.cost(x)[stays].tolist()
    for others in (from_file, in_order, as_features):
        assert [(a.label, a.route, a.cost) for a in others] == [
            (a.label, a.route, a.cost) for a in by_name
        ]


def outcome(answer):
    if isinstance(answer, SensorError):
        return str(answer), answer.why
    return answer.label, answer.route, answer.reason, answer.cost


def test_a_column_that_a_row_lacks_is_an_empty_cell(made, rows):
    system, encoder, path = made
    with Device(path) as device:
        for c, name in enumerate(encoder.encoder_.names):
            empty = rows.assign(**{name: None})
            lacking = device.answer_many(rows.drop(columns=name).to_dict("records"))
            assert [outcome(a) for a in lacking] == [
                outcome(a) for a in device.answer_many(empty.to_dict("records"))
            ]
            x = encoder.transform(empty)
            if name in ("supplier", "heat"):  # with empty cells in training
                here = ~system.offload(x)
                labels = np.array([a.label for a in lacking])
                assert labels[here].tolist() == system.predict(x)[here].tolist()
            else:
                assert np.isnan(x.to_numpy()[:, encoder.encoder_.members(c)]).all()
                stage = set(device.bundle.manifest.stage_inputs(0).tolist())
                failed = bool(stage & set(encoder.encoder_.members(c)))
                assert {isinstance(a, SensorError) for a in lacking} == {failed}
                # the column is named, not the features that it is encoded as
                named = {a.sensor for a in lacking if isinstance(a, SensorError)}
                assert named == ({name} if failed else set())
        with pytest.raises(InputError, match="none of the columns, such as 'supplier'"):
            device.answer({"serial": "x1"})


def test_a_table_without_columns_says_which_are_filled(made, rows, tmp_path, capsys):
    encoder, path = made[1].encoder_, tmp_path / "rows.csv"
    rows.drop(columns=["mass", "heat"]).to_csv(path, index=False)
    with Stop() as stop:
        open_source(str(path), encoder.names, stop, encoder)
    err = capsys.readouterr().err
    assert "has no column heat: every row is filled in, like an empty cell in training\n" in err
    assert "has no column mass: missing in every row; if a stage needs it, the cloud" in err


def test_a_lacking_column_is_named_where_no_value_may_be_missing():
    columns = [NumberColumn(name=name, features=(name,)) for name in ("mass", "heat")]
    encoder = RowEncoder((*columns, NumberColumn(name="age", features=("age",), fill=(7.0,))))
    names = encoder.feature_names
    costs = FeatureCosts(np.ones(3), names=names)

    def acquired(allow_missing):
        source = RawRowSource({"mass": "2"}, encoder)
        reading = Reading(source, Meter(costs), lambda: 1.0)
        return reading.acquire(np.arange(3), allow_missing=allow_missing).tolist()

    assert str(acquired(allow_missing=True)) == "[2.0, nan, 7.0]"
    with pytest.raises(SensorError, match=r"'heat' is missing \(NaN\)"):
        acquired(allow_missing=False)


def test_a_bundle_with_encoders_takes_over_from_one_of_numbers(tmp_path):
    """Rows of numbers, read by the old bundle's columns, are raw rows to the new one."""
    frame, y = machine_table()
    old = frame[["heat", "mass"]].fillna(60.0)
    f0 = LogisticRegression()
    quick = {"low_cost_model": "linear", "n_subsets": 2, "random_state": 0, "max_loss": 0.2}
    plain = ConfidenceCascade(f0, **quick).fit(old, y)
    pack(plain, tmp_path / "old", sample=old)
    encoder = TableEncoder(impute=True).fit(frame[["mass", "heat"]])
    x = encoder.transform(frame)
    new = ConfidenceCascade(f0, **quick).fit(x, y)
    bundle = pack(new, tmp_path / "new", sample=x, encoder=encoder)
    with Device(tmp_path / "old", row_names=["heat", "mass"]) as device:
        device.adopt(bundle)
        rows = frame[["heat", "mass"]].to_numpy(np.float64)[:40]
        answers = [device.answer(row) for row in rows]
        assert [a.label for a in device.answer_many(rows)] == [a.label for a in answers]
    stays = ~new.offload(x[:40])
    labels = np.array([a.label for a in answers])
    assert stays.any()
    assert labels[stays].tolist() == new.predict(x[:40])[stays].tolist()


def test_sensors_give_raw_cells_and_each_is_read_once(made, rows):
    path = made[2]
    row, reads = dict(rows.iloc[0]), []

    def sensor(name):
        return lambda: (reads.append(name), row[name])[1]

    with Device(path, sensors=Sensors({name: sensor(name) for name in PRICES})) as device:
        answer = device.answer()
    assert answer.cost == sum(PRICES[n] for n in reads)
    assert len(reads) == len(set(reads))
    with pytest.raises(InputError, match="column 'mass' has no sensor"):
        Device(path, sensors=Sensors({n: sensor(n) for n in PRICES if n != "mass"}))
    with pytest.raises(InputError, match="'serial': the bundle has no such column"):
        Device(path, sensors=Sensors({n: sensor(n) for n in (*PRICES, "serial")}))


def test_a_group_sensor_gives_a_column_and_its_price_is_paid_once(made, rows):
    _, encoder, path = made
    costs, raw, calls = Bundle.open(path).manifest.feature_costs(), encoder.encoder_, []
    group = {"supplier": lambda: (calls.append(1), {"supplier": "ACME"})[1]}
    sensors = Sensors({"heat": lambda: None}, groups=group)
    reading = Reading(sensors.bind(costs, (), raw), Meter(costs), lambda: 9.0)
    value_of = reading.one_by_one(range(len(costs.own)), allow_missing=False)
    for k in raw.members(0):
        assert value_of(k) == raw.cell(0, "ACME")[k]
        assert reading.cost == PRICES["supplier"]
    heat = np.array(raw.members(raw.names.index("heat")))
    found = reading.acquire(heat, allow_missing=False).tolist()
    assert found == list(raw.cell(raw.names.index("heat"), None))
    assert found[1] == 1.0
    assert (reading.cost, len(calls)) == (PRICES["supplier"] + PRICES["heat"], 1)
    sensors.close()


def test_a_column_with_a_price_of_its_own_inside_a_group(made):
    encoder, calls = made[1], []
    costs = encoder.feature_costs(
        FeatureCosts(PRICES, group={"heat": "lab", "mass": "lab"}, shared={"lab": 2.0})
    )
    raw, read = encoder.encoder_, lambda: (calls.append(1), {"heat": None, "mass": 5})[1]
    reading = Reading(Sensors(groups={"lab": read}).bind(costs, (), raw), Meter(costs), lambda: 9.0)
    heat, mass = (np.array(raw.members(raw.names.index(n))) for n in ("heat", "mass"))
    assert reading.acquire(heat[1:], allow_missing=False).tolist() == [1.0]
    assert reading.cost == PRICES["heat"] + 2.0
    assert reading.acquire(heat[:1], allow_missing=False).tolist() == [raw.cell(3, None)[0]]
    assert reading.cost == PRICES["heat"] + 2.0
    assert reading.acquire(mass, allow_missing=False).tolist() == [5.0]
    assert (reading.cost, len(calls)) == (PRICES["heat"] + PRICES["mass"] + 2.0, 1)


def test_a_bad_cell_is_a_failed_sensor_that_names_its_column(made, rows, tmp_path, capsys):
    row = dict(rows.iloc[0]) | {"when": "soon"}
    with Device(made[2]) as device, pytest.raises(SensorError, match="'when': 'soon'") as caught:
        device.answer(row)
    assert caught.value.sensor == "when"
    rows.loc[[5, 9], "when"] = "soon"
    path = str(tmp_path / "rows.csv")
    rows.to_csv(path, index=False)
    encoder = made[1].encoder_
    with Stop() as stop, Device(made[2]) as device:
        found = device.answer_many([r for r, _ in open_source(path, encoder.names, stop, encoder)])
    assert "line 7: column 'when': 'soon' is not" in (err := capsys.readouterr().err)
    assert err.endswith("(and 1 more rows): a failed sensor if a stage needs the cell\n")
    assert [str(a) for a in found if isinstance(a, SensorError)] == [str(caught.value)] * 2
    with pytest.raises(InputError, match=r"line 7: column 'when': 'soon' is not"):
        read_table(path, encoder.names, encoder)
