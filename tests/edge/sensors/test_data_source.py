"""Instances from Python, tables and JSON lines; a request to stop loses none of them."""

from __future__ import annotations

import itertools
import os
import signal
import threading

import numpy as np
import pandas as pd
import pytest

from gatewise.errors import InputError
from gatewise_edge.sensors.data_source import InstanceReader, json_lines, open_source
from gatewise_edge.sensors.instance_source import InstanceSource, read_chunks, split_lines
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.stop_request import StopInterrupt, StopRequest
from gatewise_training.data.datasets import read_rows
from gatewise_training.data.table_encoder import TableEncoder

COLUMN_NAMES = ("a", "b")
#: Each test imports a module of another name, because Python caches modules.
MODULE_NUMBERS = itertools.count()


@pytest.fixture
def load_source(tmp_path, monkeypatch):
    """Function that writes a module into the current folder and opens its source `take`."""
    monkeypatch.chdir(tmp_path)

    def load_source(code: str, function_name: str = "take", **options):
        module_name = f"rows_{os.getpid()}_{next(MODULE_NUMBERS)}"
        (tmp_path / f"{module_name}.py").write_text(code)
        return open_source(
            f"{module_name}:{function_name}",
            options.pop("names", COLUMN_NAMES),
            StopRequest(),
            **options,
        )

    return load_source


def read_instances(source) -> list:
    return [
        instance if isinstance(instance, InputError) else instance.tolist()
        for instance, _ in source
    ]


@pytest.mark.parametrize(
    "code",
    [
        "def take():\n    yield [1, 2]\n    yield {'b': 4, 'a': None, 'room': 'attic'}\n",
        "take = iter([(1, 2), {'a': float('nan'), 'b': 4.0}])\n",
        "rows = [None, {'a': None, 'b': 4}, [1, 2]]\ntake = rows.pop\n",
        "import numpy as np\nX = np.array([[1, 2], [np.nan, 4]])\ndef take(): return iter(X)\n",
        "import numpy as np\ntake = iter([np.array([1, 2]), {'a': None, 'b': np.float32(4)}])\n",
        "class Rows:\n"
        "    left = [[None, 4], [1, 2]]\n"
        "    def __call__(self): return self.left.pop() if self.left else None\n"
        "take = Rows()\n",
        "import pandas as pd\n"
        "table = pd.DataFrame({'b': [2, 4], 'x': 0, 'a': [1, None]})\n"
        "take = (row for _, row in table.iterrows())\n",
    ],
)
def test_python_source_of_rows_may_have_any_form(load_source, code):
    source = load_source(code)
    assert source.sensors is None
    np.testing.assert_array_equal(read_instances(source), [[1, 2], [np.nan, 4]])


@pytest.mark.parametrize("assignment", ["take = sensors()\n", "take = sensors\n"])
def test_python_source_may_be_sensors(load_source, assignment):
    code = "from gatewise_edge import Sensors\ndef sensors(): return Sensors({'a': lambda: 1.0})\n"
    source = load_source(code + assignment)
    assert isinstance(source.sensors, Sensors)
    assert [next(source) for _ in range(3)] == [(None, {})] * 3


def test_python_source_may_return_windows(load_source):
    code = (
        "import numpy as np\n"
        "take = iter([np.ones((8, 2), np.int16), [[1.0, None]] * 8, np.ones((8, 3)), 'ab'])\n"
    )
    (array_window, _), (list_window, _), *invalid_instances = load_source(
        code, names=("m",), window_shape=(8, 2)
    )
    assert (array_window.dtype, array_window.shape, list_window.shape) == (np.int16, (8, 2), (8, 2))
    assert np.isnan(list_window[:, 1]).all()
    assert [str(error) for error, _ in invalid_instances] == [
        "an instance must be an array of numbers of shape (8, 2)"
    ] * 2


def test_invalid_instance_is_replaced_by_its_error(load_source):
    code = "take = iter([[1], 'ab', {'z': 1}, [1, 'x'], 7, {'a': 1, 'id': 3}])\n"
    *invalid_instances, (row, fields) = load_source(code, kept_columns=["id"])
    np.testing.assert_array_equal(row, [1.0, np.nan])
    assert fields == {"kept": {"id": 3}}
    assert all(isinstance(error, InputError) for error, _ in invalid_instances)


