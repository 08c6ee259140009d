"""The command: its lines, its document, its exit status."""

import json

import pytest

from tests.support import small_bundle
from tests.support.ports import free_port
from tests.support.processes import run_here

bundle = small_bundle.bundle


def run(*arguments):
    return run_here("doctor", *arguments)


def test_the_command(bundle):
    done = run(bundle.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "no problems"
    done = run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "[edge], to run a device, is installed" in done.stdout
    done = run("--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert "-> start the broker" in done.stdout
    assert "1 problem;" in done.stdout
    done = run("--json", "--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["healthy"], document["problems"]) == (False, 1)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--broker", "http://x"), "must begin with mqtt://"),
        (("--broker", "mqtt://x", "--device", "a/b"), "a/b"),
        (("--broker", "mqtt://x", "--timeout", "0"), "--timeout"),
    ],
)
def test_bad_input(arguments, word):
    done = run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert word in done.stderr
    assert done.stderr.count("\n") == 1
