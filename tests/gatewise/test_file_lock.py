"""Test locks between processes, and that training and simulation need no POSIX modules.

The second is why locks have a module of their own: Windows has no fcntl.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from gatewise.file_lock import lock_file
from tests.support.processes import run_python

HOLDER_CODE = """\
import sys
from gatewise.file_lock import lock_file
file = open(sys.argv[1], "w")
lock_file(file.fileno())
print("held", flush=True)
sys.stdin.read()
"""
#: Modules that Python does not have on Windows.
POSIX_MODULES = ("fcntl", "resource", "pwd", "grp", "termios", "tty", "pty", "syslog")


def test_a_lock_excludes_other_processes_until_its_holder_ends(tmp_path):
    path = tmp_path / "lock"
    command = [sys.executable, "-c", HOLDER_CODE, path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with path.open("w") as file:
            with pytest.raises(OSError):
                lock_file(file.fileno(), waits=False)
            holder.communicate("")  # the holder ends, which releases its lock
            lock_file(file.fileno())


@pytest.mark.slow
def test_training_packing_and_simulating_need_no_posix_modules():
    # the import of a module that is None in sys.modules fails
    code = (
        f"import sys\nfor name in {POSIX_MODULES!r}: sys.modules[name] = None\n"
        "import gatewise as gw\n"
        "for name in gw.__all__: getattr(gw, name)\n"
        "from gatewise import cli\n"
        "for name in cli.SUBCOMMANDS: cli.build_command(name)\n"
        "print('built')"
    )
    assert run_python(code).splitlines()[-1] == "built"
