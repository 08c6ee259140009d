"""Hostile bundles are refused with a reason, before any graph is opened, and in little memory.

Every bundle is written once and opened twice: one by one in this process, and all together in
another process that measures its memory. That process imports onnxruntime, but opening a session
ends it. Bundles with invalid signatures are tested in test_signing.py.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stages import load_stages
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from tests.support.hostile_bundles.array_cases import ARRAY_CASES
from tests.support.hostile_bundles.file_cases import FILE_CASES
from tests.support.hostile_bundles.good_bundle import Cases, write_directory, write_zip
from tests.support.processes import run_python

pytestmark = pytest.mark.slow  # writes files of hundreds of megabytes

#: The process with numpy and onnxruntime takes most of it; the files have hundreds of megabytes.
MAX_PEAK_MB = 200

#: By name, a function that writes a bundle, and a pattern of the reason for its refusal.
HOSTILE_CASES: Cases = {**FILE_CASES, **ARRAY_CASES}


def open_and_self_test(path: Path) -> None:
    """Open a bundle and test it as a device does before the first instance."""
    self_test(Bundle.open(path))


@pytest.fixture(scope="module")
def hostile_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Paths of all hostile bundles by name, written once."""
    folder = tmp_path_factory.mktemp("hostile")
    return {
        name: write_hostile_bundle(folder / str(case_number) / "bundle")
        for case_number, (name, (write_hostile_bundle, _)) in enumerate(HOSTILE_CASES.items())
    }


def test_the_unchanged_bundle_opens(tmp_path: Path) -> None:
    open_and_self_test(write_directory(tmp_path / "bundle"))
    open_and_self_test(write_zip(tmp_path / "archive"))


@pytest.mark.parametrize("name", HOSTILE_CASES)
def test_a_hostile_bundle_is_refused_with_its_reason(
    name: str, hostile_paths: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_if_opened(*arguments: Any, **settings: Any) -> None:
        pytest.fail("a graph was opened")

    monkeypatch.setattr("onnxruntime.InferenceSession", fail_if_opened)
    with pytest.raises(BundleError, match=HOSTILE_CASES[name][1]) as error_info:
        open_and_self_test(hostile_paths[name])
    assert "\n" not in str(error_info.value)
    assert len(str(error_info.value)) < 1000  # it does not repeat what the bundle holds
    if not name.startswith("sample"):  # a device without onnxruntime refuses it as well
        with pytest.raises(BundleError, match=HOSTILE_CASES[name][1]):
            load_stages(Bundle.open(hostile_paths[name]), runner="numpy")


#: Opens bundles; prints the reason of each refusal and the peak memory until then.
OPEN_ALL = """
import json, pathlib, re, resource, sys
import onnxruntime
from gatewise_edge.device.self_checks import self_test
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError

def fail_if_opened(*arguments, **settings):
    raise SystemExit("a graph was opened")

def read_peak_bytes():
    status = pathlib.Path("/proc/self/status")
    if status.exists():  # Linux: ru_maxrss begins with what the parent had
        return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit

onnxruntime.InferenceSession = fail_if_opened
refusals = {}
for name, path in json.load(sys.stdin).items():
    try:
        self_test(Bundle.open(path))
    except BundleError as error:
        refusals[name] = str(error), read_peak_bytes()
print(json.dumps(refusals))
"""


def test_hostile_bundles_take_little_memory(hostile_paths: dict[str, Path]) -> None:
    """One process with numpy and onnxruntime refuses all hostile bundles within a memory limit."""
    paths = json.dumps({name: str(path) for name, path in hostile_paths.items()})
    refusals = json.loads(run_python(OPEN_ALL, stdin_text=paths))
    assert set(refusals) == set(HOSTILE_CASES)
    for name, (message, _) in refusals.items():
        assert re.search(HOSTILE_CASES[name][1], message), name
    peak_mb_of_case = {name: peak_bytes / 1e6 for name, (_, peak_bytes) in refusals.items()}
    largest_case = max(peak_mb_of_case, key=lambda name: peak_mb_of_case[name])
    message = f"{MAX_PEAK_MB} MB exceeded, first at {largest_case!r}"
    assert peak_mb_of_case[largest_case] < MAX_PEAK_MB, message