def test_function_that_fails_is_called_again_and_generator_that_fails_ends(load_source):
    code = (
        "calls = []\n"
        "def take():\n"
        "    calls.append(1)\n"
        "    if len(calls) in (2, 3): raise OSError('bus busy')\n"
        "    return [1, 2] if len(calls) < 5 else None\n"
    )
    first_row, first_error, second_error, second_row = read_instances(load_source(code))
    assert first_row == second_row == [1.0, 2.0]
    assert str(first_error).endswith("failed: OSError: bus busy")
    assert isinstance(second_error, InputError)
    source = load_source("def take():\n    yield [1, 2]\n    raise OSError('bus gone')\n")
    next(source)
    with pytest.raises(InputError, match=r":take failed: OSError: bus gone"):
        next(source)


@pytest.mark.parametrize(
    ("code", "function_name", "message"),
    [
        ("take = 1", "take", "give a function, Sensors or an iterator of rows"),
        ("take = 1", "other", "has no 'other'"),
        ("import no_such_thing", "take", "importing rows_.* failed: ModuleNotFoundError"),
        ("1 / 0", "take", "failed: ZeroDivisionError"),
        ("def take(): raise OSError('no bus')", "take", "failed: OSError: no bus"),
    ],
)
def test_unusable_python_source_is_refused(load_source, code, function_name, message):
    with pytest.raises(InputError, match=message):
        load_source(code, function_name)


