"""A device loads numpy, onnxruntime, paho and cbor2, but no package for training or export."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.processes import run_python

ROOT = Path(__file__).parents[2]

HEAVY_PACKAGES = (
    "sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "numba", "pandas", "joblib",
    "gatewise_training",
)  # fmt: skip

ANSWER_AND_CHECK = """
import contextlib, io, pathlib, sys
import gatewise as gw
import gatewise_edge
import gatewise_edge.link.wire
import gatewise_edge.sensors.table
from gatewise.cli import main
from gatewise_edge import Device, InProcessLink
from gatewise_export.commands.bundle_cli import inspect
gw.Device, gw.MqttLink, gw.Sensors, gw.FeatureCosts, gw.Bundle
for name in gatewise_edge.__all__:
    getattr(gatewise_edge, name)
path = {path!r}
link = InProcessLink(lambda X: ([1] * len(X), [[0.0, 1.0]] * len(X)))
with Device(path, link=link) as device:
    assert device.answer([1.0, 0, 0, 0, 0, 0]).route == "edge"
    assert device.answer([0.0, 0, 0, 0, 0, 0]).route == "cloud"
assert "numpy.ma" not in sys.modules  # 2 MB, which np.unique and np.quantile load
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["edge", "--help"]) == main(["inspect", "--help"]) == 0
    assert main(["doctor", path]) == 0
    inspect(pathlib.Path(path))
print(*{{m.split(".")[0] for m in sys.modules}})
"""

HELP_AND_IMPORT = """
import contextlib, io, sys
from gatewise.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    assert main(["--help"]) == 0
assert not {"gatewise_export", "gatewise_edge", "gatewise_cloud"} & set(sys.modules)
import gatewise_edge
print(*sys.modules)
"""


@pytest.mark.slow
def test_answers_and_checks_load_nothing_heavy(bundle):
    loaded_packages = set(run_python(ANSWER_AND_CHECK.format(path=str(bundle.path))).split())
    assert "gatewise_edge" in loaded_packages
    assert not loaded_packages & {*HEAVY_PACKAGES, "jinja2"}


def test_help_and_import_of_the_package_load_only_the_standard_library():
    loaded_packages = set(run_python(HELP_AND_IMPORT).split())
    assert not loaded_packages & {*HEAVY_PACKAGES, "numpy", "onnxruntime", "paho", "cbor2"}


def test_edge_extra_resolves_on_32_bit_arm():
    """onnxruntime has no wheels for 32-bit ARM, so that numpy runs the stages there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [*map(Requirement, project["optional-dependencies"]["edge"])]
    for machine, has_onnxruntime in (("aarch64", True), ("armv7l", False), ("armv6l", False)):
        names = {
            requirement.name
            for requirement in requirements
            if requirement.marker is None
            or requirement.marker.evaluate({"platform_machine": machine})
        }
        assert ("onnxruntime" in names, "paho-mqtt" in names) == (has_onnxruntime, True)
