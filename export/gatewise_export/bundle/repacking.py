"""Copy a bundle as a directory or one file, and replace an existing bundle atomically.

A copy has the same manifest, byte for byte, so its signature stays valid.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from gatewise_export.bundle.bundle import Bundle, open_to_sign
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.manifest_reader import read_manifest
from gatewise_export.bundle.manifest_records import MANIFEST
from gatewise_export.bundle.signing import MANIFEST_CONTEXT, SIGNATURE, write_signatures
from gatewise_export.bundle.storage import open_storage, sync_folder, write_file
from gatewise_export.bundle.zip_files import zip_bytes


def repack(
    bundle: str | Path,
    path: str | Path,
    *,
    sign: str | Path | None = None,
    for_device: bool = False,
) -> Bundle:
    """Copy a bundle to `path`, as a directory or a ``.gwb`` file.

    With `sign` the private key signs the copy. With `for_device` the copy leaves out the high-cost
    model's file.
    """
    path = check_destination(path)
    source, signer = open_to_sign(bundle, sign, for_device=for_device)
    storage = open_storage(source.path)
    file_names = set(source.manifest.files)
    if for_device and source.manifest.cloud is not None:
        file_names -= {source.manifest.cloud.file}
    files = {name: source.read(name) for name in file_names}
    with storage.open_file(MANIFEST) as file:
        manifest_text = files[MANIFEST] = file.read()
    if read_manifest(manifest_text) != source.manifest:
        raise BundleError(f"bundle {bundle} changed while it was read: try again")
    if signer is not None:
        files[SIGNATURE] = write_signatures(signer.sign(MANIFEST_CONTEXT, manifest_text))
    elif source.claimed_key_ids():
        with storage.open_file(SIGNATURE) as file:
            files[SIGNATURE] = file.read()
    with replace_when_done(path, files):
        pass
    return Bundle.open(
        path, public_key=None if signer is None else signer.public.raw, for_device=for_device
    )


@contextmanager
def replace_when_done(path: Path, files: Mapping[str, bytes]) -> Iterator[Path]:
    """Write a bundle's files next to `path`, and rename them to `path` when the block ends.

    Yields the path of the written files. If the block raises an exception, they are removed and
    `path` stays unchanged. `path` must come from :func:`check_destination`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new_path = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        if path.suffix == ".gwb":
            write_file(new_path, zip_bytes(files))
        else:
            new_path.mkdir()
            for name, content in files.items():
                write_file(new_path / name, content)
        yield new_path
        _rename_into_place(new_path, path)
    finally:
        _remove(new_path)


def _rename_into_place(new_path: Path, path: Path) -> None:
    """Rename a new bundle to `path`; an interrupted rename leaves the old bundle there."""
    if not path.is_dir():
        os.replace(new_path, path)
        sync_folder(path.parent)
        return
    # a rename cannot replace a directory with files, so the old one is moved away first
    old_path = path.with_name(f"{new_path.name}.old")
    try:
        os.rename(path, old_path)
        os.rename(new_path, path)
    except BaseException:  # including KeyboardInterrupt
        if not path.exists():
            os.rename(old_path, path)
        raise
    sync_folder(path.parent)
    _remove(old_path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_destination(path: str | Path) -> Path:
    """Refuse a path that cannot be written, or that holds anything but a bundle.

    Call this before building a new bundle. Returns the path, or its target if it is a link.
    """
    # check the path itself, then the bundle that it may hold
    path = Path(path)
    if path.name in ("", ".."):
        raise BundleError(f"{path}: a bundle needs a name, as in {path / 'bundle'}")
    if path.is_symlink():
        path = path.resolve()
    _check_writable(path)
    if not path.exists() or (path.is_dir() and not any(path.iterdir())):
        return path
    if path.is_dir() == (path.suffix == ".gwb"):
        kind = "a directory" if path.is_dir() else "a file"
        raise BundleError(
            f"{path} exists and is {kind}, but a path ending in .gwb is a file, and any other a "
            "directory: choose another path"
        )
    try:
        with open_storage(path).open_file(MANIFEST) as file:
            manifest = read_manifest(file.read())
    except BundleError as error:
        raise BundleError(
            f"{path} exists and is not a bundle: choose another path, or remove it ({error})"
        ) from error
    if path.is_dir():
        foreign_names = sorted(
            {file.name for file in path.iterdir()} - {*manifest.files, MANIFEST, SIGNATURE}
        )
        if foreign_names:
            raise BundleError(
                f"{path} holds {foreign_names[0]!r}, which is not part of its bundle: move it "
                "elsewhere"
            )
    return path


def _check_writable(path: Path) -> None:
    """Make and remove a folder next to `path`, or in its nearest existing parent."""
    try:
        folder = path.parent
        while not folder.exists():
            folder = folder.parent
        name = path.name if folder == path.parent else "gatewise"
        probe_folder = folder / f".{name}.{secrets.token_hex(4)}"
        probe_folder.mkdir()
        probe_folder.rmdir()
    except OSError as error:
        raise BundleError(
            f"{path} cannot be written: {error.strerror or error}: choose another path"
        ) from error
