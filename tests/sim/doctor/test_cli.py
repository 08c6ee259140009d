"""Tests of the output and the exit status of ``gatewise doctor``."""

import json

import pytest

from tests.support import small_bundle
from tests.support.ports import free_port
from tests.support.processes import run_in_process

bundle = small_bundle.bundle


def run_doctor(*arguments):
    """Run the command in this process."""
    return run_in_process("doctor", *arguments)


def test_output_and_status_of_healthy_and_broken_devices(bundle):
    process = run_doctor(bundle.path)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.splitlines()[-1] == "no problems"
    process = run_doctor()
    assert (process.returncode, process.stderr) == (0, "")
    assert "[edge], to run a device, is installed" in process.stdout
    process = run_doctor("--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert (process.returncode, process.stderr) == (1, "")
    assert "-> start the broker" in process.stdout
    assert "1 problem;" in process.stdout
    process = run_doctor("--json", "--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert process.returncode == 1
    document = json.loads(process.stdout)
    assert (document["healthy"], document["problems"]) == (False, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--broker", "http://x"), "must begin with mqtt://"),
        (("--broker", "mqtt://x", "--device", "a/b"), "a/b"),  # a slash separates topic levels
        (("--broker", "mqtt://x", "--timeout", "0"), "--timeout"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, message):
    process = run_doctor(*arguments)
    assert (process.returncode, process.stdout) == (2, "")
    assert message in process.stderr
    assert process.stderr.count("\n") == 1
