"""Tests that the notebooks in ``examples/`` run and have stored outputs."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))

pytestmark = pytest.mark.slow  # each notebook starts a kernel and fits models


def list_output_types(notebook: nbformat.NotebookNode) -> list[set[str]]:
    """List the MIME types of the outputs of each code cell."""
    return [
        {mime for output in cell.outputs for mime in output.get("data", {"text/plain": 0})}
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


@pytest.mark.filterwarnings("ignore:.*zmq:RuntimeWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_has_the_stored_types_of_output(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    stored_types = list_output_types(notebook)
    assert {"image/png"} <= set().union(*stored_types)
    # Use Unix sockets, because another process may take a TCP port before the kernel does.
    with TemporaryDirectory() as folder:
        sockets = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
        # the slowest cell takes less than a minute; five are for a busy machine
        NotebookClient(notebook, timeout=300, config=sockets).execute(cwd=tmp_path)
    assert list_output_types(notebook) == stored_types


def test_three_notebooks_exist():
    assert len(NOTEBOOKS) == 3
