"""Read and write a bundle's files, in a directory or in one zip file.

Names are plain file names from a checked manifest. Links, pipes and directories are refused, so no
path leaves the bundle.
"""

from __future__ import annotations

import os
import secrets
import stat
import zipfile
import zlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from gatewise_export.bundle.errors import BundleError, DamagedFileError
from gatewise_export.bundle.manifest_records import MANIFEST
from gatewise_export.bundle.signing import (
    MAX_SIGNATURE_BYTES,
    SIGNATURE,
    Signature,
    read_signatures,
    write_signatures,
)
from gatewise_export.bundle.zip_files import (
    TAIL_BYTES,
    check_entry_list,
    open_entry,
    open_zip,
    zip_entry,
)

#: Largest size in bytes of a zip file's list of entries, which is read into memory.
MAX_DIRECTORY_BYTES = 1 << 20


def open_storage(path: Path) -> Storage:
    """Open the directory or zip file of a bundle."""
    if path.is_dir():
        return _Folder(path)
    if not path.exists():
        raise BundleError(f"bundle {path} does not exist")
    if not zipfile.is_zipfile(path):
        raise BundleError(f"{path} is not a bundle: neither a directory nor a .gwb zip file")
    return _Archive(path)


def write_file(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a new file and wait until it is on the disk."""
    try:
        with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:  # the error for a full disk names no file
        error.filename = error.filename or str(path)
        raise


def sync_folder(path: Path) -> None:
    """Wait until renames in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace a file by renaming a new one, so that readers see no partial file.

    With a `mode` the new file has this mode, and the owner of the old file.
    """
    new_file = path.with_name(f".{path.name}.new")
    new_file.unlink(missing_ok=True)  # left by a process that was killed
    try:
        write_file(new_file, content, 0o666 if mode is None else mode)
        if mode is not None:
            new_file.chmod(mode)
            if path.exists():
                os.chown(new_file, path.stat().st_uid, path.stat().st_gid)
        os.replace(new_file, path)
        sync_folder(path.parent)
    finally:
        new_file.unlink(missing_ok=True)


def read_signature_file(storage: Storage) -> list[Signature] | None:
    """Read the signatures of a bundle; None if it has no SIGNATURE file."""
    if not storage.has_file(SIGNATURE):
        return None
    with storage.open_file(SIGNATURE) as file:
        return read_signatures(file.read(MAX_SIGNATURE_BYTES + 1))


#: Bytes per read while an archive is copied.
_CHUNK_BYTES: Final = 1 << 20


class _Folder:
    """The files of a bundle that is a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def open_file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file; raise DamagedFileError if it is missing or not a plain file."""
        # a link could leave the bundle, and opening a pipe could block
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

    def has_file(self, name: str) -> bool:
        """Whether the bundle has a file of this name."""
        return os.path.lexists(self.path / name)

    def write_manifest(
        self, manifest_text: bytes, signature: Signature | None, files: Collection[str]
    ) -> None:
        """Replace the manifest and its signature, and keep `files`.

        A signed bundle stays valid if this is interrupted. First the new signature is added, then
        the manifest is replaced, and then the old signature is removed. Each step is one rename,
        and after each step a signature covers the manifest.
        """
        if signature is not None:
            with self.open_file(MANIFEST) as file:
                old_manifest_text = file.read()
            old_signatures = [
                old_signature
                for old_signature in read_signature_file(self) or []
                if old_signature.covers(old_manifest_text)
            ]
            content = write_signatures(*old_signatures[:1], signature)
            replace_file(self.path / SIGNATURE, content)
        replace_file(self.path / MANIFEST, manifest_text)
        if signature is not None:
            replace_file(self.path / SIGNATURE, write_signatures(signature))


class _Archive:
    """The files of a bundle that is one zip file; the methods are those of :class:`_Folder`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        _check_entries(path)

    def has_file(self, name: str) -> bool:
        with self._open_zip_file() as reader:
            return name in reader.namelist()

    def _open_zip_file(self) -> zipfile.ZipFile:
        try:
            return open_zip(self.path)
        except (zipfile.BadZipFile, OSError) as error:
            raise BundleError(f"bundle {self.path} cannot be read: {error}") from error

    @contextmanager
    def open_file(self, name: str) -> Iterator[IO[bytes]]:
        with self._open_zip_file() as reader:
            n_entries = reader.namelist().count(name)
            if n_entries == 0:
                raise self._damaged_file_error(name, "is missing")
            if n_entries > 1:
                raise self._damaged_file_error(name, f"is listed {n_entries} times")
            try:
                with open_entry(reader, reader.getinfo(name)) as file:
                    yield file
            except (zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
                raise self._damaged_file_error(name, f"cannot be read: {error}") from error

    def _read_chunks(self, name: str) -> Iterator[bytes]:
        """Read a file in chunks, so that no error of the reader of a chunk looks like damage."""
        with self.open_file(name) as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    def _damaged_file_error(self, name: str, problem: str) -> DamagedFileError:
        return DamagedFileError(name, f"bundle {self.path}: {name} {problem}")

    def write_manifest(
        self, manifest_text: bytes, signature: Signature | None, files: Collection[str]
    ) -> None:
        new_file = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
        new_contents = {MANIFEST: manifest_text}
        if signature is not None:
            new_contents[SIGNATURE] = write_signatures(signature)
        try:
            with zipfile.ZipFile(new_file, "x") as new_zip:
                for name in sorted({*files, *new_contents}):
                    if name in new_contents:
                        new_zip.writestr(zip_entry(name), new_contents[name])
                        continue
                    with new_zip.open(zip_entry(name), "w") as target:
                        for chunk in self._read_chunks(name):
                            target.write(chunk)
            # write the content to the disk first, because the rename could reach the disk before it
            with new_file.open("rb") as written_file:
                os.fsync(written_file.fileno())
            os.replace(new_file, self.path)
            sync_folder(self.path.parent)
        finally:
            new_file.unlink(missing_ok=True)


Storage = _Folder | _Archive


def _check_entries(path: Path) -> None:
    """Refuse a zip file with a list of entries that is too large for memory."""
    with path.open("rb") as file:
        size_bytes = file.seek(0, os.SEEK_END)
        file.seek(max(0, size_bytes - TAIL_BYTES))
        last_bytes = file.read()
    try:
        check_entry_list(last_bytes, MAX_DIRECTORY_BYTES)
    except ValueError as error:
        raise BundleError(f"bundle {path}: {error}") from None
