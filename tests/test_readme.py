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


def environment_without_project() -> dict[str, str]:
    """Make the environment variables of a new user's shell."""
    variables = {name: value for name, value in os.environ.items() if name not in HIDDEN_VARIABLES}
    folders = variables["PATH"].split(os.pathsep)
    variables["PATH"] = os.pathsep.join(f for f in folders if not Path(f, "gatewise").exists())
    return variables


@pytest.mark.slow
def test_all_commands_run_in_an_empty_folder(tmp_path):
    environment = environment_without_project()
    shell = Shell(tmp_path)
    shell.environment = {**environment, "OMP_NUM_THREADS": "1"}
    with pytest.raises(AssertionError):
        shell.run("gatewise --version")
    commands = []
    outputs = {}
    for block in find_blocks(README):
        if block.language == "python":
            (tmp_path / "lines.py").write_text(block.text)
            figures = [float(f) for f in shell.run("python lines.py").split()[:4]]
            assert figures == pytest.approx(shown_figures(block.text), abs=0.011), figures
            continue
        assert block.language == "sh", (
            f"README shows {block.language!r} at line {block.line_number}"
        )
        for line in block.text.splitlines():
            command = line.partition(" #")[0].strip()
            commands.append(command)
            if command.startswith("pip install"):
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
        assert (tmp_path / folder / "report.html").stat().st_size > 10_000
    # The environment does not contain the packages for tests.
    probe = [tmp_path / "gw/bin/python", "-c", "import pytest"]
    assert subprocess.run(probe, env=environment, capture_output=True).returncode


def shown_figures(code: str) -> list[float]:
    """Read the figures in the comments about the output."""
    texts = re.findall(r"# prints ([\d. ]+)", code)
    return [float(figure) for text in texts for figure in text.split()]


def test_readme_is_short_and_its_pictures_exist():
    text = README.read_text()
    assert len(text.splitlines()) < 130
    for name in re.findall(r"docs/pictures/([\w.]+)", text):
        assert 1000 < (ROOT / "docs/pictures" / name).stat().st_size < 200_000