@pytest.mark.parametrize(
    ("source_name", "options", "message"),
    [
        ("rows.xlsx", {}, r"give a .csv, .parquet, .npy or .npz file, module:function, or -"),
        ("no_such_module_here:take", {}, "there is no module 'no_such_module_here' here"),
        ("../evil:take", {}, "give a .csv, .parquet, .npy or .npz file"),
        (":take", {}, "give a .csv, .parquet, .npy or .npz file"),
        ("w.npy", {"window_shape": (8, 3)}, r"an instance must have shape \(8, 3\)"),
        ("w.npy", {"kept_columns": ["id"]}, "no further columns"),
        ("w.csv", {"window_shape": (8, 2)}, "--signal"),
        ("-", {"window_shape": (8, 2), "kept_columns": ["id"]}, "--keep"),
    ],
)
def test_unknown_or_unsuitable_data_is_refused(
    source_name, options, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    np.save("w.npy", np.ones((3, 8, 2)))
    with pytest.raises(InputError, match=message):
        open_source(source_name, COLUMN_NAMES, StopRequest(), **options)


def test_invalid_row_of_a_table_is_replaced_by_its_error(tmp_path):
    (tmp_path / "w.csv").write_text("a,b\n1,2\n3,warm\nhot,cold\n5,\n")
    first_row, second_error, third_error, last_row = read_instances(
        open_source(str(tmp_path / "w.csv"), COLUMN_NAMES, StopRequest())
    )
    # As texts, because nan does not equal itself.
    assert (first_row, str(last_row)) == ([1.0, 2.0], "[5.0, nan]")
    assert str(second_error).endswith("line 3: 'warm' in column 'b' is not a number")
    assert str(third_error).endswith("line 4: 'hot' in column 'a' is not a number")


def test_parquet_rows_equal_csv_rows_and_the_rows_of_read_rows(tmp_path):
    table = pd.DataFrame(
        {
            "mass": [0.5, None, 2.0],
            "supplier": pd.Categorical(["Bolt", None, "ACME"]),
            "bought": pd.to_datetime(["2025-03-01 08:30", None, "2025-03-02 09:15"]),
            "checked": [True, False, True],
            "id": [7, 8, 9],
        }
    )
    csv_path, parquet_path = str(tmp_path / "w.csv"), str(tmp_path / "w.parquet")
    table.to_csv(csv_path, index=False)
    table.to_parquet(parquet_path)
    column_kinds = {"supplier": "category", "bought": "time"}
    encoder = TableEncoder(columns=column_kinds).fit(table.drop(columns="id")).encoder_
    expected_rows, _ = read_rows(parquet_path, encoder.names, encoder)
    for path in (csv_path, parquet_path):
        instances = list(
            open_source(path, encoder.names, StopRequest(), encoder, kept_columns=["id"])
        )
        rows = [encoder.row(row) for row, _ in instances]
        np.testing.assert_array_equal(rows, expected_rows)
        assert [int(fields["kept"]["id"]) for _, fields in instances] == [7, 8, 9]
    number_source = open_source(parquet_path, ("mass", "checked"), StopRequest())
    number_rows = read_instances(number_source)
    assert str(number_rows) == "[[0.5, 1.0], [nan, 0.0], [2.0, 1.0]]"


def test_errors_name_invalid_parquet_files_and_rows(tmp_path):
    path = tmp_path / "w.parquet"
    with pytest.raises(InputError, match=r"w\.parquet does not exist"):
        open_source(str(path), COLUMN_NAMES, StopRequest())
    path.write_bytes(b"PAR1, not")
    with pytest.raises(InputError, match=r"w\.parquet cannot be read"):
        open_source(str(path), COLUMN_NAMES, StopRequest())
    pd.DataFrame({"a": [1, 2], "b": ["3", "warm"], "c": [[1], [2]]}).to_parquet(path)
    row, error = read_instances(open_source(str(path), COLUMN_NAMES, StopRequest()))
    assert row == [1.0, 3.0]
    assert str(error).endswith("row 2: 'warm' in column 'b' is not a number")


# -- JSON lines from a pipe ----------------------------------------------------------------


@pytest.fixture
def pipe():
    """The read end and the write end of a pipe."""
    read_end, write_end = os.pipe()
    yield read_end, write_end
    os.close(read_end)


def open_pipe(pipe, stop_request=None) -> InstanceSource:
    return InstanceSource(
        json_lines(
            read_chunks(pipe[0], "a pipe", stop_request or StopRequest()),
            InstanceReader(COLUMN_NAMES),
        )
    )


def test_json_lines_are_read_from_any_pieces(pipe):
    source, write_end = open_pipe(pipe), pipe[1]
    os.write(write_end, b"[1, 2]\n\n  \n[3,")
    assert next(source)[0].tolist() == [1.0, 2.0]
    os.write(write_end, b' 4]\nnonsense\n{"b":6,"a":5}')
    assert next(source)[0].tolist() == [3.0, 4.0]
    assert "not a JSON line" in str(next(source)[0])
    os.close(write_end)
    assert next(source)[0].tolist() == [5.0, 6.0]
    assert list(source) == []


def test_error_names_an_unknown_or_repeated_key():
    chunks = [b'{"a": 1, "b": 2, "id": 7}\n{"a": 1, "A": 2}\n{"a": 1, "b": 2, "a": 3}\n']
    instances = [
        instance
        for instances in json_lines(chunks, InstanceReader("ab", kept_columns=["id"]))
        for instance in instances
    ]
    assert instances[0][1] == {"kept": {"id": 7}}
    assert "unknown key 'A'" in str(instances[1][0])
    assert str(instances[2][0]) == "the key 'a' is repeated"


def test_line_that_is_too_long_is_replaced_by_an_error(pipe):
    source, write_end = open_pipe(pipe), pipe[1]

    def write_lines() -> None:
        for _ in range(3 * 2**20 // 4096):  # 3 MiB in one line; 1 MiB is allowed
            os.write(write_end, b"9" * 4096)
        # The next line is deeper than the recursion limit of a parser.
        os.write(write_end, b"\n" + b"[" * 100_000 + b"\n[1, 2]\n")
        os.close(write_end)

    writer = threading.Thread(target=write_lines)
    writer.start()
    assert "more than 1048576 bytes" in str(next(source)[0])
    assert "not a JSON line" in str(next(source)[0])
    assert next(source)[0].tolist() == [1.0, 2.0]
    writer.join(30)
    assert list(source) == []


def test_instances_read_before_a_stop_request_are_returned(pipe):
    with StopRequest() as stop_request:
        source = open_pipe(pipe, stop_request)
        os.write(pipe[1], b"[1, 2]\n[3, 4]\n[5, 6]\n[7,")
        assert next(source)[0].tolist() == [1.0, 2.0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop_request.signal_name, source.n_buffered) == ("SIGTERM", 2)
        rows = [next(source)[0].tolist() for _ in range(source.n_buffered)]
        assert (rows, source.n_buffered) == ([[3.0, 4.0], [5.0, 6.0]], 0)
        with pytest.raises(StopInterrupt):
            next(source)
    os.close(pipe[1])


def test_first_signal_ends_a_wait_and_second_signal_the_program():
    with StopRequest() as stop_request:
        # After 50 ms the main thread is waiting.
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(StopInterrupt):
            stop_request.pause(60.0)
        timer.join()
        assert stop_request.signal_name == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("chunk_bytes", [1, 4, 100])
def test_a_long_line_is_left_out_wherever_its_chunks_end(chunk_bytes):
    content = b"ab\nabcdef\nabc"
    chunks = [content[i : i + chunk_bytes] for i in range(0, len(content), chunk_bytes)]
    lines = [line for batch in split_lines(chunks, 3) for line in batch]
    assert lines == ["ab", None, "abc"]
