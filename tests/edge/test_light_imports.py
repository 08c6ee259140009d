"""A device needs numpy, onnxruntime, paho and cbor2, and nothing that trains or exports."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {
    "sklearn",
    "scipy",
    "lightgbm",
    "onnx",
    "skl2onnx",
    "matplotlib",
    "numba",
    "pandas",
    "joblib",
}

EVERYTHING = """
import gatewise_edge
for name in gatewise_edge.__all__:
    getattr(gatewise_edge, name)
import gatewise_edge.sensors.table, gatewise_edge.link.wire
"""

AN_ANSWER = """
import sys
from gatewise_edge import Device, InProcessLink
link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
with Device(sys.argv[1], link=link) as device:
    assert device.answer([1.0, 0, 0, 0, 0, 0]).route == "edge"
    assert device.answer([0.0, 0, 0, 0, 0, 0]).route == "cloud"
"""

HELP = """
from gatewise.cli import main
main(["edge", "--help"])
"""


@pytest.mark.parametrize("program", ["import gatewise_edge", EVERYTHING, AN_ANSWER, HELP])
def test_nothing_heavy_is_loaded(program, bundle):
    program += "\nimport sys; print('\\nLOADED', *sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(bundle.path)],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.splitlines()[-1].split()[1:])
    assert "gatewise_edge" in loaded
    assert not loaded & HEAVY


def test_importing_the_package_loads_nothing_at_all():
    program = "import sys, gatewise_edge; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert not {"numpy", "onnxruntime", "paho", "cbor2"} & set(done.stdout.split())
