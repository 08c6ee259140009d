"""Build and run generated C on this computer, or on chips that qemu emulates."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gatewise.errors import InputError
from gatewise_export.c99 import c_text

HEADER, LINKER_SCRIPT = "target.h", "target.ld"
#: Longest running time of a program.
RUN_TIMEOUT_SECONDS = 600
#: Longest running time of a compiler.
BUILD_TIMEOUT_SECONDS = 120
#: Flags of gcc for a chip without an operating system.
FREESTANDING = ("-Os", "-ffunction-sections", "-fdata-sections", "-nostartfiles")
LINK_FLAGS = ("-Wl,--gc-sections", "-T", LINKER_SCRIPT)
ARM_EMULATOR = ("qemu-system-arm", "-icount", "shift=6", "-M")
QEMU_OPTIONS = (
    *("-display", "none", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native"),
)


@dataclass(frozen=True)
class BuildTarget:
    """A machine, its compiler and its emulator.

    Attributes
    ----------
    name : str
    compiler : tuple of str
        Command and flags of the compiler.
    packages : str
        Debian packages with the compiler and the emulator.
    emulator : tuple of str
        Command that runs a program, which :meth:`run` appends as the value of the last option;
        empty for this computer.
    memory : tuple of str
        Origin and size of flash, then of RAM; only an emulated chip needs them.
    units_per_tick : float
        Factor from ticks of the program's clock to instructions if `counts_instructions`, and
        otherwise to nanoseconds.
    """

    name: str
    compiler: tuple[str, ...]
    packages: str
    emulator: tuple[str, ...] = ()
    memory: tuple[str, str, str, str] = ("", "", "", "")
    units_per_tick: float = 1.0

    @property
    def counts_instructions(self) -> bool:
        """Whether the program's clock counts instructions."""
        return bool(self.emulator)

    def missing_program(self) -> str | None:
        """Name a program that is not installed, and how to install it; None if all are."""
        for program in (self.compiler[0], *self.emulator[:1]):
            if shutil.which(program) is None:
                return f"{program} is not installed (apt install {self.packages})"
        return None

    def build(self, folder: Path, files: Sequence[str], *flags: str) -> Path:
        """Compile files of `folder` to a program; one of them must include :data:`HEADER`.

        Raises InputError if a program is not installed or the compiler fails.
        """
        if (problem := self.missing_program()) is not None:
            raise InputError(f"{self.name}: {problem}")
        # these templates have no public C name, so the prefix has no effect
        placeholders = c_text.common_placeholders("m")
        (folder / HEADER).write_text(c_text.fill_template(HEADER, **placeholders))
        link_flags: tuple[str, ...] = ()
        if self.emulator:
            memory_keys = ("flash_origin", "flash_size", "ram_origin", "ram_size")
            memory = dict(zip(memory_keys, self.memory, strict=True))
            linker_script = c_text.fill_template(LINKER_SCRIPT, **placeholders, **memory)
            (folder / LINKER_SCRIPT).write_text(linker_script)
            link_flags = LINK_FLAGS
        program_name = f"{self.name}.elf"
        # a fused multiply-add rounds once where Python rounds twice
        flags = ("-std=c99", "-ffp-contract=off", *flags)
        command = [*self.compiler, *flags, *files, *link_flags, "-o", program_name, "-lm"]
        _run_command(folder, command, BUILD_TIMEOUT_SECONDS)
        return folder / program_name

    def run(self, program: Path) -> str:
        """Run a program in its folder and return its output."""
        return _run_command(
            program.parent, [*self.emulator, str(program.resolve())], RUN_TIMEOUT_SECONDS
        )


def _run_command(folder: Path, command: Sequence[str], timeout_s: int) -> str:
    """Run a command in a folder and return its output; raise InputError if it fails or hangs."""
    try:
        completed_process = subprocess.run(
            command,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"{command[0]} did not finish within {timeout_s} s") from None
    if completed_process.returncode:
        # the end of a long output names the error that stopped the program
        output = (completed_process.stderr.strip() or completed_process.stdout.strip())[-500:]
        status = completed_process.returncode
        raise InputError(f"{command[0]} exited with status {status}: {output}")
    # semihosting prints to standard error
    return completed_process.stdout + completed_process.stderr


def host_compiler() -> tuple[str, ...]:
    """Command of the compiler for this computer: ``CC`` of the environment, by default cc."""
    return (*(shlex.split(os.environ.get("CC", "")) or ["cc"]), "-O2")


# Instructions per tick are the time of a tick divided by the time of an instruction. With shift=6
# an instruction takes 64 ns of virtual time. A tick of SysTick takes 62.5 ns on the micro:bit and
# 40 ns on the MPS2. On rv32, `mcycle` counts instructions.
TARGETS = {
    target.name: target
    for target in (
        BuildTarget("host", host_compiler(), "gcc"),
        BuildTarget(
            name="cortex-m0plus",
            compiler=("arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", *FREESTANDING),
            packages="gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm",
            # qemu has no M0+; the micro:bit has a Cortex-M0, with the same instructions
            emulator=(*ARM_EMULATOR, "microbit", *QEMU_OPTIONS, "-kernel"),
            memory=("0", "256K", "0x20000000", "16K"),
            units_per_tick=62.5 / 64,
        ),
        BuildTarget(
            name="cortex-m4",
            compiler=(
                *("arm-none-eabi-gcc", "-mcpu=cortex-m4", "-mthumb"),
                *("-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
                *FREESTANDING,
            ),
            packages="gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm",
            emulator=(*ARM_EMULATOR, "mps2-an386", *QEMU_OPTIONS, "-kernel"),
            memory=("0", "4M", "0x20000000", "4M"),
            units_per_tick=40 / 64,
        ),
        BuildTarget(
            name="rv32",
            compiler=(
                *("riscv64-unknown-elf-gcc", "--specs=picolibc.specs"),
                *("-march=rv32imac", "-mabi=ilp32"),
                *FREESTANDING,
            ),
            packages="gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc",
            emulator=(
                *("qemu-system-riscv32", "-icount", "shift=0", "-M", "virt", "-bios", "none"),
                *QEMU_OPTIONS,
                "-kernel",
            ),
            memory=("0x80000000", "8M", "0x80800000", "8M"),
        ),
    )
}
