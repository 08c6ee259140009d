"""The command: its lines, its document, its exit status."""

import json
import subprocess
import sys

import pytest

from tests.support import small_bundle
from tests.support.ports import free_port

pytestmark = pytest.mark.slow  # processes start

bundle = small_bundle.bundle


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "gatewise", "doctor", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


def test_the_command(bundle):
    done = run(bundle.path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "all is well"
    done = run("--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert (done.returncode, done.stderr) == (1, "")
    assert "-> start the broker" in done.stdout
    assert "1 problem;" in done.stdout
    done = run("--json", "--broker", f"mqtt://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert (document["healthy"], document["problems"]) == (False, 1)


def test_it_loads_nothing_that_a_device_has_not(bundle):
    heavy = ("sklearn", "scipy", "lightgbm", "onnx", "skl2onnx", "matplotlib", "numba", "pandas")
    probe = (
        "import sys\nfrom gatewise.cli import main\n"
        f"assert main(['doctor', {str(bundle.path)!r}]) == 0\n"
        f"print('heavy:', *[m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "heavy:"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "nothing to examine"),
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
