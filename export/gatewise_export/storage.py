"""Where a bundle's files are: a directory or one zip file, behind one small face.

Names come from a manifest that was checked: plain file names. Links, pipes and directories
in their place are refused, so that no path leaves the bundle.
"""

from __future__ import annotations

import io
import os
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, Protocol

from gatewise_export.errors import BundleError, DamagedFileError
from gatewise_export.manifest_reader import MANIFEST

__all__ = ["Storage", "archive", "open_storage", "write_file"]


class Storage(Protocol):
    """A place that holds files by name."""

    def reading(self, name: str) -> AbstractContextManager[IO[bytes]]:
        """Open a file; DamagedFileError if it is not there or not a plain file."""
        ...

    def write_manifest(self, text: bytes) -> None:
        """Put another manifest in place of the old one, all at once."""
        ...


def open_storage(path: Path) -> Storage:
    """Find out what kind of bundle a path is.

    Raises
    ------
    BundleError
        If there is none.
    """
    if path.is_dir():
        return _Folder(path)
    if not path.exists():
        raise BundleError(f"bundle {path} does not exist")
    if not zipfile.is_zipfile(path):
        raise BundleError(f"{path} is not a bundle: neither a directory nor a .gwb zip file")
    return _Archive(path)


def write_file(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on the disk: a device may lose power at any time."""
    with path.open("xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def archive(files: Mapping[str, bytes]) -> bytes:
    """Make a zip file whose bytes depend on the contents alone: no times, a fixed order."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as writer:
        for name, data in sorted(files.items()):
            writer.writestr(_entry(name), data)
    return content.getvalue()


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)  # dated 1980-01-01
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.create_system = 3
    entry.external_attr = 0o644 << 16
    return entry


class _Folder:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        # not following links keeps the path inside; not blocking keeps a pipe from hanging us
        flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            descriptor = os.open(self.path / name, flags)
        except FileNotFoundError:
            raise DamagedFileError(name, f"bundle {self.path}: {name} is missing") from None
        except OSError as error:
            raise DamagedFileError(
                name,
                f"bundle {self.path}: {name} cannot be opened as a plain file ({error.strerror})",
            ) from error
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DamagedFileError(name, f"bundle {self.path}: {name} is not a plain file")
        with os.fdopen(descriptor, "rb") as file:
            yield file

    def write_manifest(self, text: bytes) -> None:
        fresh = self.path / f".{MANIFEST}.{os.getpid()}"
        try:
            write_file(fresh, text)
            os.replace(fresh, self.path / MANIFEST)
        finally:
            fresh.unlink(missing_ok=True)


class _Archive:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def reading(self, name: str) -> Iterator[IO[bytes]]:
        try:
            with zipfile.ZipFile(self.path) as reader:
                if reader.namelist().count(name) != 1:
                    raise DamagedFileError(
                        name, f"bundle {self.path}: {name} is missing, or stands in it twice"
                    )
                with reader.open(name) as file:
                    yield file
        except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError) as error:
            raise DamagedFileError(
                name, f"bundle {self.path}: {name} cannot be read: {error}"
            ) from error

    def write_manifest(self, text: bytes) -> None:
        fresh = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with zipfile.ZipFile(self.path) as old, zipfile.ZipFile(fresh, "x") as new:
                for name in sorted(old.namelist()):
                    if name == MANIFEST:
                        new.writestr(_entry(name), text)
                        continue
                    with old.open(name) as source, new.open(_entry(name), "w") as target:
                        shutil.copyfileobj(source, target)
            os.replace(fresh, self.path)
        finally:
            fresh.unlink(missing_ok=True)
