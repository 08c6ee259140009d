"""A device encodes raw columns as in training, acquires each once, and names invalid ones."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from gatewise.columns.encoders import RowEncoder
from gatewise.columns.kinds import NumberColumn
from gatewise.costs import FeatureCosts
from gatewise.errors import InputError
from gatewise_edge import Device, SensorError, Sensors
from gatewise_edge.sensors.cell_source import CellSource, InputColumns, raw_cells
from gatewise_edge.sensors.data_source import open_source
from gatewise_edge.sensors.feature_reader import Meter, Reading
from gatewise_edge.sensors.table import read_table
from gatewise_edge.stop_request import StopRequest
from gatewise_export import pack
from gatewise_training import ConfidenceCascade
from gatewise_training.data.table_encoder import TableEncoder
from tests.support.machine_table import PRICES, draw_machines, make_raw_bundle

#: Seconds that an instance has left; longer than any read takes.
TIMEOUT_S = 9.0


@pytest.fixture
def system_encoder_path(make_once):
    """A fitted system of raw columns, its encoder, and the path of its bundle."""
    return make_once("raw-bundle", make_raw_bundle)


@pytest.fixture
def rows():
    frame, _ = draw_machines(60, seed=1)
    frame.loc[3, "supplier"] = "never seen"
    return frame


@pytest.mark.slow
def test_raw_rows_get_the_answers_of_the_estimator(system_encoder_path, rows, tmp_path):
    system, encoder, path = system_encoder_path
    features = encoder.transform(rows)
    rows.to_csv(tmp_path / "rows.csv", index=False)
    with Device(path) as device, StopRequest() as stop_request:
        manifest = device.bundle.manifest
        source = open_source(
            str(tmp_path / "rows.csv"), manifest.column_names, stop_request, manifest.encoder
        )
        answers_by_name = [device.answer(row) for row in rows.to_dict("records")]
        answers_from_file = [device.answer(row) for row, _ in source]
        answers_in_order = device.answer_many(
            [list(row) for row in rows[list(PRICES)].to_numpy(object)]
        )
        answers_of_features = device.answer_many(features.to_numpy())
    is_local = ~system.offload(features)
    is_edge_answer = [answer.route == "edge" for answer in answers_by_name]
    assert is_edge_answer == is_local.tolist()
    assert {True, False} == set(is_edge_answer)
    labels = np.array([answer.label for answer in answers_by_name])
    costs = np.array([answer.cost for answer in answers_by_name])
    assert labels[is_local].tolist() == system.predict(features)[is_local].tolist()
    assert costs[is_local].tolist() == system.cost(features)[is_local].tolist()
    for other_answers in (answers_from_file, answers_in_order, answers_of_features):
        assert [(answer.label, answer.route, answer.cost) for answer in other_answers] == [
            (answer.label, answer.route, answer.cost) for answer in answers_by_name
        ]


def describe_outcome(answer):
    """Return the fields of an answer, or the text and cause of an error, to compare them."""
    if isinstance(answer, SensorError):
        return str(answer), answer.cause
    return answer.label, answer.route, answer.reason, answer.cost


def test_absent_column_of_a_row_counts_as_an_empty_cell(system_encoder_path, rows):
    system, encoder, path = system_encoder_path
    with Device(path) as device:
        for column_index, name in enumerate(encoder.encoder_.names):
            rows_with_empty_cells = rows.assign(**{name: None})
            answers = device.answer_many(rows.drop(columns=name).to_dict("records"))
            assert [describe_outcome(answer) for answer in answers] == [
                describe_outcome(answer)
                for answer in device.answer_many(rows_with_empty_cells.to_dict("records"))
            ]
            features = encoder.transform(rows_with_empty_cells)
            if name in ("supplier", "heat"):  # these have empty cells in training
                is_local = ~system.offload(features)
                labels = np.array([answer.label for answer in answers])
                assert labels[is_local].tolist() == system.predict(features)[is_local].tolist()
            else:
                assert np.isnan(
                    features.to_numpy()[:, encoder.encoder_.members(column_index)]
                ).all()
                stage_inputs = set(device.bundle.manifest.stage_inputs(0).tolist())
                is_needed = bool(stage_inputs & set(encoder.encoder_.members(column_index)))
                assert {isinstance(answer, SensorError) for answer in answers} == {is_needed}
                # The error names the column, not the features that it is encoded to.
                sensors = {answer.sensor for answer in answers if isinstance(answer, SensorError)}
                assert sensors == ({name} if is_needed else set())
        with pytest.raises(InputError, match="none of the columns, such as 'supplier'"):
            device.answer({"serial": "x1"})


def test_note_names_absent_columns_and_how_they_are_filled(
    system_encoder_path, rows, tmp_path, capsys
):
    _, encoder, _ = system_encoder_path
    row_encoder = encoder.encoder_
    path = tmp_path / "rows.csv"
    rows.drop(columns=["mass", "heat"]).to_csv(path, index=False)
    with StopRequest() as stop_request:
        open_source(str(path), row_encoder.names, stop_request, row_encoder)
    notes = capsys.readouterr().err
    assert "has no column heat: every row is filled in, like an empty cell in training\n" in notes
    assert "has no column mass: missing in every row; if a stage needs it, the cloud" in notes


def test_error_names_an_absent_column_if_no_value_may_be_missing():
    columns = [NumberColumn(name=name, features=(name,)) for name in ("mass", "heat")]
    encoder = RowEncoder((*columns, NumberColumn(name="age", features=("age",), fill=(7.0,))))
    feature_names = encoder.feature_names
    costs = FeatureCosts(np.ones(3), names=feature_names)

    def acquire_all(allow_missing):
        cells = raw_cells({"mass": "2"}, encoder)
        source = CellSource(cells, InputColumns(feature_names, encoder))
        reading = Reading(source, Meter(costs), lambda: TIMEOUT_S)
        return reading.acquire(np.arange(3), allow_missing=allow_missing).tolist()

    assert str(acquire_all(allow_missing=True)) == "[2.0, nan, 7.0]"
    with pytest.raises(SensorError, match=r"'heat' is missing \(NaN\)"):
        acquire_all(allow_missing=False)


def test_bundle_with_encoders_can_replace_a_bundle_of_numbers(tmp_path):
    """Rows of numbers for the old bundle are raw rows for the new one."""
    frame, y = draw_machines()
    numbers = frame[["heat", "mass"]].fillna(60.0)
    high_cost_model = LogisticRegression()
    parameters = {"low_cost_model": "linear", "n_subsets": 2, "random_state": 0, "max_loss": 0.2}
    old_system = ConfidenceCascade(high_cost_model, **parameters).fit(numbers, y)
    pack(old_system, tmp_path / "old", sample=numbers)
    encoder = TableEncoder(impute=True).fit(frame[["mass", "heat"]])
    features = encoder.transform(frame)
    new_system = ConfidenceCascade(high_cost_model, **parameters).fit(features, y)
    bundle = pack(new_system, tmp_path / "new", sample=features, encoder=encoder)
    with Device(tmp_path / "old", row_names=["heat", "mass"]) as device:
        device.adopt(bundle)
        rows = frame[["heat", "mass"]].to_numpy(np.float64)[:40]
        answers = [device.answer(row) for row in rows]
        assert [answer.label for answer in device.answer_many(rows)] == [
            answer.label for answer in answers
        ]
    is_local = ~new_system.offload(features[:40])
    labels = np.array([answer.label for answer in answers])
    assert is_local.any()
    assert labels[is_local].tolist() == new_system.predict(features[:40])[is_local].tolist()


def test_sensors_return_raw_cells_and_each_is_read_once(system_encoder_path, rows):
    _, _, path = system_encoder_path
    row = dict(rows.iloc[0])
    read_names = []
    functions = {name: lambda name=name: read_names.append(name) or row[name] for name in PRICES}
    with Device(path, sensors=Sensors(functions)) as device:
        answer = device.answer()
    assert answer.cost == sum(PRICES[name] for name in read_names)
    assert len(read_names) == len(set(read_names))
    with pytest.raises(InputError, match="'serial': the bundle has no such column"):
        Device(path, sensors=Sensors(functions | {"serial": functions["mass"]}))
    del functions["mass"]
    with pytest.raises(InputError, match="column 'mass' has no sensor"):
        Device(path, sensors=Sensors(functions))


def test_column_of_a_group_costs_its_own_price_and_the_shared_price_once(system_encoder_path):
    _, encoder, _ = system_encoder_path
    row_encoder = encoder.encoder_
    reads = []
    costs = encoder.feature_costs(
        FeatureCosts(PRICES, group={"heat": "lab", "mass": "lab"}, shared={"lab": 2.0})
    )
    sensors = Sensors(
        {"supplier": lambda: reads.append("supplier") or "ACME"},
        groups={"lab": lambda: reads.append("lab") or {"heat": None, "mass": 5}},
    )
    reading = Reading(sensors.bind(costs, (), row_encoder), Meter(costs), lambda: TIMEOUT_S)
    supplier, heat, mass = (row_encoder.names.index(name) for name in ("supplier", "heat", "mass"))
    # A stage that reads feature by feature pays a column once.
    read_value = reading.value_getter(range(len(costs.own)), allow_missing=False)
    for feature in row_encoder.members(supplier):
        assert read_value(feature) == row_encoder.cell(supplier, "ACME")[feature]
        assert reading.cost == PRICES["supplier"]
    heat_features = np.array(row_encoder.members(heat))
    # The first feature of heat is its number, and the second one the indicator of an empty cell.
    filled_value = row_encoder.cell(heat, None)[0]
    for features, values in ((heat_features[1:], [1.0]), (heat_features[:1], [filled_value])):
        assert reading.acquire(features, allow_missing=False).tolist() == values
        assert reading.cost == PRICES["supplier"] + PRICES["heat"] + 2.0
    mass_features = np.array(row_encoder.members(mass))
    assert reading.acquire(mass_features, allow_missing=False).tolist() == [5.0]
    assert reading.cost == PRICES["supplier"] + PRICES["heat"] + PRICES["mass"] + 2.0
    assert reads == ["supplier", "lab"]
    sensors.close()


def test_invalid_cell_is_a_failed_sensor_with_the_name_of_its_column(
    system_encoder_path, rows, tmp_path, capsys
):
    _, encoder, bundle_path = system_encoder_path
    row_encoder = encoder.encoder_
    row = dict(rows.iloc[0]) | {"when": "soon"}
    raises_sensor_error = pytest.raises(SensorError, match="'when': 'soon'")
    with Device(bundle_path) as device, raises_sensor_error as error_info:
        device.answer(row)
    assert error_info.value.sensor == "when"
    rows.loc[[5, 9], "when"] = "soon"  # row 5 is line 7, after the header
    path = str(tmp_path / "rows.csv")
    rows.to_csv(path, index=False)
    with StopRequest() as stop_request, Device(bundle_path) as device:
        source = open_source(path, row_encoder.names, stop_request, row_encoder)
        answers = device.answer_many([cells for cells, _ in source])
    notes = capsys.readouterr().err
    assert "line 7: column 'when': 'soon' is not" in notes
    assert notes.endswith("(and 1 more rows): a failed sensor if a stage needs the cell\n")
    errors = [str(answer) for answer in answers if isinstance(answer, SensorError)]
    assert errors == [str(error_info.value)] * 2
    with pytest.raises(InputError, match=r"line 7: column 'when': 'soon' is not"):
        read_table(path, row_encoder.names, row_encoder)
