"""Examples of libraries for boards, compiled with stubs of the boards' libraries."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gatewise_export.c99.board_libraries import write_library
from tests.support import small_bundle
from tests.support.needs import needs_compiler

pytestmark = needs_compiler

STUBS = Path(__file__).parents[2] / "support/board_stubs"
#: Headers that the examples include, and the stub that replaces them.
HEADERS = {
    "arduino": ("Ethernet.h", "PubSubClient.h"),
    "esp_idf": (
        "esp_random.h", "esp_timer.h", "mqtt_client.h", "freertos/FreeRTOS.h", "freertos/semphr.h",
        "freertos/task.h",
    ),
}  # fmt: skip


def compile_example(folder: Path, build: str, stub: str, *command: str) -> Path:
    """Write the small bundle's library, and compile its example with the stub of a board."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    library_folder = folder / "library"
    bundle = small_bundle.write_bundle(folder / "bundle")
    write_library(bundle, library_folder, build, name="m")
    for header in HEADERS[stub]:
        path = folder / "headers" / header
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'#include "{stub}.h"\n')
    (example,) = (library_folder / "examples").rglob("offload.*")
    example_copy = example.rename(folder / f"example{command[1]}")
    folders = [library_folder / "src", library_folder / "include", folder / "headers", STUBS]
    sources = [example_copy, *STUBS.glob(f"{stub}_main.c*"), *(library_folder / "src").glob("*.c")]
    arguments = [*command[2:], *(f"-I{path}" for path in folders), *sources]
    flags = ("-Wall", "-Wextra", "-Werror", "-pthread")
    program = folder / "example"
    subprocess.run([command[0], *flags, *arguments, "-lm", "-o", program], check=True)
    return program


def run_example(program: Path, *arguments: str) -> list[int]:
    """Run an example; return the numbers that it prints."""
    process = subprocess.run(
        [program, *arguments], capture_output=True, text=True, check=True, timeout=30
    )
    return [int(number) for number in process.stdout.split()]


@pytest.fixture(scope="module")
def esp_example(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("esp")
    return compile_example(folder, "esp-idf", "esp_idf", "cc", ".c", "-std=gnu99")


@pytest.fixture(scope="module")
def arduino_example(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("arduino")
    return compile_example(folder, "arduino", "arduino", "c++", ".cpp", "-std=c++17")


@pytest.mark.slow
def test_esp_example_answers_while_messages_arrive(esp_example):
    n_taken, slowest_ms = run_example(esp_example)
    assert n_taken == 10  # each of 5 requests and its retry
    assert slowest_ms < 5000  # a deadline of 500 ms


@pytest.mark.slow
def test_esp_example_sends_nothing_and_does_not_wait_without_a_connection(esp_example):
    n_taken, slowest_ms = run_example(esp_example, "down")
    assert n_taken == 0
    assert slowest_ms < 500


def test_arduino_example_keeps_its_connection_without_offloads(arduino_example):
    n_answers, n_connects, n_loops = run_example(arduino_example)
    assert n_connects == 1
    assert n_loops >= n_answers > 2900


def test_arduino_example_seldom_tries_to_connect(arduino_example):
    n_answers, n_connects, _ = run_example(arduino_example, "unreachable")
    assert n_connects <= 11  # in 300 s, every 30 s
    assert n_answers > 2800  # a try takes 1 s, and an instance 0.1 s
