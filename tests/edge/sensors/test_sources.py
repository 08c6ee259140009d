"""Instances from Python, CSV and JSON lines, and nothing lost when the end is asked for."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

from gatewise.errors import InputError
from gatewise_edge.sensors.sensors import Sensors
from gatewise_edge.sensors.sources import JsonLines, open_source
from gatewise_edge.stop_request import Stop, Stopped

NAMES = ("a", "b")
NUMBER = iter(range(10**6))


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Write a module into the current folder and open its `take`."""
    monkeypatch.chdir(tmp_path)

    def load(code: str, name: str = "take"):
        module = f"rows_{os.getpid()}_{next(NUMBER)}"
        (tmp_path / f"{module}.py").write_text(code)
        return open_source(f"{module}:{name}", NAMES, Stop())

    return load


def told(instances) -> list:
    return [i if isinstance(i, InputError) else i.tolist() for i in instances]


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
    ],
)
def test_python_gives_rows_in_every_form(load, code):
    instances = load(code)
    assert instances.sensors is None
    np.testing.assert_array_equal(told(instances), [[1, 2], [np.nan, 4]])


@pytest.mark.parametrize(
    "code",
    [
        "from gatewise_edge import Sensors\ntake = Sensors({'a': lambda: 1.0})\n",
        "from gatewise_edge import Sensors\ndef take(): return Sensors({'a': lambda: 1.0})\n",
    ],
)
def test_python_gives_sensors(load, code):
    instances = load(code)
    assert isinstance(instances.sensors, Sensors)
    assert [next(instances) for _ in range(3)] == [None] * 3


def test_an_instance_that_cannot_be_used_is_its_own_error(load):
    code = "take = iter([[1], 'ab', {'z': 1}, [1, 'x'], 7, [1, 2]])\n"
    *errors, last = told(load(code))
    assert last == [1.0, 2.0]
    assert all(isinstance(e, InputError) for e in errors)
    assert "array of 2 numbers" in str(errors[0])
    assert "has none of the features, as 'a'" in str(errors[2])


def test_a_function_that_fails_is_called_again_and_a_generator_ends(load):
    code = (
        "calls = []\n"
        "def take():\n"
        "    calls.append(1)\n"
        "    if len(calls) in (2, 3): raise OSError('bus busy')\n"
        "    return [1, 2] if len(calls) < 5 else None\n"
    )
    first, second, third, fourth = told(load(code))
    assert first == fourth == [1.0, 2.0]
    assert str(second).endswith("failed: OSError: bus busy")
    assert isinstance(third, InputError)
    instances = load("def take():\n    yield [1, 2]\n    raise OSError('bus gone')\n")
    assert next(instances).tolist() == [1.0, 2.0]
    with pytest.raises(InputError, match=r":take failed: OSError: bus gone"):
        next(instances)


@pytest.mark.parametrize(
    ("code", "name", "says"),
    [
        ("take = 1", "take", "give a function, Sensors or an iterator of rows"),
        ("take = 1", "other", "has no 'other'"),
        ("import no_such_thing", "take", "importing rows_.* failed: ModuleNotFoundError"),
        ("1 / 0", "take", "failed: ZeroDivisionError"),
        ("def take(): raise OSError('no bus')", "take", "failed: OSError: no bus"),
    ],
)
def test_python_that_cannot_be_used(load, code, name, says):
    with pytest.raises(InputError, match=says):
        load(code, name)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ("rows.xlsx", r"give a .csv, .npy or .npz file, module:function, or -"),
        ("no_such_module_here:take", "there is no module 'no_such_module_here' here"),
        ("../evil:take", "give a .csv, .npy or .npz file"),
        (":take", "give a .csv, .npy or .npz file"),
    ],
)
def test_other_data(data, says, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=says):
        open_source(data, NAMES, Stop())


class Pipe:
    def __init__(self) -> None:
        self.out, self.into = os.pipe()

    def write(self, text: bytes) -> None:
        os.write(self.into, text)

    def end(self) -> None:
        os.close(self.into)


@pytest.fixture
def pipe():
    pipe = Pipe()
    yield pipe
    os.close(pipe.out)


def test_lines_in_any_pieces(pipe):
    lines = JsonLines(pipe.out, NAMES, Stop())
    pipe.write(b"[1, 2]\n\n  \n[3,")
    assert next(lines).tolist() == [1.0, 2.0]
    pipe.write(b' 4]\nnonsense\n{"b":6,"a":5}')
    assert next(lines).tolist() == [3.0, 4.0]
    assert isinstance(next(lines), InputError)
    pipe.end()
    assert next(lines).tolist() == [5.0, 6.0]
    with pytest.raises(StopIteration):
        next(lines)


def test_a_line_without_an_end_takes_no_memory(pipe):
    lines = JsonLines(pipe.out, NAMES, Stop())

    def write() -> None:
        for _ in range(3 * 2**20 // 4096):
            pipe.write(b"9" * 4096)
        pipe.write(b"\n[1, 2]\n")
        pipe.end()

    writer = threading.Thread(target=write)
    writer.start()
    error = next(lines)
    assert isinstance(error, InputError)
    assert "more than 1048576 bytes" in str(error)
    assert next(lines).tolist() == [1.0, 2.0]
    writer.join(30)
    assert list(lines) == []


def test_what_was_read_is_held_when_the_end_is_asked_for(pipe):
    with Stop() as stop:
        lines = JsonLines(pipe.out, NAMES, stop)
        pipe.write(b"[1, 2]\n[3, 4]\n[5, 6]\n[7,")
        assert next(lines).tolist() == [1.0, 2.0]
        os.kill(os.getpid(), signal.SIGTERM)
        assert (stop.requested, lines.held) == ("SIGTERM", 2)
        assert [next(lines).tolist() for _ in range(lines.held)] == [[3.0, 4.0], [5.0, 6.0]]
        assert lines.held == 0
        with pytest.raises(Stopped):
            next(lines)


def test_a_signal_ends_a_wait_and_a_second_one_the_program():
    with Stop() as stop:
        timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(Stopped):
            stop.pause(60.0)
        timer.join()
        assert stop.requested == "SIGINT"
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
