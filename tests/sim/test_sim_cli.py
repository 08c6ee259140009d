import json
import os
import subprocess
import sys

import pytest

from gatewise import cli
from gatewise.errors import InputError

HEAVY = ("sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "numba", "pandas")


def run(*args: str, **kwargs: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gatewise", *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **kwargs)


def loaded_by(*args: str) -> set[str]:
    """Top-level modules that a fresh interpreter has loaded after the command."""
    code = (
        "import json, sys; from gatewise.cli import main; status = main(sys.argv[1:]);"
        "print(json.dumps([status, sorted({m.split('.')[0] for m in sys.modules})]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, check=True
    )
    status, modules = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    return set(modules)


def test_help_lists_every_command_and_fits_80_columns():
    done = run("--help", env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in cli.TABLE)
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_root_help_imports_no_room():
    modules = loaded_by("--help")
    assert modules.isdisjoint(HEAVY)
    assert modules.isdisjoint({"gatewise_export", "gatewise_edge", "gatewise_cloud", "numpy"})


@pytest.mark.parametrize("name", ["edge", "inspect"])
def test_what_a_device_runs_stays_light(name):
    assert loaded_by(name, "--help").isdisjoint(HEAVY)


@pytest.mark.parametrize("name", list(cli.TABLE))
def test_every_command_has_help_with_an_example_and_json(name):
    done = run(name, "--help", env={**os.environ, "COLUMNS": "80"})
    assert done.returncode == 0, done.stderr
    assert f"gatewise {name}" in done.stdout.split("Usage:")[1].split("\n", 1)[1]
    assert "--json" in done.stdout
    prose = [x for x in done.stdout.splitlines() if not x.strip().startswith("gatewise ")]
    assert max(map(len, prose)) <= 80


def test_version():
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, "gatewise 0.1.0\n")


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["dmo"], "gatewise: no command 'dmo', did you mean 'demo'? (see `gatewise --help`)"),
        (["--frob"], "gatewise: No such option: --frob (see `gatewise --help`)"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_2(args, line):
    done = run(*args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", line + "\n")


def raises(monkeypatch, error):
    def command() -> None:
        """Raise."""
        raise error

    module = type(sys)("fake_commands")
    module.commands = {"demo": command}
    monkeypatch.setitem(sys.modules, "fake_commands", module)
    monkeypatch.setitem(cli.TABLE, "demo", cli.Entry("fake_commands", "Fail.", "sim"))


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [
        (InputError("no file\nx.csv"), 2, "gatewise: no file x.csv\n"),
        (
            ZeroDivisionError("by zero"),
            1,
            "gatewise: unexpected ZeroDivisionError: by zero; run with --debug to see where\n",
        ),
        (PermissionError(13, "Permission denied", "out"), 2, "gatewise: out: Permission denied\n"),
        (
            ModuleNotFoundError("No module named 'jinja2'", name="jinja2"),
            2,
            "gatewise: this needs jinja2, which is not installed: pip install 'gatewise[sim]'\n",
        ),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_errors_become_one_line_and_a_status(monkeypatch, capsys, error, status, line):
    raises(monkeypatch, error)
    assert cli.main(["demo"]) == status
    assert capsys.readouterr().err == line


def test_debug_shows_where(monkeypatch):
    raises(monkeypatch, InputError("no"))
    with pytest.raises(InputError, match="no"):
        cli.main(["demo", "--debug"])


def test_a_room_that_is_not_installed_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn_missing", None)
    monkeypatch.setitem(cli.TABLE, "demo", cli.Entry("sklearn_missing", "x", "train"))
    assert cli.main(["demo"]) == 2
    assert "pip install 'gatewise[train]'" in capsys.readouterr().err
