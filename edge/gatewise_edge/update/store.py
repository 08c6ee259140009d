"""Store of a device's releases: the active one, and the last other one that passed a trial.

::

    <folder>/state.json, state.copy.json     the state and its copy, each with a checksum
    <folder>/bundles/<digest>/               the files of a release, with its release.json
    <folder>/partial/<digest>/               the files of a release that is being fetched
    <folder>/metadata/                       the verified metadata of the repository
    <folder>/lock                            locked by the process that updates

The name of a release's folder is its digest, the SHA-256 of its ``release.json``. That file lists
the hash of every other file, so the files alone show whether a release is complete. Once it is
complete, a rename moves it to its folder. If one copy of the state is damaged, the store reads the
other copy. If both are damaged, no release is
removed before the next start. If the store cannot be written, it logs the
error, and the device still runs the releases in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from msgspec.structs import replace

from gatewise.file_lock import lock_file
from gatewise_edge.update.state import read_state, write_state
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.storage import sync_folder
from gatewise_export.repository.release import RELEASE_FILE, Release, UpdateError, has_file

_LOG = logging.getLogger(__name__)
#: Largest number of refused releases in the state. A repository offers few releases of a model at a
#: time.
_MAX_REFUSED_RELEASES: Final = 16
#: Number of starts without an answer after which a release on trial is postponed. A single start
#: without one proves nothing, because the power may have failed.
_MAX_STARTS: Final = 5
#: Bytes of the disk that a release must leave free, so that the state can still be written.
_SPARE_BYTES: Final = 8 << 20
#: Largest number of times that the pause of a release is doubled. The bound keeps it a finite
#: number.
_MAX_DOUBLINGS: Final = 16


class Store:
    """A folder with at most two releases of a device, readable by its owner only.

    A release that gives no answer in several starts is postponed for `first_pause_s` of running
    time, then for twice as long, and so on. `bundle_folder` holds the complete releases, and
    `partial_folder` the releases that are being fetched. `trouble` is the reason why the store
    cannot be written, or None.
    """

    def __init__(self, folder: str | Path, *, first_pause_s: float = 600.0) -> None:
        self.folder = Path(folder)
        self.bundle_folder = self.folder / "bundles"
        self.partial_folder = self.folder / "partial"
        self.trouble: str | None = None
        self._first_pause_s = first_pause_s
        self._lock: int | None = None
        try:
            for path in (self.folder, self.bundle_folder, self.partial_folder):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            self._record_trouble(error)
        self.state, self._is_state_lost = read_state(self.folder)

    def save(self, **changes: Any) -> bool:
        """Change the state; return whether the change was written to the disk."""
        self.state = replace(self.state, revision=self.state.revision + 1, **changes)
        try:
            write_state(self.folder, self.state)
        except OSError as error:
            self._record_trouble(error)
            return False
        self.trouble = None
        return True

    def refuse(self, digest: str, **changes: Any) -> None:
        """Add a release to the refused ones, so that it is not tried again."""
        self.save(refused=(*self.state.refused, digest)[-_MAX_REFUSED_RELEASES:], **changes)

    def start(self) -> list[Path]:
        """Return the undamaged bundles to try, the preferred one first.

        Counts a start of a release on trial, and postpones it after too many without an answer.
        """
        state = self.state
        if state.is_on_trial and state.n_starts >= _MAX_STARTS:
            _LOG.error("release %s gave no answer in %d starts", state.active, state.n_starts)
            pause_s = self._first_pause_s * 2.0 ** min(state.n_postponements, _MAX_DOUBLINGS)
            self.save(
                active=state.proved,
                postponed=state.active,
                postponed_s=pause_s,
                n_postponements=state.n_postponements + 1,
                n_starts=0,
            )
        elif state.is_on_trial:
            self.save(n_starts=state.n_starts + 1)
        return [self.path(digest) for digest in self.state.digests if self.is_complete(digest)]

    def path(self, digest: str) -> Path:
        """Folder of a release, which may not exist."""
        return self.bundle_folder / digest

    def digest_of(self, bundle_path: Path) -> str:
        """Digest of a bundle's release; empty if the bundle is not in this store."""
        return bundle_path.name if bundle_path.parent == self.bundle_folder else ""

    def is_complete(self, digest: str) -> bool:
        """Whether the store has a release with all its files, undamaged."""
        path = self.path(digest)
        if not has_file(path / RELEASE_FILE, digest):
            return False
        damaged_name = self.read_release(digest).damaged_file(path)
        if damaged_name is not None:
            _LOG.error("%s: %s is damaged", path, damaged_name)
        return damaged_name is None

    def read_release(self, digest: str) -> Release:
        """Read the ``release.json`` of a release in the store."""
        return Release.from_json((self.path(digest) / RELEASE_FILE).read_bytes())

    def complete_release(
        self,
        digest: str,
        release: Release,
        first_bundle: Path | None,
        fetch: Callable[[str, Path], None],
    ) -> None:
        """Complete a release that has its ``release.json`` in :attr:`partial_folder`.

        Files that another release or the bundle `first_bundle` has are copied, and
        ``fetch(name, path)`` fetches the others. Partial files of other releases are removed.
        Raises UpdateError.
        """
        staging_folder = self.partial_folder / digest
        try:
            for path in self.partial_folder.iterdir():
                if path != staging_folder:
                    shutil.rmtree(path, ignore_errors=True)
            missing_files = {
                file_name: file_spec
                for file_name, file_spec in release.files.items()
                if not has_file(staging_folder / file_name, file_spec.sha256)
            }
            # There must be space for all files before any is fetched.
            if missing_files:
                self._check_disk_space(release, sum(spec.size for spec in missing_files.values()))
            for file_name, file_spec in missing_files.items():
                path = staging_folder / file_name
                content = self._stored_content(file_name, file_spec.sha256, first_bundle)
                if content is None:
                    fetch(file_name, path)
                else:
                    path.write_bytes(content)
            if release.damaged_file(staging_folder) is not None:
                raise UpdateError("store", f"{release} was damaged on the disk")
            self._move_to_bundles(staging_folder)
        except OSError as error:
            self._record_trouble(error)
            raise UpdateError("store", str(self.trouble)) from None

    def _check_disk_space(self, release: Release, n_missing_bytes: int) -> None:
        """Raise UpdateError if the disk has no space for the missing files of a release."""
        n_needed_bytes = n_missing_bytes + _SPARE_BYTES
        n_free_bytes = shutil.disk_usage(self.partial_folder).free
        if n_free_bytes < n_needed_bytes:
            raise UpdateError(
                "store",
                f"no room for {release} in {self.folder}: its missing files have {n_missing_bytes} "
                f"bytes, and {_SPARE_BYTES} must stay free, but only {n_free_bytes} are free",
            )

    def _move_to_bundles(self, staging_folder: Path) -> None:
        """Move the folder of a complete release to :attr:`bundle_folder`; raise OSError."""
        # All files must be on the disk before the new name is.
        for path in [*staging_folder.iterdir(), staging_folder]:
            sync_folder(path)
        bundle_path = self.path(staging_folder.name)
        if bundle_path.exists():  # it was damaged
            damaged_folder = self.partial_folder / f"{staging_folder.name}.old"
            shutil.rmtree(damaged_folder, ignore_errors=True)
            os.rename(bundle_path, damaged_folder)
        os.rename(staging_folder, bundle_path)
        sync_folder(self.bundle_folder)

    def _stored_content(
        self, file_name: str, sha256: str, first_bundle: Path | None
    ) -> bytes | None:
        """Read a file with this hash from another release or the first bundle, if one has it."""
        for folder in self.bundle_folder.iterdir():
            with contextlib.suppress(OSError):
                content = (folder / file_name).read_bytes()
                if hashlib.sha256(content).hexdigest() == sha256:
                    return content
        if first_bundle is not None:
            with contextlib.suppress(BundleError):
                bundle = Bundle.open(first_bundle, for_device=True)
                file_spec = bundle.manifest.files.get(file_name)
                if file_spec is not None and file_spec.sha256 == sha256:
                    return bundle.read(file_name)
        return None

    def remove_old_releases(self) -> None:
        """Remove incomplete and old releases.

        Nothing is removed if the state was lost, or if the store cannot be written.
        """
        if self._is_state_lost or self.trouble:
            return
        for path in [*self.bundle_folder.iterdir(), *self.partial_folder.iterdir()]:
            if path.parent == self.partial_folder or path.name not in self.state.digests:
                shutil.rmtree(path, ignore_errors=True)

    def lock(self) -> None:
        """Lock the store for this process; raise UpdateError if another process has locked it.

        A store that cannot be written needs no lock.
        """
        if self._lock is not None:
            return
        try:
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            self._record_trouble(error)
            return
        try:
            lock_file(descriptor, waits=False)
        except OSError:
            os.close(descriptor)
            raise UpdateError(
                "store", f"store {self.folder} is locked by another process"
            ) from None
        self._lock = descriptor

    def unlock(self) -> None:
        """Release the lock. May be called twice."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _record_trouble(self, error: OSError) -> None:
        trouble = f"store {self.folder} cannot be written: {error.strerror}"
        if trouble != self.trouble:
            _LOG.error("%s", trouble)
        self.trouble = trouble
