"""C code of ours, compiled once for this user and machine and loaded with cffi.

What is loaded runs with this process's rights, so the library lies in a folder that belongs to
the user and that no one else may write to, under a name made of the source's hash.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

__all__ = ["cache_folder", "compiler", "library"]

#: Sums keep their order and are rounded after each step: no fused multiply-add, no fast maths.
FLAGS: Final = ("-std=c99", "-O2", "-fPIC", "-shared", "-ffp-contract=off", "-fno-fast-math")
_TIMEOUT: Final = 120.0  # seconds; a small file takes a Pi less than one


def compiler() -> list[str] | None:
    """The C compiler's command: what the environment's CC says, else cc, gcc or clang."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        found = shutil.which(command[0])
        if found is not None:
            return [found, *command[1:]]
    return None


def cache_folder() -> Path | None:
    """A folder for libraries that only this user can write to, made if need be.

    ``CACHE_DIRECTORY`` (set by systemd), else ``XDG_CACHE_HOME``, else ``~/.cache``; in it
    ``gatewise/native``. None if it cannot be had, or someone else could write into it.
    """
    base = os.environ.get("CACHE_DIRECTORY", "").split(":")[0] or os.environ.get("XDG_CACHE_HOME")
    try:
        folder = (Path(base) if base else Path.home() / ".cache") / "gatewise" / "native"
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder if all(_ours(p) for p in (folder.parent, folder)) else None
    except (OSError, RuntimeError):  # no home, or not writable
        return None


@functools.cache
def library(name: str, source: str, declarations: str) -> tuple[Any, Any] | None:
    """Compile C code, unless that was done before, and load it.

    Parameters
    ----------
    name : str
        Of the library's file.
    source : str
        C99.
    declarations : str
        What of it Python uses, as cffi reads it.

    Returns
    -------
    (ffi, lib) or None
        None if it cannot be compiled or loaded here.
    """
    try:
        import cffi
    except ImportError:
        return None
    command, folder = compiler(), cache_folder()
    if folder is None:
        return None
    known = repr((source, FLAGS, platform.machine(), sys.platform, platform.libc_ver()))
    path = folder / f"{name}-{hashlib.sha256(known.encode()).hexdigest()[:24]}.so"
    ffi = cffi.FFI()
    ffi.cdef(declarations)
    for _ in range(2):  # a library that does not load is made anew once
        if not (path.exists() and _ours(path)) and not (command and _build(command, source, path)):
            return None
        try:
            return ffi, ffi.dlopen(str(path))
        except OSError:
            path.unlink(missing_ok=True)
    return None


def _build(command: list[str], source: str, path: Path) -> bool:
    """Compile beside the destination and put it in place at once; whether that worked."""
    try:
        with tempfile.TemporaryDirectory(dir=path.parent) as work:
            code, made = Path(work, "source.c"), Path(work, "library.so")
            code.write_text(source)
            done = subprocess.run(
                [*command, *FLAGS, "-o", str(made), str(code)],
                check=False,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_TIMEOUT,
            )
            if done.returncode or not made.exists():
                return False
            made.chmod(0o700)
            os.replace(made, path)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _ours(path: Path) -> bool:
    """Whether no one but this user (or root) can have changed it."""
    about = path.lstat()
    shared = about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return not stat.S_ISLNK(about.st_mode) and about.st_uid == os.geteuid() and not shared
