"""Fixture of an emulated Raspberry Pi: Debian for arm64 in a folder, run by qemu.

Only `make test-pi` collects these tests, because it sets GATEWISE_PI. The first run unpacks Debian
into GATEWISE_PI_ROOT, by default .bench-cache/pi. That takes about two minutes and 700 MB. Emulated
programs are many times slower than a Pi, so these tests measure no times.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

if not os.environ.get("GATEWISE_PI"):
    collect_ignore_glob = ["*"]

PROJECT = Path(__file__).parents[2]
#: Release of Debian that Raspberry Pi OS is based on, and its version of Python.
DEBIAN_SUITE, PYTHON_VERSION = "bookworm", "3.11"
MIRROR = os.environ.get("GATEWISE_PI_MIRROR", "http://deb.debian.org/debian")
#: onnxruntime reads from this description which instructions the processor has.
CPUINFO = """\
processor\t: 0
BogoMIPS\t: 108.00
Features\t: fp asimd evtstrm crc32 cpuid
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x0
CPU part\t: 0xd08
CPU revision\t: 3

Hardware\t: BCM2835
Model\t\t: Raspberry Pi 4 Model B Rev 1.4
"""
#: Debian package of each required program.
REQUIRED_PACKAGES = {
    "qemu-aarch64-static": "qemu-user-static",
    "dpkg-deb": "dpkg",
    "debootstrap": "debootstrap",
    "mosquitto": "mosquitto",
}


class Pi:
    """An emulated Raspberry Pi.

    Parameters
    ----------
    folder : Path
        Contains ``root`` (Debian) and ``site`` (Gatewise with its edge extra).
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.site = folder / "root", folder / "site"
        self._qemu = find_program("qemu-aarch64-static")  # the fixture `pi` skips without it

    def make_command(self, *arguments: object) -> list[str]:
        """Make the command that runs Python with these arguments in the emulator."""
        python = self.root / "usr" / "bin" / f"python{PYTHON_VERSION}"
        qemu = [str(self._qemu), "-cpu", "cortex-a72", "-L", str(self.root)]
        return [*qemu, str(python), *map(str, arguments)]

    @property
    def environment(self) -> dict[str, str]:
        """Environment of emulated processes, without the variables of this one."""
        kept_names = {"PATH", "HOME", "TMPDIR"} & os.environ.keys()
        return {name: os.environ[name] for name in kept_names} | {
            "PYTHONPATH": str(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def run(self, *arguments: object, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
        """Run Python in the emulator, which is slow; ten minutes are enough."""
        return subprocess.run(
            self.make_command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    # -- installation ------------------------------------------------------------------------

    def make_root(self) -> None:
        """Download Debian's packages and unpack them.

        Their scripts are not run: qemu runs one program with Debian's files (``-L``) and not a
        system, and Python needs only the files.
        """
        done_file = self.root / ".done"
        if done_file.is_file():
            return
        debootstrap = find_program("debootstrap")
        if debootstrap is None or os.geteuid() != 0:
            pytest.skip("to create the emulated machine, install debootstrap and run as root")
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        command = [
            str(debootstrap),
            "--arch=arm64",
            "--foreign",
            "--variant=minbase",
            "--include=python3",
        ]
        run_tool([*command, DEBIAN_SUITE, str(self.root), MIRROR])
        for package in sorted((self.root / "var/cache/apt/archives").glob("*.deb")):
            run_tool(["dpkg-deb", "-x", str(package), str(self.root)])
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/cpuinfo").write_text(CPUINFO)
        done_file.touch()

    def install(self, wheels: Path) -> None:
        """Build Gatewise's wheel, and install it and its edge extra for aarch64."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        run_tool([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(PROJECT)])
        (wheel,) = wheels.glob("gatewise-*.whl")
        shutil.rmtree(self.site, ignore_errors=True)
        # tags of wheels that run on Debian's glibc 2.36; manylinux2014 is glibc 2.17
        tag_endings = ("_2_28", "_2_27", "_2_17", "2014")
        platforms = [f"--platform=manylinux{ending}_aarch64" for ending in tag_endings]
        constraints = ["-c", str(PROJECT / "constraints.txt")]
        run_tool(
            [*pip, "install", "--target", str(self.site), *platforms,
             "--only-binary=:all:", f"--python-version={PYTHON_VERSION}", *constraints,
             f"{wheel}[edge]"]
        )  # fmt: skip


def find_program(name: str) -> str | None:
    """Find a program on PATH or in the folders of programs for administrators."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def run_tool(command: Sequence[str]) -> None:
    """Run a tool; skip the test if the network cannot be reached, and fail it on other errors."""
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        last_line = (process.stderr or process.stdout).strip().splitlines()[-1:]
        # words of pip and debootstrap
        if any(word in " ".join(last_line) for word in ("resolve", "Failed getting", "connection")):
            pytest.skip(f"{Path(command[0]).name} cannot reach the network: {last_line}")
        pytest.fail(f"{' '.join(command[:6])} ...: {last_line}")


@pytest.fixture(scope="session")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Pi:
    """The emulated machine, with this version of Gatewise."""
    for program, package in REQUIRED_PACKAGES.items():
        if find_program(program) is None:
            pytest.skip(f"{program} is not installed (apt install {package})")
    folder = os.environ.get("GATEWISE_PI_ROOT", PROJECT / ".bench-cache" / "pi")
    machine = Pi(Path(folder))
    machine.make_root()
    machine.install(tmp_path_factory.mktemp("wheels"))
    return machine
