"""Hostile bundles are refused with a reason, before any graph is opened, and in little memory.

A process opens them one after the other and measures its memory. It imports onnxruntime, but
opening a session ends it. Bundles with invalid signatures are tested in test_signing.py.
"""

from __future__ import annotations

import json
import re

import pytest

from gatewise_edge.device.self_checks import self_test
from gatewise_export.bundle.bundle import Bundle
from tests.support.hostile_bundles.array_cases import ARRAY_CASES
from tests.support.hostile_bundles.file_cases import FILE_CASES
from tests.support.hostile_bundles.good_bundle import Cases, write_directory, write_zip
from tests.support.processes import run_python

pytestmark = pytest.mark.slow  # writes files of hundreds of megabytes

#: The process with numpy and onnxruntime takes most of it; the files have hundreds of megabytes.
MAX_PEAK_MB = 200

#: By name, a function that writes a bundle, and a pattern of the reason for its refusal.
HOSTILE_CASES: Cases = {**FILE_CASES, **ARRAY_CASES}


def test_the_unchanged_bundle_opens(tmp_path):
    self_test(Bundle.open(write_directory(tmp_path / "bundle")))
    self_test(Bundle.open(write_zip(tmp_path / "archive")))


#: Opens bundles; prints the reasons of each refusal and the peak memory until then. A device
#: without onnxruntime, which needs no sample, refuses a bundle as well.
OPEN_ALL = """
import functools, json, pathlib, re, resource, sys
import onnxruntime
from gatewise_edge.device.self_checks import self_test
from gatewise_edge.device.stages import load_stages
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

def find_reason(test, path):
    try:
        test(Bundle.open(path))
    except BundleError as error:
        return str(error)

onnxruntime.InferenceSession = fail_if_opened
load_with_numpy = functools.partial(load_stages, runner="numpy")
refusals = {}
for name, path in json.load(sys.stdin).items():
    tests = [self_test] if name.startswith("sample") else [self_test, load_with_numpy]
    refusals[name] = [find_reason(test, path) for test in tests], read_peak_bytes()
print(json.dumps(refusals))
"""


def test_hostile_bundles_are_refused_with_their_reasons_in_little_memory(tmp_path):
    paths = {}
    for case_number, (name, (write_hostile_bundle, _)) in enumerate(HOSTILE_CASES.items()):
        paths[name] = str(write_hostile_bundle(tmp_path / str(case_number) / "bundle"))
    refusals = json.loads(run_python(OPEN_ALL, stdin_text=json.dumps(paths)))
    for name, (_, expected_reason) in HOSTILE_CASES.items():
        reasons, peak_bytes = refusals[name]
        for reason in reasons:
            assert reason is not None, f"{name}: opened"
            assert re.search(expected_reason, reason), f"{name}: {reason}"
            assert "\n" not in reason
            assert len(reason) < 1000  # it does not repeat what the bundle holds
        assert peak_bytes / 1e6 < MAX_PEAK_MB, f"first exceeded by {name}"
