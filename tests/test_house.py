"""The order of the house: imports run one way, and a device needs nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("training", "export", "edge", "cloud", "sim")  # each may import those before it
HEAVY = (
    "sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "numba", "pandas", "joblib",
)  # fmt: skip


def imported(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_imports_never_run_up(room):
    above = {f"gatewise_{r}" for r in ROOMS[ROOMS.index(room) + 1 :]}
    files = list((ROOT / room / f"gatewise_{room}").rglob("*.py"))
    assert files
    for file in files:
        tops = {name.split(".")[0] for name in imported(ast.parse(file.read_text()))}
        assert not tops & above, f"{file.relative_to(ROOT)} imports {sorted(tops & above)}"


def test_nothing_but_packages_in_the_rooms():
    for room in ROOMS:
        inside = {p.name for p in (ROOT / room).iterdir() if p.name != "__pycache__"}
        assert inside == {f"gatewise_{room}"}


@pytest.mark.parametrize(
    "code",
    [
        "import gatewise_edge",
        "from gatewise_edge import Device, MqttLink, Sensors",
        "import gatewise_training, gatewise_export",
        "from gatewise_training import FeatureCosts; from gatewise_export import Bundle",
        "import gatewise.cli",
    ],
)
def test_a_device_loads_nothing_heavy(code):
    probe = f"{code}\nimport sys\nprint(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


def test_the_edge_command_loads_nothing_heavy():
    probe = (
        "import sys\nfrom gatewise.cli import main\n"
        "sys.argv = ['gatewise', 'edge', '--help']\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('heavy:', *[m for m in {HEAVY!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy:"


def test_no_pickle_is_ever_loaded():
    for room in ROOMS:
        for file in (ROOT / room).rglob("*.py"):
            assert not imported(ast.parse(file.read_text())) & {"pickle", "joblib.numpy_pickle"}
