"""Libraries for boards compile without warnings, keep tables in flash and are small."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from gatewise.cli import main
from gatewise.errors import InputError
from gatewise_export import Bundle
from gatewise_export.c99.board_libraries import BUILD_FILES, write_library
from tests.support import small_bundle
from tests.support.machine_table import make_raw_bundle
from tests.support.needs import needs_compiler

pytestmark = needs_compiler

#: Prefix of each cross compiler, and options for one chip of each family.
CHIPS = (
    ("arm-none-eabi", "-mcpu=cortex-m0plus", "-mthumb"),
    ("avr", "-mmcu=atmega1284p"),
    ("riscv64-unknown-elf", "--specs=picolibc.specs", "-march=rv32imac", "-mabi=ilp32"),
)
COMPILERS = (
    ("cc", "-std=c99"),
    ("c++", "-x", "c++", "-std=c++17"),
    *((f"{chip}-gcc", "-std=c99", *options) for chip, *options in CHIPS),
    *((f"{chip}-g++", "-x", "c++", "-std=c++17", *options) for chip, *options in CHIPS),
)
STRICT_FLAGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Werror")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return small_bundle.write_bundle(tmp_path_factory.mktemp("library") / "bundle")


@pytest.fixture(scope="module")
def compiled_contents() -> set[frozenset[bytes]]:
    """Sources and headers that all compilers have compiled without a warning."""
    return set()


@pytest.mark.slow
@pytest.mark.parametrize("build", BUILD_FILES)
def test_libraries_compile_without_warnings_as_c_and_cpp(
    bundle, tmp_path, compiled_contents, build
):
    source, reason = write_library(bundle, tmp_path / build, build, name="m")
    assert reason is None
    folder = tmp_path / build
    assert all((folder / file).exists() for file in source.files)
    header_folder = next(folder.rglob("m_wire.h")).parent
    sources = sorted((folder / "src").glob("*.c"))
    contents = frozenset(file.read_bytes() for file in [*sources, *header_folder.glob("*.h")])
    if contents in compiled_contents:  # another build has the same bytes
        return
    for file in sources:
        for command in COMPILERS:
            if shutil.which(command[0]) is None:
                continue
            options = [*STRICT_FLAGS, "-Os", "-I", header_folder, "-c", "-o", "/dev/null", file]
            process = subprocess.run(
                [*command, *options], capture_output=True, text=True, check=False
            )
            assert process.returncode == 0, process.stderr
    compiled_contents.add(contents)


@pytest.mark.skipif(shutil.which("avr-gcc") is None, reason="avr-gcc is not installed")
def test_tables_take_no_ram_on_avr(bundle, tmp_path):
    write_library(bundle, tmp_path, "arduino", name="m")
    for source_name in ("m", "m_wire"):
        command = ["avr-gcc", "-mmcu=atmega328p", "-Os", "-std=c99", *STRICT_FLAGS, "-c"]
        subprocess.run([*command, f"src/{source_name}.c", "-o", "out.o"], cwd=tmp_path, check=True)
        sections = subprocess.run(
            ["avr-objdump", "-h", "out.o"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout
        sizes = dict(re.findall(r" (\.\S+) +([0-9a-f]{8}) ", sections))
        ram_sections = [name for name in sizes if name.startswith((".data", ".bss", ".rodata"))]
        ram_bytes = sum(int(sizes[name], 16) for name in ram_sections)
        assert ram_bytes <= 16, sizes  # the texts of two error codes
        assert int(sizes.get(".progmem.data", "0"), 16) > 0, sizes  # the tables in flash


@pytest.mark.slow
def test_cmake_builds_the_library_and_a_program_that_uses_it(bundle, tmp_path):
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    write_library(bundle, tmp_path / "m", "cmake", name="m")
    program = '#include "m_wire.h"\nint main() { m_wire_begin(0, 0, 0, 0); }\n'
    (tmp_path / "main.cpp").write_text(program)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.13)\nproject(user LANGUAGES C CXX)\nadd_subdirectory(m)\n"
        "add_executable(user main.cpp)\ntarget_link_libraries(user PRIVATE gatewise::m)\n"
    )
    for options in (("-S", ".", "-B", "build"), ("--build", "build")):
        process = subprocess.run(["cmake", *options], cwd=tmp_path, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr


CORTEX_M0_COMPILER = ("arm-none-eabi-gcc", "-mcpu=cortex-m0plus", "-mthumb", "-Os", "-std=c99")
LINK_FLAGS = (
    "-ffunction-sections", "-Wl,--gc-sections", "--specs=nano.specs", "--specs=nosys.specs",
)  # fmt: skip
# Firmware with and without the client; the difference of their sizes is that of the client.
FIRMWARE = """\
#include "m_wire.h"
m_wire wire;
static float row[3];
static int publish(const uint8_t *m, size_t n, void *c) { return m && n && c; }
static void draw(uint8_t *b, size_t n, void *c) { (void)c; while (n--) b[n] = 1; }
void _exit(int status) { (void)status; for (;;) ; }
int main(void)
{
#if CLIENT
    m_wire_begin(&wire, publish, draw, 0);
    m_wire_offload(&wire, row, 0, 500);
    m_wire_receive(&wire, (const uint8_t *)row, 8, 1);
    return m_wire_poll(&wire, 2);
#else
    (void)publish;
    (void)draw;
    return (int)row[0];
#endif
}
"""


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which(CORTEX_M0_COMPILER[0]) is None, reason="arm-none-eabi-gcc is not installed"
)
@pytest.mark.parametrize("uses_json", [0, 1])
def test_the_client_is_small_on_a_cortex_m0(bundle, tmp_path, uses_json):
    """With the library's functions it takes at most 8 KB of flash, and 2 KB of RAM."""
    write_library(bundle, tmp_path, "cmake", name="m")
    header = tmp_path / "include/m_wire.h"
    # Enlarge the message buffers to those of 64 features: the other fields of a request have up to
    # 130 bytes in JSON and 70 in CBOR, and a feature has 15 and 4.
    header_text = header.read_text()
    for encoding, n_bytes in (("JSON", 130 + 15 * 64), ("CBOR", 70 + 4 * 64)):
        header_text, n_replaced = re.subn(
            rf"(define M_WIRE_{encoding}_BYTES) \d+", rf"\1 {n_bytes}", header_text
        )
        assert n_replaced == 1, encoding
    header.write_text(header_text)
    (tmp_path / "main.c").write_text(FIRMWARE)
    sizes_by_firmware = []
    for has_client in (0, 1):
        flags = (
            f"-DCLIENT={has_client}",
            f"-DM_WIRE_JSON={uses_json}",
            "-I",
            "include",
            *LINK_FLAGS,
        )
        sources = ("main.c", "src/m_wire.c", "src/m.c")
        command = [*CORTEX_M0_COMPILER, *flags, *sources, "-lm", "-o", "out.elf"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        size_output = subprocess.run(
            ["arm-none-eabi-size", "out.elf"], cwd=tmp_path, capture_output=True, check=True
        )
        # The second line has the sizes of text, data and bss.
        _, sizes_line = size_output.stdout.decode().splitlines()
        sizes_by_firmware.append(np.array(sizes_line.split()[:3], int))
    text_bytes, data_bytes, bss_bytes = sizes_by_firmware[1] - sizes_by_firmware[0]
    print(f"text {text_bytes}, data {data_bytes}, bss {bss_bytes}")
    assert text_bytes + data_bytes <= 8192  # in flash
    assert bss_bytes + data_bytes <= 2048  # in RAM


def test_bundles_that_never_offload_have_no_client(tmp_path):
    bundle = small_bundle.write_bundle(tmp_path / "bundle", has_cloud=False)
    source, reason = write_library(bundle, tmp_path / "c", "arduino", name="m")
    assert reason == "the bundle offloads no instance at its operating point"
    assert not [file for file in source.files if "wire" in file or "offload" in file]


def test_a_name_may_end_as_the_self_test(tmp_path, bundle):
    source, _ = write_library(bundle, tmp_path, "cmake", name="pump_selftest")
    assert [file for file in source.files if "selftest" in file] == [
        "include/pump_selftest.h", "src/pump_selftest.c", "src/pump_selftest_names.c",
        "include/pump_selftest_wire.h", "src/pump_selftest_wire.c",
    ]  # fmt: skip


def test_names_of_headers_of_c_are_not_replaced(tmp_path):
    bundle = small_bundle.write_bundle(tmp_path / "bundle", name="math")
    with pytest.raises(InputError, match="names of its headers"):
        write_library(bundle, tmp_path / "c", "cmake", name="math")
    source, _ = write_library(bundle, tmp_path / "d", "cmake")
    assert source.name == "model_math"


def test_files_of_an_earlier_version_are_removed(tmp_path, bundle):
    _, missing_client_reason = write_library(bundle, tmp_path, "arduino", name="m")
    assert missing_client_reason is None
    other_model = tmp_path / "src" / "m_wire_2.c"  # belongs to a model named m_wire_2
    shutil.copy(tmp_path / "src" / "m_wire.c", other_model)
    (tmp_path / "src" / "m_signals.c").write_text("/* the user's own */\n")
    local_bundle = small_bundle.write_bundle(tmp_path / "local", has_cloud=False)
    source, missing_client_reason = write_library(local_bundle, tmp_path, "arduino", name="m")
    assert missing_client_reason is not None
    assert {path.name for path in (tmp_path / "src").iterdir()} == {
        *(Path(file_name).name for file_name in source.files if file_name.startswith("src/")),
        "m_wire_2.c",
        "m_signals.c",
    }


@pytest.mark.slow
def test_library_report_names_the_columns_that_the_firmware_must_encode(tmp_path, capsys):
    _, _, path = make_raw_bundle(tmp_path)
    assert main(["c99", str(path), "--out", str(tmp_path / "c"), "--as", "cmake"]) == 0
    assert "the firmware must encode" in capsys.readouterr().out


def test_library_report_leaves_out_the_self_test(tmp_path, bundle, capsys):
    assert main(["c99", str(bundle.path), "--out", str(tmp_path / "c"), "--as", "cmake"]) == 0
    output = capsys.readouterr().out
    assert "RAM, bytes" in output
    assert "self-test" not in output


def test_unknown_builds_unusable_names_and_foreign_files_are_refused(tmp_path, bundle):
    with pytest.raises(InputError, match="choose one of arduino, zephyr"):
        write_library(bundle, tmp_path / "c", "make")
    odd_bundle = small_bundle.write_bundle(tmp_path / "odd", name='a"b')
    with pytest.raises(InputError, match="plain ASCII"):
        write_library(odd_bundle, tmp_path / "d", "cmake", name="m")
    (tmp_path / "e").mkdir()
    (tmp_path / "e/CMakeLists.txt").write_text("mine")
    with pytest.raises(InputError, match="not written by Gatewise"):
        write_library(bundle, tmp_path / "e", "cmake", name="m")
