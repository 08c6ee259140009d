"""README's lines, copied in order into an empty folder, with what they install and no more."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.demo_report import check_default_demo
from tests.support.fresh_environment import install
from tests.support.pages import Shell, blocks

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
#: A shell of somebody who has no Gatewise: neither paths of this environment nor of its packages.
HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")


def without_project() -> dict[str, str]:
    """The variables of a newcomer's shell."""
    kept = {k: v for k, v in os.environ.items() if k not in HIDDEN}
    folders = kept["PATH"].split(os.pathsep)
    kept["PATH"] = os.pathsep.join(f for f in folders if not Path(f, "gatewise").exists())
    return kept


@pytest.mark.slow
def test_all_lines_run_in_an_empty_folder(tmp_path):
    environment = without_project()
    shell = Shell(tmp_path)
    shell.environment = {**environment, "OMP_NUM_THREADS": "1"}
    with pytest.raises(AssertionError):
        shell.run("gatewise --version")
    ran, printed = [], {}
    for block in blocks(README):
        if block.language == "python":
            (tmp_path / "lines.py").write_text(block.text)
            figures = [float(f) for f in shell.run("python lines.py").split()[:4]]
            assert figures == pytest.approx(shown_figures(block.text), abs=0.011), figures
            continue
        assert block.language == "sh", f"README shows {block.language!r} at line {block.line}"
        for line in block.text.splitlines():
            command = line.partition(" #")[0].strip()
            ran.append(command)
            if command.startswith("pip install"):
                (name,) = re.findall(r"'([^']+)'", command)
                install(tmp_path / "gw", name)
            elif command == ". gw/bin/activate":
                # lines run one by one, so that what activating does has to be kept
                shell.environment["PATH"] = f"{tmp_path}/gw/bin:{environment['PATH']}"
            else:
                printed[command] = shell.run(line)
    assert {command.split()[0] for command in ran} == {"python3", ".", "pip", "gatewise"}
    check_default_demo(tmp_path / "demo-out", printed["gatewise demo"])
    for folder in ("demo-out", "sim-out"):
        report = json.loads((tmp_path / folder / "report.json").read_text())
        assert report["answers"]["lost"] == 0
        assert (tmp_path / folder / "report.html").stat().st_size > 10_000
    # what serves the tests alone is not there
    probe = [tmp_path / "gw/bin/python", "-c", "import pytest"]
    assert subprocess.run(probe, env=environment, capture_output=True).returncode


def shown_figures(code: str) -> list[float]:
    """What the comments say that the lines print."""
    return [float(f) for found in re.findall(r"# prints ([\d. ]+)", code) for f in found.split()]


def test_it_is_short_and_has_its_pictures():
    text = README.read_text()
    assert len(text.splitlines()) < 130
    for name in re.findall(r"docs/pictures/([\w.]+)", text):
        assert 1000 < (ROOT / "docs/pictures" / name).stat().st_size < 200_000
