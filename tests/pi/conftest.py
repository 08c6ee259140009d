"""A Raspberry Pi without a Pi: Debian for arm64 in a folder, run by qemu.

Not part of any suite: only `make test-pi` collects this folder (it sets GATEWISE_PI). The root is
made once, in .bench-cache/pi or where GATEWISE_PI_ROOT says: about two minutes and 700 MB. Emulated
programs are many times slower than a Pi, so nothing here is timed.
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
SUITE, PYTHON = "bookworm", "3.11"
MIRROR = os.environ.get("GATEWISE_PI_MIRROR", "http://deb.debian.org/debian")
#: onnxruntime asks the processor's description which instructions there are.
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
NEEDED = {
    "qemu-aarch64-static": "qemu-user-static",
    "dpkg-deb": "dpkg",
    "debootstrap": "debootstrap",
    "mosquitto": "mosquitto",
}


class Pi:
    """An emulated machine.

    Parameters
    ----------
    folder : Path
        Holds ``root`` (Debian) and ``site`` (Gatewise and what the edge extra brings).
    """

    def __init__(self, folder: Path) -> None:
        self.root, self.site = folder / "root", folder / "site"
        self._qemu = which("qemu-aarch64-static")

    def command(self, *args: object) -> list[str]:
        python = self.root / "usr" / "bin" / f"python{PYTHON}"
        qemu = [str(self._qemu), "-cpu", "cortex-a72", "-L", str(self.root)]
        return [*qemu, str(python), *map(str, args)]

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
        return kept | {
            "PYTHONPATH": str(self.site),
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }

    def run(self, *args: object, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    # -- how it is made ----------------------------------------------------------------------

    def make_root(self) -> None:
        """Get Debian's packages and unpack them; none of their scripts is run."""
        done = self.root / ".done"
        if done.is_file():
            return
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(parents=True)
        tool = which("debootstrap")
        if tool is None or os.geteuid() != 0:
            pytest.skip("no emulated root yet, and making one needs debootstrap, run as root")
        get = [str(tool), "--arch=arm64", "--foreign", "--variant=minbase", "--include=python3"]
        call([*get, SUITE, str(self.root), MIRROR])
        for package in sorted((self.root / "var/cache/apt/archives").glob("*.deb")):
            call(["dpkg-deb", "-x", str(package), str(self.root)])
        (self.root / "proc").mkdir(exist_ok=True)
        (self.root / "proc/cpuinfo").write_text(CPUINFO)
        done.touch()

    def install(self, wheels: Path) -> None:
        """Build the wheel and install it with the edge extra, all wheels for aarch64."""
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        call([*pip, "wheel", "--no-deps", "--wheel-dir", str(wheels), str(PROJECT)])
        (wheel,) = wheels.glob("gatewise-*.whl")
        shutil.rmtree(self.site, ignore_errors=True)
        kinds = ("_2_28", "_2_27", "_2_17", "2014")
        platforms = [f"--platform=manylinux{kind}_aarch64" for kind in kinds]
        constraints = ["-c", str(PROJECT / "constraints.txt")]
        call(
            [*pip, "install", "--target", str(self.site), *platforms,
             "--only-binary=:all:", f"--python-version={PYTHON}", *constraints, f"{wheel}[edge]"]
        )  # fmt: skip


def which(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin:/sbin")


def call(command: Sequence[str]) -> None:
    """Run a tool; what cannot be had here ends in a skip that says so."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        if any(word in " ".join(last) for word in ("resolve", "Failed getting", "connection")):
            pytest.skip(f"{Path(command[0]).name} found no network: {last}")
        pytest.fail(f"{' '.join(command[:6])} ...: {last}")


@pytest.fixture(scope="session")
def pi(tmp_path_factory: pytest.TempPathFactory) -> Pi:
    for program, package in NEEDED.items():
        if which(program) is None:
            pytest.skip(f"{program} is not installed (apt install {package})")
    folder = os.environ.get("GATEWISE_PI_ROOT", PROJECT / ".bench-cache" / "pi")
    machine = Pi(Path(folder))
    machine.make_root()
    machine.install(tmp_path_factory.mktemp("wheels"))
    return machine
