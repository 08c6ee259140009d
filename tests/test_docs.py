"""Tests of the documentation: its examples run, and the targets of its links exist."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import pytest

from gatewise_cloud.broker.broker_init import find_plugin
from tests.support.pages import Shell, run_page
from tests.support.ports import free_port
from tests.support.product_code import PACKAGES
from tests.support.small_fits import fast_fits

pytestmark = pytest.mark.usefixtures("quick_timings")
ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
#: Pages with ``sh`` blocks to run; commands for other machines are in ``console`` blocks.
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))
OPERATIONS_PAGE = ROOT / "docs/operations.md"
#: Tutorial that trains and refits on the way; table-to-pi.md trains with the defaults.
TUTORIAL_WITH_FAST_FITS = ROOT / "docs/tutorials/fleet-that-learns.md"


def get_page_name(page: Path) -> str:
    """Get the path of a page in the project."""
    return page.relative_to(ROOT).as_posix()


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in (*TUTORIALS, OPERATIONS_PAGE)],
    ids=get_page_name,
)
def test_examples_run(page, tmp_path):
    with contextlib.chdir(tmp_path):
        run_page(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=get_page_name)
def test_tutorials_run(page, tmp_path):
    for script in re.findall(r"\]\(\.\./\.\./examples/(\w+\.py)\)", page.read_text()):
        shutil.copy(ROOT / "examples" / script, tmp_path)
    fits = fast_fits() if page == TUTORIAL_WITH_FAST_FITS else contextlib.nullcontext()
    with (
        fits,
        contextlib.chdir(tmp_path),
        Shell(tmp_path, port=free_port(), runs_here=True) as shell,
    ):
        run_page(page, shell)


@pytest.mark.slow
@pytest.mark.skipif(find_plugin() is None, reason="needs mosquitto's dynamic security plugin")
def test_operations_page_runs(tmp_path):
    with (
        contextlib.chdir(tmp_path),
        Shell(tmp_path, secure_port=free_port(), runs_here=True) as shell,
    ):
        run_page(OPERATIONS_PAGE, shell)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=get_page_name)
def test_link_targets_exist(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.fixture(scope="module")
def code_files() -> list[str]:
    """Paths of the modules, tests, benchmarks and examples, each after a slash."""
    folders = (*PACKAGES.values(), ROOT / "tests", ROOT / "benchmarks", ROOT / "examples")
    return [
        f"/{path.relative_to(ROOT).as_posix()}"
        for folder in folders
        for path in folder.rglob("*.py")
    ]


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md", *map(get_page_name, PAGES)])
def test_paths_of_the_code_exist(page, code_files):
    """A page names a file by the end of its path, such as ``link/uplink.py``."""
    text = (ROOT / page).read_text()
    for path in re.findall(r"`(?:[a-z]+/\.\.\./)?([a-z_0-9]+/[a-z_0-9/]+\.py)(?:::\w+)?`", text):
        assert any(file.endswith(f"/{path}") for file in code_files), f"{page} names {path}"
