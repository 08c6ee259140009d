"""Store of a device's releases: the last two that passed a trial, and the one on trial.

::

    <folder>/state.json, state.copy.json     the state and its copy, each with a checksum
    <folder>/bundles/<digest>/               the files of a release, with its release.json
    <folder>/partial/<digest>/               the files of a release that is being fetched
    <folder>/metadata/                       the verified metadata of the repository
    <folder>/lock                            locked by the process that updates

The name of a release's folder is its digest, the SHA-256 of its ``release.json``. That file lists
the hash of every other file, so the files alone show whether a release is complete. Once it is
complete, a rename moves it to its folder. If one copy of the state is damaged, the store reads the
other copy. If both are damaged, it removes no release. If the store cannot be written, it logs the
error, and the device still runs the releases in it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

from msgspec import field
from msgspec.structs import replace

from gatewise.documents import (
    Amount,
    DocumentError,
    Finite,
    Meta,
    Record,
    convert,
    decode_json,
    encode_json,
    plain_values,
)
from gatewise.file_lock import lock_file
from gatewise_export.bundle.bundle import Bundle
from gatewise_export.bundle.errors import BundleError
from gatewise_export.bundle.storage import replace_file, sync_folder
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
#: File names of the state.
_STATE_FILES: Final = ("state.json", "state.copy.json")
#: Largest number of times that the pause of a release is doubled. The bound keeps it a finite
#: number.
_MAX_DOUBLINGS: Final = 16
#: Largest number of bytes to read of a state file. A state has a few kilobytes, but a damaged file
#: may have any size.
_MAX_STATE_BYTES: Final = 64 << 10
Count = Annotated[int, Meta(ge=0)]


class State(Record, frozen=True):
    """State of the updates, which is kept over restarts.

    A release is identified by its digest. An empty digest stands for the bundle with which the
    device was set up. The active release is on trial if it is not the proved one.

    Attributes
    ----------
    revision : int
        Number of the state's last write.
    device : str
        Random id, for staged rollouts to a device without an id.
    active : str
        Release to run.
    proved, previous : str
        Last release that passed its trial, and the one that passed before it.
    n_good, n_bad : int
        Answers in time of the release on trial, and its late answers and errors.
    trial_seconds : float
        Running time of the release on trial.
    n_starts : int
        Starts of the release on trial since its last answer.
    n_bad_before, n_answers_before : int
        Late answers and errors of the release that ran before the trial, and all its answers.
    postponed : str
        Release that gave no answer in several starts.
    postponed_s : float
        Running time in seconds until the device tries `postponed` again.
    n_postponements : int
        Number of times that `postponed` was postponed.
    refused : tuple of str
        Releases that failed on this device, the latest last.
    seen_versions : dict
        See :data:`gatewise_export.repository.client.SeenVersions`.
    """

    revision: Count = 0
    device: str = field(default_factory=lambda: secrets.token_hex(8))
    active: str = ""
    proved: str = ""
    previous: str = ""
    n_good: Count = 0
    n_bad: Count = 0
    trial_seconds: Amount = 0.0
    n_starts: Count = 0
    n_bad_before: Count = 0
    n_answers_before: Count = 0
    postponed: str = ""
    postponed_s: Finite = 0.0
    n_postponements: Count = 0
    refused: tuple[str, ...] = ()
    seen_versions: dict[str, tuple[int, str]] = field(default_factory=dict)

    @property
    def is_on_trial(self) -> bool:
        """Whether the active release is on trial."""
        return self.active != self.proved

    @property
    def trial_counts(self) -> dict[str, Any]:
        """Counts with which :meth:`.Trial.begin` continues the trial."""
        names = ("n_good", "n_bad", "trial_seconds")
        return {name: getattr(self, name) for name in names}

    @property
    def digests(self) -> list[str]:
        """Releases to keep in the store, in the order in which a start tries them."""
        digests = [self.active, self.proved if self.is_on_trial else self.previous]
        return [digest for digest in digests if digest]


class _StateDocument(Record, frozen=True):
    """Content of a state file."""

    state: State
    sha256: str


def read_state(folder: Path) -> tuple[State, bool]:
    """Read the newer undamaged state file; return its state, and whether the state was lost."""
    states = []
    has_damaged_file = False
    for file_name in _STATE_FILES:
        try:
            with (folder / file_name).open("rb") as file:
                states.append(_decode_state(file.read(_MAX_STATE_BYTES + 1)))
        except (FileNotFoundError, NotADirectoryError):
            pass
        except (OSError, DocumentError):
            _LOG.error("%s is ignored: it is damaged or cannot be read", folder / file_name)
            has_damaged_file = True
    if not states:
        return State(), has_damaged_file
    return max(states, key=lambda state: state.revision), False


def write_state(folder: Path, state: State) -> None:
    """Write both state files, one after the other; raise OSError."""
    # Convert the state as reading does, because 1 and 1.0 have different checksums.
    state = convert(plain_values(state), State)
    content = encode_json(_StateDocument(state, _checksum(state)), indent=1)
    for file_name in _STATE_FILES:
        replace_file(folder / file_name, content)


def _checksum(state: State) -> str:
    return hashlib.sha256(json.dumps(plain_values(state), sort_keys=True).encode()).hexdigest()


def _decode_state(content: bytes) -> State:
    document = decode_json(content, _StateDocument, "state.json")
    if _checksum(document.state) != document.sha256:
        raise DocumentError("state.json", "sha256", "does not match: the file is damaged")
    return document.state


class Store:
    """A folder with the last two releases of a device, readable by its owner only.

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
        """Count a start; return the undamaged bundles to try, the preferred one first."""
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
            # Make room for the whole release before any file is fetched.
            for path in self.partial_folder.iterdir():
                if path != staging_folder:
                    shutil.rmtree(path, ignore_errors=True)
            missing_files = {
                file_name: file_spec
                for file_name, file_spec in release.files.items()
                if not has_file(staging_folder / file_name, file_spec.sha256)
            }
            n_needed_bytes = (
                sum(file_spec.size for file_spec in missing_files.values()) + _SPARE_BYTES
            )
            n_free_bytes = shutil.disk_usage(staging_folder).free
            if missing_files and n_free_bytes < n_needed_bytes:
                raise UpdateError(
                    "store",
                    f"no room for {release} in {self.folder}: it needs {n_needed_bytes} bytes, of "
                    f"which {_SPARE_BYTES} must stay free, but only {n_free_bytes} bytes are free",
                )
            # Copy the files that the device already has, and fetch the others.
            for file_name, file_spec in missing_files.items():
                path = staging_folder / file_name
                content = self._stored_content(file_name, file_spec.sha256, first_bundle)
                if content is None:
                    fetch(file_name, path)
                else:
                    path.write_bytes(content)
            if release.damaged_file(staging_folder) is not None:
                raise UpdateError("store", f"{release} was damaged on the disk")
            # Write all files to the disk, then rename the folder.
            for path in [*staging_folder.iterdir(), staging_folder]:
                sync_folder(path)
            if self.path(digest).exists():  # it was damaged
                damaged_folder = self.partial_folder / f"{digest}.old"
                shutil.rmtree(damaged_folder, ignore_errors=True)
                os.rename(self.path(digest), damaged_folder)
            os.rename(staging_folder, self.path(digest))
            sync_folder(self.bundle_folder)
        except OSError as error:
            self._record_trouble(error)
            raise UpdateError("store", str(self.trouble)) from None

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
        """Remove incomplete and old releases, unless the state was lost."""
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
