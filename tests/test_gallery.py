"""Tests of the scripts in examples/plots."""

from __future__ import annotations

import ast
import contextlib
import runpy
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

pytestmark = pytest.mark.usefixtures("quick_timings")
SCRIPTS = sorted((Path(__file__).parents[1] / "examples/plots").glob("*.py"))


@pytest.mark.slow  # models are fitted, fleets simulated
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_draws_its_plot(script, tmp_path):
    with contextlib.chdir(tmp_path), mpl.rc_context({"backend": "agg"}):
        runpy.run_path(str(script))
    root = ElementTree.parse(tmp_path / f"{script.stem}.svg").getroot()
    shapes = [part for part in root.iter() if part.tag.endswith(("path", "use", "image"))]
    assert len(shapes) > 20  # axes alone have fewer


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script_is_short_and_has_a_docstring(script):
    code = script.read_text()
    assert len(code.splitlines()) <= 40  # so that it fits a screen
    assert (ast.get_docstring(ast.parse(code)) or "").endswith(".")
