"""The notebooks of ``examples/`` run from top to bottom, and have outputs to look at."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))

pytestmark = pytest.mark.slow  # kernels start, models are fitted


def shown(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """What each cell shows: text, tables, pictures."""
    return [
        {kind for output in cell.outputs for kind in output.get("data", {"text/plain": 0})}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.filterwarnings("ignore:.*zmq:RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    stored = shown(notebook)
    assert {"image/png"} <= set().union(*stored)
    # Sockets of files: another process may take a TCP port before the kernel binds it.
    with TemporaryDirectory() as folder:
        sockets = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        NotebookClient(notebook, timeout=300, config=sockets).execute(cwd=tmp_path)
    assert shown(notebook) == stored


def test_there_are_three():
    assert len(NOTEBOOKS) == 3
