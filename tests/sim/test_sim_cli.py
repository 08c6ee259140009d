"""Tests of the root command: help, errors and exit status."""

import sys

import pytest

from gatewise import cli
from gatewise.errors import InputError
from tests.support.processes import run_gatewise, run_in_process


def test_help_lists_every_command_and_fits_80_columns(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    process = run_in_process("--help")
    assert process.returncode == 0
    assert all(f"  {name} " in process.stdout for name in cli.SUBCOMMANDS)
    assert max(map(len, process.stdout.splitlines())) <= 80


@pytest.mark.parametrize("command_name", list(cli.SUBCOMMANDS))
def test_every_command_has_help_with_an_example_and_json(monkeypatch, command_name):
    monkeypatch.setenv("COLUMNS", "80")
    process = run_in_process(command_name, "--help")
    assert process.returncode == 0, process.stderr
    text_below_usage = process.stdout.split("Usage:")[1].split("\n", 1)[1]
    assert f"gatewise {command_name}" in text_below_usage  # the example
    assert "--json" in process.stdout
    # each command of an example has a line of its own
    assert all(line.count("gatewise ") < 2 for line in text_below_usage.splitlines())
    # Lines of an example may be longer, because a command is not broken.
    prose_lines = [
        line for line in process.stdout.splitlines() if not line.strip().startswith("gatewise ")
    ]
    assert max(map(len, prose_lines)) <= 80


def test_version():
    process = run_gatewise("--version")
    assert (process.returncode, process.stdout) == (0, "gatewise 0.1.0\n")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["dmo"], "gatewise: no command 'dmo', did you mean 'demo'? (see `gatewise --help`)"),
        (["--frob"], "gatewise: No such option: --frob (see `gatewise --help`)"),
        (
            ["labels", "add", "--zzz"],
            "gatewise: No such option: --zzz (see `gatewise labels add --help`)",
        ),
        (
            ["simulate", "loop", "--frob"],
            "gatewise: No such option: --frob (see `gatewise simulate loop --help`)",
        ),
    ],
)
def test_wrong_command_line_exits_2_with_one_line(arguments, line):
    process = run_in_process(*arguments)
    assert (process.returncode, process.stdout, process.stderr) == (2, "", line + "\n")


def make_demo_raise(monkeypatch, error):
    """Replace the command demo by one that raises the error."""

    def raise_error() -> None:
        """Raise."""
        raise error

    module = type(sys)("fake_commands")
    module.demo = raise_error
    monkeypatch.setitem(sys.modules, "fake_commands", module)
    monkeypatch.setitem(
        cli.SUBCOMMANDS, "demo", cli.Subcommand("fake_commands:demo", "Fail.", "sim")
    )


def make_system_error(error: BaseException) -> SystemError:
    """Make the error that compiled code raises if another error occurs during its run."""
    system_error = SystemError("returned a result with an exception set")
    system_error.__cause__ = error
    return system_error


@pytest.mark.parametrize(
    ("error", "status", "line"),
    [  # 130 is the status that shells report for SIGINT
        (InputError("no file\nx.csv"), 2, "gatewise: no file x.csv\n"),
        (
            ZeroDivisionError("by zero"),
            1,
            "gatewise: unexpected ZeroDivisionError: by zero; run with --debug for a traceback\n",
        ),
        (PermissionError(13, "Permission denied", "out"), 2, "gatewise: out: Permission denied\n"),
        (
            ModuleNotFoundError("No module named 'jinja2'", name="jinja2"),
            2,
            "gatewise: this needs jinja2, which is not installed: pip install 'gatewise[sim]'\n",
        ),
        (KeyboardInterrupt(), 130, "gatewise: interrupted\n"),
        (make_system_error(KeyboardInterrupt()), 130, "gatewise: interrupted\n"),
    ],
)
def test_errors_are_printed_in_one_line_with_their_status(monkeypatch, capsys, error, status, line):
    make_demo_raise(monkeypatch, error)
    assert cli.main(["demo"]) == status
    assert capsys.readouterr().err == line


def test_debug_raises_the_error(monkeypatch):
    make_demo_raise(monkeypatch, InputError("no"))
    with pytest.raises(InputError, match="no"):
        cli.main(["demo", "--debug"])


@pytest.mark.slow
def test_error_of_a_missing_package_names_its_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn_missing", None)
    monkeypatch.setitem(cli.SUBCOMMANDS, "demo", cli.Subcommand("sklearn_missing:x", "x", "train"))
    assert cli.main(["demo"]) == 2
    assert "pip install 'gatewise[train]'" in capsys.readouterr().err
