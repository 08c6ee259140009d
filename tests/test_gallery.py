"""The scripts of examples/plots draw their plots in an empty folder."""

from __future__ import annotations

import ast
import contextlib
import runpy
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

SCRIPTS = sorted((Path(__file__).parents[1] / "examples/plots").glob("*.py"))


@pytest.mark.slow  # models are fitted, fleets simulated
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_draws_its_plot(script, tmp_path):
    with contextlib.chdir(tmp_path), mpl.rc_context({"backend": "agg"}):
        runpy.run_path(str(script))
    drawn = ElementTree.parse(tmp_path / f"{script.stem}.svg").getroot()
    shapes = [part for part in drawn.iter() if part.tag.endswith(("path", "use", "image"))]
    assert len(shapes) > 20


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_is_short_and_says_what_it_draws(script):
    text = script.read_text()
    assert len(text.splitlines()) <= 40
    assert (ast.get_docstring(ast.parse(text)) or "").endswith(".")
