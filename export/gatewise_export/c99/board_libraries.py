"""Write a bundle's C99 as a library for Arduino, Zephyr, ESP-IDF or CMake."""

from __future__ import annotations

import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from gatewise.errors import InputError
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.c99 import c_text
from gatewise_export.c99.wire_client import no_client_reason, wire_files
from gatewise_export.c99.writer import CSource, to_c

#: Build systems, and the files that each needs in addition to sources and headers.
BUILD_FILES: dict[str, tuple[str, ...]] = {
    "arduino": ("library.properties",),
    "zephyr": ("zephyr/module.yml", "Kconfig", "CMakeLists.txt"),
    "esp-idf": ("CMakeLists.txt", "idf_component.yml"),
    "cmake": ("CMakeLists.txt",),
}
#: Example programs of a build system for bundles that offload: template section to path.
EXAMPLE_PROGRAMS: dict[str, dict[str, str]] = {
    "arduino": {"offload.ino": "examples/offload/offload.ino"},
    "esp-idf": {"offload.c": "examples/offload.c"},
}
#: Files that run the self-test on a computer, with placeholders for the name; a board's library
#: leaves them out.
DESKTOP_FILES = ("main.c", "Makefile", "{name}_selftest.c", "{name}_signals_selftest.c")


def write_library(
    bundle: Bundle, folder: Path, build: str, **options: Any
) -> tuple[CSource, str | None]:
    """Write a bundle as a C library for a build system, with a client of the cloud.

    Parameters
    ----------
    bundle : Bundle
        Written at its active operating point.
    folder : Path
        Folder for the headers, the sources and the files of the build system.
    build : {"arduino", "zephyr", "esp-idf", "cmake"}
        The build system.
    **options
        Keyword arguments of :func:`.to_c`.

    Returns
    -------
    tuple of CSource and str or None
        The files and their sizes, and why the library has no client; None if it has one.
    """
    if build not in BUILD_FILES:
        raise InputError(f"unknown build system {build!r}: choose one of {', '.join(BUILD_FILES)}")
    # to_c checks the bundle and writes the model's files
    with tempfile.TemporaryDirectory() as scratch_folder:
        source = to_c(bundle, scratch_folder, **options)
        desktop_files = [file_name.format(name=source.name) for file_name in DESKTOP_FILES]
        text_of_file = {
            file_name: (Path(scratch_folder) / file_name).read_text("ascii")
            for file_name in source.files
            if file_name not in desktop_files
        }
    missing_client_reason = no_client_reason(bundle.manifest)
    if missing_client_reason is None:
        text_of_file |= wire_files(bundle, source.name)
    # put headers where the build system looks for them
    header_folder = "src" if build == "arduino" else "include"
    text_of_path = {
        f"{header_folder if file_name.endswith('.h') else 'src'}/{file_name}": text
        for file_name, text in text_of_file.items()
    }
    sources = sorted(path for path in text_of_path if path.endswith(".c"))
    headers = sorted(Path(path).name for path in text_of_path if path.endswith(".h"))
    placeholders = c_text.common_placeholders(source.name) | {
        "title": c_text.safe_name(bundle.manifest.title),
        "library_version": _library_version(bundle.manifest.version),
        "headers": ",".join(headers),
        "sources": " ".join(sources),
        "quoted_sources": " ".join(f'"{path}"' for path in sources),
        "wire_paragraph": "" if missing_client_reason else ", and sends hard instances over MQTT",
    }
    examples = {} if missing_client_reason else EXAMPLE_PROGRAMS.get(build, {})
    for section, path in {**{path: path for path in BUILD_FILES[build]}, **examples}.items():
        text_of_path[path] = c_text.fill_template(
            "boards.txt", f"{build} {section}", **placeholders
        )
    c_text.write_files(folder, text_of_path, model=source.name)
    return replace(source, folder=folder, files=tuple(text_of_path)), missing_client_reason


def _library_version(version: str) -> str:
    """Make the three-number version that package managers need from a bundle's version.

    >>> _library_version("7"), _library_version("v1.2-rc")
    ('7.0.0', '1.2.0')
    """
    numbers = [*re.findall(r"\d+", version)[:3], "0", "0", "0"]
    return ".".join(numbers[:3])
