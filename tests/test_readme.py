"""Test that the commands of the README work in an empty folder and a new environment."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.demo_report import check_default_demo
from tests.support.fresh_environment import link_distributions
from tests.support.pages import Shell, find_blocks

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
#: Variables of this environment that a new user's shell does not have.
HIDDEN_VARIABLES = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")


def make_new_environment() -> dict[str, str]:
    """Make the environment variables of a new user's shell."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    folders = variables["PATH"].split(os.pathsep)
    variables["PATH"] = os.pathsep.join(
        folder for folder in folders if not Path(folder, "gatewise").exists()
    )
    return variables


@pytest.mark.slow
def test_all_commands_run_in_an_empty_folder(tmp_path):
    environment = make_new_environment()
    shell = Shell(tmp_path)
    shell.environment = {**environment, "OMP_NUM_THREADS": "1"}
    with pytest.raises(AssertionError):
        shell.run("gatewise --version")
    commands = []
    outputs = {}
    for block in find_blocks(README):
        if block.language == "python":
            (tmp_path / "lines.py").write_text(block.text)
            output = shell.run("python lines.py")
            figures = [float(figure) for figure in output.split()[:4]]
            # figures with two decimals, which may differ in the last one between machines
            assert figures == pytest.approx(read_shown_figures(block.text), abs=0.011), figures
            continue
        assert block.language == "sh", (
            f"README shows {block.language!r} at line {block.line_number}"
        )
        for line in block.text.splitlines():
            command = line.partition(" #")[0].strip()
            commands.append(command)
            if command == "python3 -m venv gw":
                shell.run(f"{command} --without-pip")  # copying pip would take longer than the demo
            elif command.startswith("pip install"):
                (name,) = re.findall(r"'([^']+)'", command)
                link_distributions(tmp_path / "gw", name)
            elif command == ". gw/bin/activate":
                # Each line runs in a new shell, so set the variable that the script sets.
                shell.environment["PATH"] = f"{tmp_path}/gw/bin:{environment['PATH']}"
            else:
                outputs[command] = shell.run(line)
    assert {command.split()[0] for command in commands} == {"python3", ".", "pip", "gatewise"}
    check_default_demo(tmp_path / "demo-out", outputs["gatewise demo"])
    for folder in ("demo-out", "sim-out"):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert report["answers"]["lost"] == 0
        assert (tmp_path / folder / "report.html").stat().st_size > 10_000  # it is not empty
    # The environment does not contain the packages for tests.
    probe_command = [tmp_path / "gw/bin/python", "-c", "import pytest"]
    assert subprocess.run(probe_command, env=environment, capture_output=True).returncode


def read_shown_figures(code: str) -> list[float]:
    """Read the figures in the comments about the output."""
    comments = re.findall(r"# prints ([\d. ]+)", code)
    return [float(figure) for comment in comments for figure in comment.split()]


def test_readme_is_short_and_its_pictures_exist():
    page = README.read_text()
    assert len(page.splitlines()) < 130  # a few screens
    for name in re.findall(r"docs/pictures/([\w.]+)", page):
        # bytes: not empty, and quick to load
        assert 1000 < (ROOT / "docs/pictures" / name).stat().st_size < 200_000
